"""Gradient and stream of every wiring and norm by depth, at the start and during training.

python tools/measure_catalogue.py               measure all of them (15 minutes on one core)
python tools/measure_catalogue.py b2t rms       measure these, and keep the others

Results are written to docs/catalogue/measured.json, from which the catalogue, the atlas and the
charts of the site are made. Every wiring trains the same model of 18 layers without warm-up to copy
its input: every token predicts itself, which requires only that signal and gradient pass all
sub-layers. Norms are measured in Pre-LN. Cost is counted on GPT-2 with `addnorm.planning`.
"""

import json
import math
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from addnorm.cli.registries import get_registry
from addnorm.core.errors import UserError
from addnorm.measure import Monitor
from addnorm.models import build
from addnorm.planning import TrainingPlan, plan

MEASURED = Path(__file__).parents[1] / "docs" / "catalogue" / "measured.json"
SETTINGS = {
    "kind": "masked_lm", "vocab": 16, "dim": 32, "depth": 18, "heads": 4, "length": 12, "batch": 32,
    "steps": 100, "lr": 1e-3, "optimizer": "adam", "seed": 0,
}  # fmt: skip
MOMENTS = (1, 20, 100)
"""Steps whose gradients and streams are stored; those of step 1 are the untrained model's."""
NOT_MEASURED = {"ada_ln": "it needs a conditioning vector, which this task does not have"}


def make_model(**arrangement: str) -> nn.Module:
    sizes = {name: SETTINGS[name] for name in ("kind", "vocab", "dim", "depth", "heads", "seed")}
    return build(**sizes, embed_scale="sqrt_dim", **arrangement)


def make_batches() -> Iterator[Tensor]:
    """Yield the same random batches for every member."""
    generator = torch.Generator().manual_seed(SETTINGS["seed"])
    while True:
        size = (SETTINGS["batch"], SETTINGS["length"])
        yield torch.randint(SETTINGS["vocab"], size, generator=generator)


def measure_start(model: nn.Module, ids: Tensor) -> dict[str, float | None]:
    """Return what an untrained stack keeps of its input: mean cosines of vectors of tokens."""
    model.eval()  # without the random choices of `drop_path` and `layer_drop`
    with torch.no_grad():
        embedded = model.embed(ids)
        model.encoder.calibrate(embedded)
        index = torch.arange(ids.shape[1]).expand_as(ids)
        x, y = model.encoder.positions.add(embedded, index), model.encoder(embedded)
    return {
        "input_cosine": round_value(cosine_similarity(x, y, dim=-1).mean().item()),
        "token_cosine": round_value(cosine_similarity(y[:, 1:], y[:, :-1], dim=-1).mean().item()),
    }


def measure(**arrangement: str) -> dict[str, Any]:
    """Train one model; return its loss, and gradient and stream by site at each moment."""
    model, batches = make_model(**arrangement), make_batches()
    optimizer = torch.optim.Adam(model.parameters(), lr=SETTINGS["lr"])
    monitor = Monitor(model, every=MOMENTS[1])
    rows: list[dict[str, Any]] = []
    losses: list[float] = []
    for step in range(1, SETTINGS["steps"] + 1):
        ids = next(batches)
        if step == 1:
            model.encoder.calibrate(model.embed(ids))
        loss = cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        optimizer.zero_grad()
        loss.backward()
        monitor.before_update(step, ids)
        optimizer.step()
        rows += monitor.after_update()
        model.after_step()
        losses.append(loss.item())
    return {
        "loss": round_value(sum(losses[-10:]) / 10),
        "gradient": {str(step): by_site(rows, "gradient_norm", step) for step in MOMENTS},
        "stream": {str(step): by_site(rows, "stream_variance", step) for step in MOMENTS},
    }


def by_site(rows: list[dict[str, Any]], name: str, step: int) -> list[float | None]:
    """Return the values of a metric at one step, from the first site to the last."""
    own = [row for row in rows if (row["name"], row["step"]) == (name, step) and "site" in row]
    return [round_value(row["value"]) for row in sorted(own, key=lambda row: row["site"])]


def round_value(value: float | None) -> float | None:
    """Return a value with four digits; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.4g}")


def count_cost(**arrangement: str) -> dict[str, float] | None:
    """Return parameters, FLOPs and stored activations of a step relative to Pre-LN's.

    None for a norm that GPT-2 cannot have, because it would see later tokens.
    """
    try:
        own, base = plan("gpt2", **arrangement), plan_base()
    except UserError:
        return None
    return {
        "parameters": round(own.parameters / base.parameters, 4),
        "flops": round(own.flops_per_step / base.flops_per_step, 4),
        "activations": round(own.activation_bytes / base.activation_bytes, 4),
    }


@cache
def plan_base() -> TrainingPlan:
    return plan("gpt2", wiring="pre_ln")


def write_results(stored: dict[str, Any]) -> None:
    """Write the results with one line per member."""
    families = [f'"settings": {json.dumps(SETTINGS)}']
    for family in ("wirings", "norms"):
        members = stored.get(family, {}).items()
        lines = [f"{json.dumps(name)}: {json.dumps(result)}" for name, result in members]
        families.append(f'"{family}": {{\n' + ",\n".join(lines) + "\n}")
    MEASURED.write_text("{\n" + ",\n".join(families) + "\n}\n", encoding="utf-8")


def measure_all(names: list[str]) -> None:
    """Measure the members and write the results, one after the other."""
    stored = json.loads(MEASURED.read_text("utf-8")) if MEASURED.exists() else {}
    stored = stored if stored.get("settings") == SETTINGS else {}
    for family in ("wirings", "norms"):
        registered = [card.name for card in get_registry(family).cards()]
        results = stored.get(family, {})
        for name in registered:
            if name in NOT_MEASURED or (names and name not in names):
                continue
            arrangement = {"wiring": name} if family == "wirings" else {"norm": name}
            results[name] = measure(**arrangement) | {
                "start": measure_start(make_model(**arrangement), next(make_batches())),
                "cost": count_cost(**arrangement),
            }
            print(family, name, results[name]["loss"], results[name]["cost"], flush=True)
            stored[family] = {each: results[each] for each in registered if each in results}
            write_results(stored)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    measure_all(sys.argv[1:])
