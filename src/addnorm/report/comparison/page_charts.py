"""The two chart groups of a comparison: losses over steps, and metrics over sites."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.outcomes import VALIDATION_LOSS
from addnorm.report.comparison.cell_curves import StudyCurves, mean_over_seeds
from addnorm.report.comparison.cell_selections import (
    Selection,
    build_selections,
    find_most_contrasting,
)
from addnorm.report.comparison.chart_base import Groups, Rows, group_by_setting, map_selection_keys
from addnorm.report.comparison.loss_charts import plot_losses
from addnorm.report.comparison.site_charts import plot_sites, site_rows
from addnorm.report.comparison.site_metrics import SITE_METRICS
from addnorm.report.downsample import evenly_spaced
from addnorm.report.format import MISSING, format_number
from addnorm.report.html.chart_groups import ChartGroup, ChartSelector
from addnorm.report.html.notes import drawn_values_note, nonfinite_note
from addnorm.report.html.page import Collapsible, Note, Table
from addnorm.report.theme import ArmStyle, make_arm_styles

MAX_TABLE_ROWS = 400
MAX_STEP_COLUMNS = 6
TABLE_TITLE = "Data as a table"


@dataclass(frozen=True)
class ComparisonCharts:
    """The data of all charts of a comparison, read once."""

    study: Study
    study_curves: StudyCurves
    groups: Groups
    """The cells of all seeds by arm and setting."""
    arm_styles: dict[str, ArmStyle]
    selections: list[Selection]
    default: Selection
    """The selection that the page shows first."""

    @classmethod
    def from_study(cls, study: Study) -> "ComparisonCharts":
        """Read the rows of all cells."""
        curves, selections = StudyCurves.from_study(study), build_selections(study)
        return cls(
            study,
            curves,
            group_by_setting(curves),
            make_arm_styles([arm.name for arm in study.spec.arms()]),
            selections,
            find_most_contrasting(study, selections),
        )

    @property
    def contrasting_selections(self) -> list[Selection]:
        """The selection of each depth that separates the arms best."""
        depths = dict.fromkeys(each.depth for each in self.selections)
        return [
            find_most_contrasting(
                self.study, [each for each in self.selections if each.depth == depth]
            )
            for depth in depths
        ]

    @cached_property
    def selection_keys(self) -> Mapping[tuple[str, tuple[int, int | None, float]], list[str]]:
        """The keys of the selections that include an arm at a setting."""
        return map_selection_keys(self.selections)

    @property
    def selector(self) -> ChartSelector:
        """The drop-down list of settings; it omits settings without rows."""
        groups: dict[str, dict[str, str]] = {}
        for each in self.selections:
            if any((arm.name, setting) in self.groups for arm, setting in each.settings.items()):
                text = f"depth {each.depth}: {each.label} ({each.outcome})"
                groups.setdefault(f"depth {each.depth}", {})[each.key] = text
        keys = [key for group in groups.values() for key in group]
        default = self.default.key if self.default.key in keys else (keys or [""])[0]
        return ChartSelector("show", "depth and setting", groups, default)


def build_loss_charts(data: ComparisonCharts) -> ChartGroup | Note:
    """Return the charts of training and validation loss with their data as tables."""
    if not data.groups:
        return Note("No losses yet: no cell has started.")
    task, shared_data = data.study.task, data.study.shared_data
    baseline = math.nan if shared_data is None else task.objective.to_loss(shared_data.baseline)
    unit = f" ({task.loss_unit})" if task.loss_unit else ""
    is_loss = task.objective.column == VALIDATION_LOSS.column
    arms = list(data.arm_styles.values())
    notes = {
        "train": _training_loss_note(data),
        "valid": "Loss on held-out data." if is_loss else "What arms are judged by.",
    }
    charts = [
        replace(
            plot_losses(
                split,
                data.groups,
                data.selection_keys,
                arms=arms,
                baseline=baseline if is_loss or split == "valid" else None,
                title=title,
                axis_title=f"loss{unit}" if is_loss or split == "train" else task.objective.label,
            ),
            log=True,
            note=notes[split],
        )
        for split, title in _chart_titles(data).items()
    ]
    below = Collapsible(TABLE_TITLE, _loss_tables(data))
    return ChartGroup(charts, [data.selector], arms, below=[below])


def build_site_charts(data: ComparisonCharts) -> ChartGroup | Note:
    """Return the charts of per-site metrics with their data as a table."""
    default = data.default.key
    priority = [default, *(each.key for each in data.selections if each.key != default)]
    rows, steps, num_omitted = site_rows(
        data.study_curves, data.groups, data.selection_keys, keys_by_priority=priority
    )
    if not any(rows.values()):
        return Note("Site metrics: not measured.")
    arms = list(data.arm_styles.values())
    charts = [
        replace(
            plot_sites(measure, metric_rows, data.study_curves, arms=arms),
            note=SITE_METRICS[measure].note,
            log=SITE_METRICS[measure].log,
        )
        for measure, metric_rows in rows.items()
        if metric_rows
    ]
    first_step = (
        "at initialization (step 1)" if steps[0] <= 1 else f"first measured (step {steps[0]:,})"
    )
    step_labels = {str(step): f"step {step:,}" for step in steps} | {str(steps[0]): first_step}
    selectors = [data.selector, ChartSelector("step", "step", {"": step_labels}, str(steps[0]))]
    stacks = list(data.study_curves.sites)
    if len(stacks) > 1:
        selectors.append(ChartSelector("stack", "stack", {"": {s: s for s in stacks}}, stacks[-1]))
    below = Collapsible(TABLE_TITLE, _site_tables(rows, steps, num_omitted))
    return ChartGroup(charts, selectors, arms, log=True, below=[below])


def _chart_titles(data: ComparisonCharts) -> dict[str, str]:
    label = data.study.task.objective.label
    return {"train": "Training loss", "valid": label[:1].upper() + label[1:]}


def _training_loss_note(data: ComparisonCharts) -> str:
    curves = data.study_curves
    sentences = []
    if data.study.spec.seeds > 1:
        sentences.append(
            "Thin lines: single seeds. Thick line: moving average of their mean, up to the last "
            "step that all seeds share."
        )
    task = data.study.task
    name = "loss" if task.objective == VALIDATION_LOSS else task.objective.label
    sentences.append(
        f"Dashed line: the baseline, which is the {name} of {task.baseline_description}."
    )
    if any(cell.outcome.state in ("diverged", "crashed") for cell in curves.cells):
        sentences.append("A cross marks the last finite loss of a cell that diverged or crashed.")
    if curves.num_drawn < curves.num_points:
        sentences.append(drawn_values_note(curves.num_drawn, curves.num_points))
    sentences.append(nonfinite_note(curves.num_nonfinite))
    return " ".join(filter(None, sentences))


def _loss_tables(data: ComparisonCharts) -> list[Table | Note]:
    tables: list[Table | Note] = []
    for split, title in _chart_titles(data).items():
        means = {
            key: dict(mean_over_seeds([cell.losses(split) for cell in cells]))
            for key, cells in data.groups.items()
        }
        steps = evenly_spaced(
            sorted({step for mean in means.values() for step in mean}), MAX_STEP_COLUMNS
        )
        lines: list[list[object]] = []
        for (arm, (depth, warmup, lr)), mean in means.items():
            values = [format_number(mean.get(step), missing=MISSING) for step in steps]
            warmup_text = "own" if warmup is None else str(warmup)
            lines.append([data.arm_styles[arm], str(depth), warmup_text, f"{lr:g}", *values])
        head = ["arm", "depth", "warm-up", "lr", *(f"step {step:,.0f}" for step in steps)]
        tables.append(
            Table(f"{title}, mean over seeds", head, lines[:MAX_TABLE_ROWS], wide=True, tall=True)
        )
    contents = f"at most {MAX_STEP_COLUMNS} steps for each arm and setting"
    return [*tables, Note(_table_note(len(data.groups), contents))]


def _site_tables(
    rows: dict[str, Rows], steps: Sequence[int], num_omitted: int
) -> list[Table | Note]:
    """Return a table of the first and the last site at the first and the last step."""
    shown_steps = {str(steps[0]), str(steps[-1])}
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for measure, metric_rows in rows.items():
        for row in metric_rows:
            if row["step"] in shown_steps:
                key = (row["arm"], row["at"], row["stack"], row["step"])
                first, last = (format_number(row["value"][n]) for n in (0, -1))
                lines.setdefault(key, {})[measure] = f"{first} … {last}"
    measures = [measure for measure, metric_rows in rows.items() if metric_rows]
    titles = [SITE_METRICS[measure].title.lower() for measure in measures]
    head = ["arm", "setting", "stack", "step", *titles]
    body = [[*key, *(texts.get(m, MISSING) for m in measures)] for key, texts in lines.items()]
    title = "First … last site, mean over seeds, at the first and the last measured step"
    table = Table(title, head, body[:MAX_TABLE_ROWS], wide=True, tall=True)
    note = _table_note(len(body), "two sites at two steps for each arm and setting")
    if num_omitted:
        note += f" Site metrics of {num_omitted:,} settings are omitted to limit the page's size."
    return [table, Note(note)]


def _table_note(num_lines: int, contents: str) -> str:
    limit = (
        f"the first {MAX_TABLE_ROWS:,} of {num_lines:,} lines, "
        if num_lines > MAX_TABLE_ROWS
        else ""
    )
    return f"The table shows {limit}{contents}. `addnorm report --csv` exports every value."
