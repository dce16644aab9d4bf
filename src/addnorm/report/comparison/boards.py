"""The two boards of a comparison: losses over steps, and the inside from site to site."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from addnorm.comparison.analysis.study import Study
from addnorm.report.comparison.cell_curves import Traces, mean_over_seeds
from addnorm.report.comparison.curves import Groups, Rows, grouped, shown_in
from addnorm.report.comparison.loss_charts import loss_chart
from addnorm.report.comparison.selections import Selection, most_telling, selections
from addnorm.report.comparison.site_charts import SITES, site_chart, site_rows
from addnorm.report.downsample import spread
from addnorm.report.html.chart_groups import Board, Choice
from addnorm.report.html.page import Folded, Note, Table
from addnorm.report.theme import Look, looks

MOST_LINES = 400
"""Rows of a table behind a chart."""
COLUMNS = 6
READ = {
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
class Gathered:
    """All that the charts of a comparison are made of."""

    study: Study
    traces: Traces
    groups: Groups
    looks: dict[str, Look]
    selections: list[Selection]
    default: Selection

    @classmethod
    def of(cls, study: Study) -> "Gathered":
        """Read the rows of all cells."""
        traces, made = Traces.read(study), selections(study)
        arms = looks([arm.name for arm in study.spec.arms()])
        return cls(study, traces, grouped(traces), arms, made, most_telling(study, made))

    @property
    def telling(self) -> list[Selection]:
        """The most telling setting at each depth."""
        depths = dict.fromkeys(each.depth for each in self.selections)
        return [
            most_telling(self.study, [each for each in self.selections if each.depth == depth])
            for depth in depths
        ]

    @property
    def chosen(self) -> Choice:
        """The choice of a setting; those that have nothing to show are left out."""
        groups: dict[str, dict[str, str]] = {}
        for each in self.selections:
            if any((arm.name, at) in self.groups for arm, at in each.settings.items()):
                words = f"depth {each.depth}: {each.told} ({each.outcome})"
                groups.setdefault(f"depth {each.depth}", {})[each.key] = words
        every = [key for group in groups.values() for key in group]
        default = self.default.key if self.default.key in every else (every or [""])[0]
        return Choice("show", "depth and setting", groups, default)


def loss_board(got: Gathered) -> Board | Note:
    """Training and validation loss, with their choices and their table."""
    if not got.groups:
        return Note("Losses: no cell has begun.")
    ground = got.study.ground
    baseline = ground.baseline if ground is not None else None
    arms, shown = list(got.looks.values()), shown_in(got.selections)
    charts = [
        replace(loss_chart(split, got.groups, shown, arms=arms, baseline=baseline), log=True)
        for split in ("train", "valid")
    ]
    charts[0] = replace(charts[0], note=_told_losses(got))
    charts[1] = replace(charts[1], note="Measured on data that no arm is trained on.")
    below = Folded("The numbers behind these charts", _loss_tables(got))
    return Board("losses", charts, [got.chosen], arms, below=[below])


def site_board(got: Gathered) -> Board | Note:
    """What was measured at each site, with its choices and its table."""
    arms, shown = list(got.looks.values()), shown_in(got.selections)
    first = got.default.key
    keep = [first, *(each.key for each in got.selections if each.key != first)]
    rows, steps, cut = site_rows(got.traces, got.groups, shown, keep=keep)
    if not any(rows.values()):
        return Note("The inside: not measured.")
    charts = []
    for measure, found in rows.items():
        if found:
            chart = site_chart(measure, found, got.traces, arms=arms)
            charts.append(replace(chart, note=READ[measure], log=SITES[measure][2]))
    stacks = list(got.traces.sites)
    named = {str(step): f"step {step:,}" for step in steps}
    named[str(steps[0])] = (
        "at initialisation (step 1)" if steps[0] <= 1 else f"first measured (step {steps[0]:,})"
    )
    choices = [got.chosen, Choice("step", "when", {"": named}, str(steps[0]))]
    if len(stacks) > 1:
        choices.append(Choice("stack", "stack", {"": {s: s for s in stacks}}, stacks[-1]))
    below = Folded("The numbers behind these charts", _site_tables(rows, steps, cut))
    return Board("sites", charts, choices, arms, log=True, below=[below])


def _told_losses(got: Gathered) -> str:
    told = []
    if got.study.spec.seeds > 1:
        told.append("Thin: seeds. Thick: their mean, smoothed, as far as all of them go.")
    told.append(f"Dashed: the baseline, the loss of {got.study.task.ignorant}.")
    if any(trace.judged.state in ("diverged", "crashed") for trace in got.traces.all):
        told.append("A cross marks the last value of a training that diverged or crashed.")
    if got.traces.kept < got.traces.points:
        told.append(
            f"{got.traces.kept:,} of {got.traces.points:,} values are drawn, the lowest and "
            "highest of each stretch."
        )
    if got.traces.lost:
        told.append(f"{got.traces.lost:,} values are not finite and left out.")
    return " ".join(told)


def _loss_tables(got: Gathered) -> list[Table | Note]:
    made: list[Table | Note] = []
    parts: list[Note] = []
    for split, title in (("train", "Training loss"), ("valid", "Validation loss")):
        means = {
            place: dict(mean_over_seeds([t.whole if split == "train" else t.valid for t in traces]))
            for place, traces in got.groups.items()
        }
        steps = spread(sorted({step for mean in means.values() for step in mean}), COLUMNS)
        lines: list[list[object]] = []
        for (arm, (depth, warmup, lr)), mean in means.items():
            values = [_number(mean.get(step)) for step in steps]
            warm = "own" if warmup is None else str(warmup)
            lines.append([got.looks[arm], str(depth), warm, f"{lr:g}", *values])
        head = ["arm", "depth", "warm-up", "lr", *(f"step {step:,.0f}" for step in steps)]
        table = Table(f"{title}, mean over seeds", head, lines[:MOST_LINES], wide=True, tall=True)
        made.append(table)
        parts = [Note(_shortened(len(lines), "six steps of each; every value is in the rows"))]
    return [*made, *parts]


def _site_tables(rows: dict[str, Rows], steps: Sequence[int], cut: int) -> list[Table | Note]:
    """First and last site at the first and the last step."""
    ends = {str(steps[0]), str(steps[-1])}
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for measure, found in rows.items():
        for row in found:
            if row["step"] in ends:
                place = (row["arm"], row["at"], row["stack"], row["step"])
                told = f"{_number(row['value'][0])} … {_number(row['value'][-1])}"
                lines.setdefault(place, {})[measure] = told
    measures = [measure for measure, found in rows.items() if found]
    head = ["arm", "at", "stack", "step", *(SITES[measure][0].lower() for measure in measures)]
    body = [[*place, *(told.get(m, "—") for m in measures)] for place, told in lines.items()]
    title = "First … last site, mean over seeds, at the first and the last measured step"
    table = Table(title, head, body[:MOST_LINES], wide=True, tall=True)
    told = _shortened(len(body), "two sites and two steps of each; every value is in the rows")
    if cut:
        told += f" {cut:,} settings of arms found no room on this page."
    return [table, Note(told)]


def _shortened(count: int, what: str) -> str:
    more = f"the first {MOST_LINES:,} of {count:,} lines, " if count > MOST_LINES else ""
    return f"Shown are {more}{what}, which `addnorm report --csv` writes as tables."


def _number(value: float | None) -> str:
    return "—" if value is None else f"{value:.4g}"
