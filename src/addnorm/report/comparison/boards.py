"""The two boards of a comparison: losses over steps, and the inside from site to site."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from addnorm.comparison.analysis.study import Study
from addnorm.report.comparison.cell_curves import StudyCurves, mean_over_seeds
from addnorm.report.comparison.curves import Groups, Rows, group_by_setting, map_selection_keys
from addnorm.report.comparison.loss_charts import loss_chart
from addnorm.report.comparison.selections import Selection, build_selections, find_most_contrasting
from addnorm.report.comparison.site_charts import SITE_CHART_SETTINGS, site_chart, site_rows
from addnorm.report.downsample import evenly_spaced
from addnorm.report.html.chart_groups import ChartGroup, ChartSelector
from addnorm.report.html.page import Collapsible, Note, Table
from addnorm.report.theme import ArmStyle, arm_styles

MAX_TABLE_ROWS = 400
"""Rows of a table behind a chart."""
MAX_STEP_COLUMNS = 6
METRIC_EXPLANATIONS = {
    "gradient_norm": "How strongly each site is told to change. Where a line falls far towards "
    "the input, the sites there hardly learn; where it rises far towards the output, the first "
    "large steps hit the last sites hardest.",
    "stream_variance": "How large the numbers in the stream are. Where it grows from site to site, "
    "late sites add little beside what is there already.",
    "dependency": "How much of what a site hands on is its own: 0, only the skip; 1, only its own "
    "branch. Where it stays high, a change of one site is felt in all that follow.",
    "update_ratio": "How large a step is beside the weights that it changes, so it depends on the "
    "learning rate and the warm-up.",
}
"""How to read each chart of the inside."""


@dataclass(frozen=True)
class ComparisonCharts:
    """All that the charts of a comparison are made of."""

    study: Study
    study_curves: StudyCurves
    groups: Groups
    arm_styles: dict[str, ArmStyle]
    selections: list[Selection]
    default: Selection

    @classmethod
    def from_study(cls, study: Study) -> "ComparisonCharts":
        """Read the rows of all cells."""
        traces, made = StudyCurves.from_study(study), build_selections(study)
        arms = arm_styles([arm.name for arm in study.spec.arms()])
        return cls(
            study, traces, group_by_setting(traces), arms, made, find_most_contrasting(study, made)
        )

    @property
    def contrasting_selections(self) -> list[Selection]:
        """The most telling setting at each depth."""
        depths = dict.fromkeys(each.depth for each in self.selections)
        return [
            find_most_contrasting(
                self.study, [each for each in self.selections if each.depth == depth]
            )
            for depth in depths
        ]

    @property
    def selector(self) -> ChartSelector:
        """The choice of a setting; those that have nothing to show are left out."""
        groups: dict[str, dict[str, str]] = {}
        for each in self.selections:
            if any((arm.name, at) in self.groups for arm, at in each.settings.items()):
                words = f"depth {each.depth}: {each.label} ({each.outcome})"
                groups.setdefault(f"depth {each.depth}", {})[each.key] = words
        every = [key for group in groups.values() for key in group]
        default = self.default.key if self.default.key in every else (every or [""])[0]
        return ChartSelector("show", "depth and setting", groups, default)


def build_loss_charts(comparison_charts: ComparisonCharts) -> ChartGroup | Note:
    """Training and validation loss, with their choices and their table."""
    if not comparison_charts.groups:
        return Note("Losses: no cell has begun.")
    ground = comparison_charts.study.shared_data
    baseline = ground.baseline if ground is not None else None
    arms, shown = (
        list(comparison_charts.arm_styles.values()),
        map_selection_keys(comparison_charts.selections),
    )
    charts = [
        replace(
            loss_chart(split, comparison_charts.groups, shown, arms=arms, baseline=baseline),
            log=True,
        )
        for split in ("train", "valid")
    ]
    charts[0] = replace(charts[0], note=_loss_note(comparison_charts))
    charts[1] = replace(charts[1], note="Measured on data that no arm is trained on.")
    below = Collapsible("The numbers behind these charts", _loss_tables(comparison_charts))
    return ChartGroup("losses", charts, [comparison_charts.selector], arms, below=[below])


def build_site_charts(comparison_charts: ComparisonCharts) -> ChartGroup | Note:
    """What was measured at each site, with its choices and its table."""
    arms, shown = (
        list(comparison_charts.arm_styles.values()),
        map_selection_keys(comparison_charts.selections),
    )
    first = comparison_charts.default.key
    keep = [first, *(each.key for each in comparison_charts.selections if each.key != first)]
    rows, steps, cut = site_rows(
        comparison_charts.study_curves, comparison_charts.groups, shown, keys_by_priority=keep
    )
    if not any(rows.values()):
        return Note("The inside: not measured.")
    charts = []
    for measure, found in rows.items():
        if found:
            chart = site_chart(measure, found, comparison_charts.study_curves, arms=arms)
            charts.append(
                replace(
                    chart, note=METRIC_EXPLANATIONS[measure], log=SITE_CHART_SETTINGS[measure][2]
                )
            )
    stacks = list(comparison_charts.study_curves.sites)
    named = {str(step): f"step {step:,}" for step in steps}
    named[str(steps[0])] = (
        "at initialisation (step 1)" if steps[0] <= 1 else f"first measured (step {steps[0]:,})"
    )
    choices = [
        comparison_charts.selector,
        ChartSelector("step", "when", {"": named}, str(steps[0])),
    ]
    if len(stacks) > 1:
        choices.append(ChartSelector("stack", "stack", {"": {s: s for s in stacks}}, stacks[-1]))
    below = Collapsible("The numbers behind these charts", _site_tables(rows, steps, cut))
    return ChartGroup("sites", charts, choices, arms, log=True, below=[below])


def _loss_note(comparison_charts: ComparisonCharts) -> str:
    told = []
    if comparison_charts.study.spec.seeds > 1:
        told.append("Thin: seeds. Thick: their mean, smoothed, as far as all of them go.")
    told.append(
        f"Dashed: the baseline, the loss of {comparison_charts.study.task.baseline_description}."
    )
    if any(
        trace.outcome.state in ("diverged", "crashed")
        for trace in comparison_charts.study_curves.cells
    ):
        told.append("A cross marks the last value of a training that diverged or crashed.")
    if comparison_charts.study_curves.num_drawn < comparison_charts.study_curves.num_points:
        told.append(
            f"{comparison_charts.study_curves.num_drawn:,} of {comparison_charts.study_curves.num_points:,} values are drawn, the lowest and "
            "highest of each stretch."
        )
    if comparison_charts.study_curves.num_nonfinite:
        told.append(
            f"{comparison_charts.study_curves.num_nonfinite:,} values are not finite and left out."
        )
    return " ".join(told)


def _loss_tables(comparison_charts: ComparisonCharts) -> list[Table | Note]:
    made: list[Table | Note] = []
    parts: list[Note] = []
    for split, title in (("train", "Training loss"), ("valid", "Validation loss")):
        means = {
            place: dict(
                mean_over_seeds([t.full_train if split == "train" else t.valid for t in traces])
            )
            for place, traces in comparison_charts.groups.items()
        }
        steps = evenly_spaced(
            sorted({step for mean in means.values() for step in mean}), MAX_STEP_COLUMNS
        )
        lines: list[list[object]] = []
        for (arm, (depth, warmup, lr)), mean in means.items():
            values = [_format_number(mean.get(step)) for step in steps]
            warm = "own" if warmup is None else str(warmup)
            lines.append([comparison_charts.arm_styles[arm], str(depth), warm, f"{lr:g}", *values])
        head = ["arm", "depth", "warm-up", "lr", *(f"step {step:,.0f}" for step in steps)]
        table = Table(
            f"{title}, mean over seeds", head, lines[:MAX_TABLE_ROWS], wide=True, tall=True
        )
        made.append(table)
        parts = [Note(_table_note(len(lines), "six steps of each; every value is in the rows"))]
    return [*made, *parts]


def _site_tables(
    rows: dict[str, Rows], steps: Sequence[int], num_omitted: int
) -> list[Table | Note]:
    """First and last site at the first and the last step."""
    ends = {str(steps[0]), str(steps[-1])}
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for measure, found in rows.items():
        for row in found:
            if row["step"] in ends:
                place = (row["arm"], row["at"], row["stack"], row["step"])
                told = f"{_format_number(row['value'][0])} … {_format_number(row['value'][-1])}"
                lines.setdefault(place, {})[measure] = told
    measures = [measure for measure, found in rows.items() if found]
    head = [
        "arm",
        "at",
        "stack",
        "step",
        *(SITE_CHART_SETTINGS[measure][0].lower() for measure in measures),
    ]
    body = [[*place, *(told.get(m, "—") for m in measures)] for place, told in lines.items()]
    title = "First … last site, mean over seeds, at the first and the last measured step"
    table = Table(title, head, body[:MAX_TABLE_ROWS], wide=True, tall=True)
    told = _table_note(len(body), "two sites and two steps of each; every value is in the rows")
    if num_omitted:
        told += f" {num_omitted:,} settings of arms found no room on this page."
    return [table, Note(told)]


def _table_note(count: int, description: str) -> str:
    more = f"the first {MAX_TABLE_ROWS:,} of {count:,} lines, " if count > MAX_TABLE_ROWS else ""
    return f"Shown are {more}{description}, which `addnorm report --csv` writes as tables."


def _format_number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"
