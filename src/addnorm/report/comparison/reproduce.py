"""How to reproduce a comparison: commands, spec, environment, data and every cell."""

import math
import shlex
from collections import Counter

from markupsafe import Markup

from addnorm.comparison import folder_layout as files
from addnorm.comparison.analysis.arm_summary import Setting
from addnorm.comparison.analysis.study import CellOutcome, Study
from addnorm.report.format import format_number
from addnorm.report.html.page import Collapsible, CollapsibleText, Column, Facts, Note, Part, Table
from addnorm.report.theme import OUTCOME_SYMBOLS, ArmStyle

MAX_FAILURE_ROWS = 40


def build_reproduce_parts(study: Study, styles: dict[str, ArmStyle]) -> list[Part]:
    """Return commands, spec, environment, data, failures and the table of all cells."""
    table = build_cells_table(study, styles)
    return [
        Column((Facts("Commands", list_reproduce_commands(study)), Facts("Spec", _spec(study)))),
        Column((Facts("Environment", _environment(study)), Facts("Data", _data(study)))),
        CollapsibleText(f"{files.SPEC}: all keys", study.spec.to_yaml()),
        *_failures(study, styles),
        Collapsible(f"All {len(study.cells):,} cells with their outcomes", (table,)),
    ]


def list_reproduce_commands(study: Study) -> dict[str, str]:
    """Return shell commands by what they do."""
    cell = _choose_cell(study).cell
    config = study.folder / files.CELLS / cell.name / "config.yaml"
    description, command = study.task.reproduce_command(study.spec, cell, config)
    spec, folder = (shlex.quote(str(path)) for path in (study.folder / files.SPEC, study.folder))
    return {
        "repeat in a new folder": f"addnorm compare -c {spec} -o again",
        "resume": f"addnorm compare -c {spec} -o {folder}",
        "rebuild this page": f"addnorm report {folder}",
        description: shlex.join(command),
    }


def build_cells_table(study: Study, styles: dict[str, ArmStyle]) -> Table:
    """Return the table of all cells, including those that failed."""
    head = (
        *("arm", "depth", "setting", "seed", "outcome", study.task.objective.label),
        *([study.score.label] if study.has_scores else []),
        *("steps", "seconds", "reason", "folder"),
    )
    rows = [_row(study, each, styles) for each in study.cells]
    return Table("All cells", head, rows, wide=True, tall=True)


def _failures(study: Study, styles: dict[str, ArmStyle]) -> list[Part]:
    """Return the reasons of failed cells with their counts."""
    reasons = Counter(
        (each.cell.arm.name, each.cell.depth, each.state, each.end.why)
        for each in study.cells
        if each.state in ("diverged", "crashed") and each.end is not None
    )
    if not reasons:
        return [Note("No cell diverged or crashed.")]
    rows = [
        (styles[arm], str(depth), state, f"{count:,}", why or "by the rules above, from its losses")
        for (arm, depth, state, why), count in reasons.most_common(MAX_FAILURE_ROWS)
    ]
    title = "Cells that diverged or crashed"
    if len(reasons) > MAX_FAILURE_ROWS:
        title += f", the {MAX_FAILURE_ROWS} most frequent of {len(reasons):,} reasons"
    return [Table(title, ("arm", "depth", "outcome", "cells", "reason"), rows, wide=True)]


def _row(study: Study, outcome: CellOutcome, styles: dict[str, ArmStyle]) -> list[object]:
    cell, end = outcome.cell, outcome.end
    score = end.scores.get(study.score.name, math.nan) if end is not None else math.nan
    state = Markup('<span class="chip is-{0}">{1}</span> {0}').format(
        outcome.state, OUTCOME_SYMBOLS[outcome.state]
    )
    setting = Setting(cell.warmup, cell.lr).format()
    return [
        styles[cell.arm.name], str(cell.depth), setting, str(cell.seed), state,
        format_number(study.task.objective.to_loss(outcome.loss)),
        *([format_number(score)] if study.has_scores else []),
        *((f"{end.step:,}", f"{end.seconds:,.0f}", end.why) if end is not None else ("", "", "")),
        f"{files.CELLS}/{cell.name}",
    ]  # fmt: skip


def _choose_cell(study: Study) -> CellOutcome:
    """Return the trained cell with the lowest loss, or the first cell if none trained."""
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


def _environment(study: Study) -> dict[str, str]:
    if study.shared_data is None:
        return {"machine": "unknown: the comparison has not started"}
    plugins = {f"plugin {name}": digest for name, digest in study.shared_data.plugins.items()}
    return {**study.shared_data.machine, **study.shared_data.versions, **plugins}


def _data(study: Study) -> dict[str, str]:
    shared_data = study.shared_data
    if shared_data is None:
        return {"data": study.spec.data}
    counts = {f"{split} records": f"{count:,}" for split, count in shared_data.counts.items()}
    tokenizer = {
        "tokenizer digest": shared_data.tokenizer,
        "vocabulary": f"{shared_data.vocab:,} tokens",
    }
    return {
        "data": study.spec.data,
        "prepared data": shared_data.data,
        **shared_data.about,
        **counts,
        **({"data digest": shared_data.corpus} if shared_data.corpus else {}),
        **(tokenizer if shared_data.tokenizer else {}),
        "baseline": f"{format_baseline(study, 4)}, the loss of {study.task.baseline_description}",
    }


def format_baseline(study: Study, digits: int) -> str:
    """Return the baseline with `digits` decimals and its unit."""
    baseline = study.shared_data.baseline if study.shared_data is not None else math.nan
    if math.isnan(baseline):
        return "unknown"
    baseline = study.task.objective.to_loss(baseline)
    return f"{baseline:.{digits}f} {study.task.loss_unit}".strip()
