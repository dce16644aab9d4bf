"""Gradient and stream of every wiring by depth, at the start and after training.

python tools/measure_wirings.py               measure all wirings (8 minutes on one core)
python tools/measure_wirings.py b2t pre_ln    measure these, and keep the others

Results are written to docs/catalogue/measured.json, from which tools/docs.py and the site make
tables and charts. Every wiring trains the same language model (12 layers of width 64) on the demo
corpus for 100 steps at a constant learning rate of 1e-3, without warm-up.
"""

import json
import math
import sys
import tempfile
from pathlib import Path

from addnorm.cli.main import main
from addnorm.cli.registries import get_registry

MEASURED = Path(__file__).parents[1] / "docs" / "catalogue" / "measured.json"
SETTINGS = {
    "dim": 64, "depth": 12, "heads": 4, "steps": 100, "batch_tokens": 512, "lr": 1e-3,
    "schedule": "constant", "dropout": 0.0, "seed": 0,
}  # fmt: skip
METRICS = ("gradient", "stream_variance")


def measure(wiring: str, corpus: Path, out: Path) -> dict[str, object]:
    """Train one wiring; return its losses, and its metrics by site at the first and last step."""
    steps = SETTINGS["steps"]
    keys = SETTINGS | {"data": corpus, "wiring": wiring, "monitor_every": steps}
    keys |= {"valid_every": steps, "save_every": steps}
    code = main(["train", "lm", *(f"{key}={value}" for key, value in keys.items()), "-o", str(out)])
    if code != 0:
        raise SystemExit(f"{wiring}: training ended with exit code {code}")
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text("utf-8").splitlines()]
    losses = [row for row in rows if row["name"] == "loss" and row.get("split") == "valid"]
    result: dict[str, object] = {"valid_loss": round_value(losses[-1]["value"])}
    for name in METRICS:
        own = [row for row in rows if row["name"] == name and row["site"] is not None]
        first, last = (pick(row["step"] for row in own) for pick in (min, max))
        for label, step in (("start", first), ("trained", last)):
            sites = sorted((row["site"], row["value"]) for row in own if row["step"] == step)
            result[f"{name}_{label}"] = [round_value(value) for _, value in sites]
    return result


def round_value(value: float | None) -> float | None:
    """Return a value with four digits; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def measure_all(names: list[str]) -> None:
    """Measure the wirings and write the results, one after the other."""
    stored = json.loads(MEASURED.read_text("utf-8")) if MEASURED.exists() else {}
    wirings = stored.get("wirings", {}) if stored.get("settings") == SETTINGS else {}
    registered = [card.name for card in get_registry("wirings").cards()]
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus"
        main(["data", "demo", "--task", "lm", "-o", str(corpus)])
        for name in names or registered:
            wirings[name] = measure(name, corpus, Path(folder) / name)
            known = {each: wirings[each] for each in registered if each in wirings}
            text = json.dumps({"settings": SETTINGS, "wirings": known}, indent=1)
            MEASURED.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    measure_all(sys.argv[1:])
