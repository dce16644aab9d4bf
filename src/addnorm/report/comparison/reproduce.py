"""How a comparison is made again: commands, spec, versions, machine, and every cell."""

import math
import shlex
from collections import Counter

from markupsafe import Markup

from addnorm.comparison import layout as files
from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.comparison.analysis.summary import Setting
from addnorm.report.comparison.summary import score_label
from addnorm.report.html.page import Collapsible, CollapsibleText, Column, Facts, Note, Part, Table
from addnorm.report.theme import OUTCOME_SYMBOLS, ArmStyle


def build_reproduce_parts(study: Study, styles: dict[str, ArmStyle]) -> list[Part]:
    """All that somebody else needs."""
    table = cells_table(study, styles)
    return [
        Column((Facts("Commands", reproduce_commands(study)), Facts("The spec", _spec(study)))),
        Column((Facts("Where it ran", _machine(study)), Facts("Data", _data(study)))),
        CollapsibleText(f"{files.SPEC}: every key", study.spec.to_yaml()),
        *_failures(study, styles),
        Collapsible(f"Every cell with its outcome: {len(study.cells):,}", (table,)),
    ]


def reproduce_commands(study: Study) -> dict[str, str]:
    """What to type."""
    cell = _choose_cell(study).cell
    config = study.folder / files.CELLS / cell.name / "config.yaml"
    what, command = study.task.reproduce_command(study.spec, cell, config)
    spec, folder = (shlex.quote(str(path)) for path in (study.folder / files.SPEC, study.folder))
    return {
        "once more, elsewhere": f"addnorm compare -c {spec} -o again",
        "go on with this one": f"addnorm compare -c {spec} -o {folder}",
        "this page anew": f"addnorm report {folder}",
        what: shlex.join(command),
    }


def cells_table(study: Study, styles: dict[str, ArmStyle]) -> Table:
    """Every cell, failures included."""
    head = (
        *("arm", "depth", "setting", "seed", "outcome", "validation loss", score_label(study)),
        *("steps", "seconds", "why", "folder"),
    )
    rows = [_row(study, each, styles) for each in study.cells]
    return Table("Every cell", head, rows, wide=True, tall=True)


def _failures(study: Study, styles: dict[str, ArmStyle]) -> list[Part]:
    """Cells that broke off, by reason: seen without opening the long table."""
    found = Counter(
        (each.cell.arm.name, each.cell.depth, each.state, each.end.why)
        for each in study.cells
        if each.state in ("diverged", "crashed") and each.end is not None
    )
    if not found:
        return [Note("No cell diverged or crashed.")]
    rows = [
        (
            styles[arm],
            str(depth),
            state,
            f"{count:,}",
            why or "judged so by its losses; see the rules above",
        )
        for (arm, depth, state, why), count in found.most_common(40)
    ]
    more = f", the first 40 of {len(found):,} kinds" if len(found) > 40 else ""
    title = f"What diverged or crashed, and why{more}"
    return [Table(title, ("arm", "depth", "outcome", "cells", "why"), rows, wide=True)]


def _row(study: Study, outcome: CellOutcome, styles: dict[str, ArmStyle]) -> list[object]:
    cell, end = outcome.cell, outcome.end
    score = end.scores.get(study.score, math.nan) if end is not None else math.nan
    state = Markup('<span class="chip is-{0}">{1}</span> {0}').format(
        outcome.state, OUTCOME_SYMBOLS[outcome.state]
    )
    return [
        styles[cell.arm.name], str(cell.depth), Setting(cell.warmup, cell.lr).format(), str(cell.seed),
        state, _format_number(outcome.loss), _format_number(score),
        *((f"{end.step:,}", f"{end.seconds:,.0f}", end.why) if end is not None else ("", "", "")),
        f"{files.CELLS}/{cell.name}",
    ]  # fmt: skip


def _choose_cell(study: Study) -> CellOutcome:
    """A cell worth training again: the best of all, or the first."""
    trained = [each for each in study.cells if each.state == "trained"]
    return min(trained, key=lambda each: each.loss) if trained else study.cells[0]


def _spec(study: Study) -> dict[str, str]:
    spec = study.spec
    arms, cells = spec.arms(), spec.cells()
    return {
        "task": spec.task,
        "arms": ", ".join(arm.name for arm in arms),
        "depths": ", ".join(map(str, sorted({cell.depth for cell in cells}))),
        "settings": "; ".join(
            dict.fromkeys(Setting(cell.warmup, cell.lr).format() for cell in cells)
        ),
        "seeds": ", ".join(map(str, spec.seed_range)),
        "steps": f"{spec.steps:,}",
        "schedule": spec.schedule,
        "mode": spec.mode,
        "cells": f"{len(cells):,}",
        "digest": spec.digest,
    }


def _machine(study: Study) -> dict[str, str]:
    if study.shared_data is None:
        return {"machine": "not prepared yet"}
    return {**study.shared_data.machine, **study.shared_data.versions}


def _data(study: Study) -> dict[str, str]:
    ground = study.shared_data
    if ground is None:
        return {"data": study.spec.data}
    counts = {f"{split} records": f"{count:,}" for split, count in ground.counts.items()}
    tokenizer = {
        "digest of the tokenizer": ground.tokenizer,
        "tokens in the vocabulary": f"{ground.vocab:,}",
    }
    return {
        "data": study.spec.data,
        "where cells find them": ground.data,
        **ground.about,
        **counts,
        "digest of the data": ground.corpus,
        **(tokenizer if ground.tokenizer else {}),
        "baseline": f"{format_baseline(study, 4)}, the loss of {study.task.baseline_description}",
    }


def format_baseline(study: Study, digits: int) -> str:
    """The baseline with its unit."""
    baseline = study.shared_data.baseline if study.shared_data is not None else math.nan
    return f"{baseline:.{digits}f} {study.task.loss_unit}".strip()


def _format_number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else ""
