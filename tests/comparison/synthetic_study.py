"""Synthetic comparisons: study folders with loss curves of known outcome."""

import math
import random
from dataclasses import asdict
from pathlib import Path

from addnorm.comparison import folder_layout as files
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.outcomes import LossSummary
from addnorm.comparison.shared_data import SharedData
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks import get_task
from addnorm.core.files import write_json
from addnorm.core.rows import write_rows
from addnorm.report.comparison.site_metrics import SITE_METRICS

BASELINE = 3.0


def write_synthetic_study(
    folder: Path, spec: Comparison, outcome=None, *, site_rows: bool = True
) -> Path:
    """Write a folder as `addnorm compare` does, without training.

    Args:
        folder: the folder of the study
        spec: the comparison
        outcome: function from cell to trained, slow, stuck, diverged, lost, crashed, cut or
            waiting; `typical_outcome` by default
        site_rows: whether to write the rows of each site, which are many
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / files.SPEC).write_text(spec.to_yaml(), encoding="utf-8")
    shared_data = SharedData(
        data=str(folder / "data"), corpus="c0ffee", tokenizer="7ea", vocab=50, baseline=BASELINE,
        counts={"train": 5000, "valid": 200, "test": 200},
        machine={"system": "Linux", "processor": "a <b>processor</b>", "device": "CPU"},
        versions={"addnorm": "0", "torch": "2.13.0", "python": "3.11"},
    )  # fmt: skip
    write_json(folder / files.FACTS, asdict(shared_data))
    records = [{"source": f"May {n}, 2001 <i>", "target": f"{n:02}.05.2001"} for n in range(1, 9)]
    if spec.task == "translate":
        from addnorm.data.corpus import write_corpus

        write_corpus(folder / files.SCORE, "translate", splits={"train": records, "test": records})
    for cell in spec.cells():
        _write_cell(
            folder / files.CELLS / cell.name,
            cell,
            spec,
            (outcome or typical_outcome)(cell),
            site_rows,
        )
    return folder


def typical_outcome(cell) -> str:
    """Return diverged for lr >= 1e-2, stuck for post_ln without warm-up, otherwise trained."""
    if cell.lr >= 1e-2:
        return "diverged"
    return "stuck" if cell.arm.wiring == "post_ln" and cell.warmup == 0 else "trained"


def curve(outcome: str, steps: int, level: float = 0.4, seed: int = 0, noise: float = 0.03):
    """Return the loss curve of an outcome as (step, value) pairs."""
    rng = random.Random(seed)
    points = []
    for step in range(1, steps + 1):
        share = step / steps
        falling = level + (BASELINE + 1 - level) * math.exp(-6 * share)
        value = {
            "trained": falling,
            "slow": BASELINE - 1.2 * share,
            "stuck": BASELINE + math.exp(-20 * share),
            "diverged": falling if share < 0.6 else math.nan,
            "lost": falling if share < 0.6 else BASELINE * 1.05,
            "crashed": falling,
        }[outcome]
        points.append((step, value * (1 + noise * rng.gauss(0, 1))))
        if math.isnan(value):
            break
    return points


def _write_cell(folder: Path, cell, spec, outcome: str, site_rows: bool) -> None:
    if outcome == "waiting":
        return
    folder.mkdir(parents=True)
    if outcome == "cut":
        CellResult("cut", "in the worse half of its arm's settings", step=spec.steps // 4).save(
            folder
        )
        outcome, steps, ending = "slow", spec.steps // 4, ""
    else:
        steps, ending = spec.steps, "done"
    level = 0.3 + 0.02 * cell.depth + 0.05 * (len(cell.arm.name) % 4) + 0.01 * cell.seed
    points = curve(outcome, steps, level, seed=hash_of(cell))
    clean = curve(outcome, steps, level * (1 + (hash_of(cell) % 100) / 2000), noise=0)
    rows = [{"step": s, "name": "loss", "value": v, "split": "train"} for s, v in points]
    checks = sorted({max(1, steps * n // 5) for n in range(1, 6)} & {step for step, _ in points})
    rows += [
        {"step": s, "name": "loss", "value": clean[s - 1][1], "split": "valid"} for s in checks
    ]
    for step in [1, *checks] if site_rows else []:
        rows += list(_site_rows(cell, spec, step))
    rows += [{"step": s, "name": "lr", "value": cell.lr} for s in (1, *checks)]
    rows += [{"step": s, "name": "tokens_per_second", "value": 3000 / cell.depth} for s in checks]
    rows.sort(key=lambda row: row["step"])
    write_rows(folder / "rows.jsonl", rows)
    recipe = get_task(spec.task).recipe(spec, cell, data="data", tokenizer="tokenizer.json")
    recipe.save(folder / "config.yaml")
    if not ending:
        return
    if outcome == "crashed":
        CellResult("crashed", "out of memory").save(folder)
    elif outcome == "diverged":
        CellResult(
            "diverged",
            "loss nan: first in decoder site 3",
            step=points[-1][0],
            rate=3000 / cell.depth,
        ).save(folder)
    else:
        last = clean[-1][1]
        is_correct = outcome == "trained"
        CellResult(
            "done",
            step=steps,
            loss=last,
            lowest=LossSummary.from_rows(rows).lowest,
            scores={"chrf": max(0.0, 90 - 20 * last), "bleu": 0.0},
            samples=tuple(f"{n:02}.05.2001" if is_correct else "0.0.0 <b>" for n in range(1, 7)),
            tokens=512 * steps,
            seconds=steps / 6,
            rate=3000 / cell.depth * (1 + 0.01 * len(cell.arm.name)),
            memory=(150 + 5 * cell.depth) << 20,
            parameters=100_000 * cell.depth,
        ).save(folder)


def _site_rows(cell, spec, step: int):
    """Yield rows by site that grow or shrink with depth as the wiring predicts."""
    slots = {"encoder": ("self", "ffn"), "decoder": ("self", "cross", "ffn")}
    if spec.task != "translate":
        slots = {"stack": ("self", "ffn")}
    for stack, kinds in slots.items():
        for site in range(cell.depth * len(kinds)):
            where = {
                "stack": stack,
                "site": site,
                "layer": site // len(kinds),
                "kind": kinds[site % len(kinds)],
            }
            growth = 1.0 if cell.arm.wiring == "post_ln" else 1 + 0.2 * site
            values = {
                "gradient_norm": 0.1 * (1.1**site if cell.arm.wiring == "post_ln" else 1),
                "stream_variance": growth,
                "dependency": 0.5 if cell.arm.wiring == "post_ln" else 1 / (site + 2),
                "update_ratio": cell.lr * (1 + site / 10) / math.sqrt(step),
            }
            for name in SITE_METRICS:
                value = values.get(name, 1.0)  # of a metric that was added later
                yield {"step": step, "name": name, "value": value, **where}
    yield {"step": step, "name": "gradient_norm", "value": 1.0}


def hash_of(cell) -> int:
    """Return a hash of the cell that is equal in every process."""
    import zlib

    return zlib.crc32(cell.name.encode())
