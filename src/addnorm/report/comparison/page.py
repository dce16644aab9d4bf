"""The page of a comparison: the answer, the map, the curves, the inside, and how to do it again."""

from collections import Counter
from pathlib import Path

from addnorm.comparison import layout as files
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.outcomes import STATES, format_rules
from addnorm.report.comparison.arms import build_arm_cards, sample_outputs
from addnorm.report.comparison.boards import ComparisonCharts, build_loss_charts, build_site_charts
from addnorm.report.comparison.reproduce import build_reproduce_parts, format_baseline
from addnorm.report.comparison.stability import stability_map
from addnorm.report.comparison.summary import summary_section
from addnorm.report.html.page import Note, Section, render_page, write_page

LEARNING_RATE_NOTE = (
    "A learning rate is the size of a training step: too small and nothing is learnt in time, too "
    "large and training falls apart. Warm-up means that the first steps are small and grow to full "
    "size. An arrangement that trains over a wide range is easy to use."
)
SITES_NOTE = (
    "A site is the place of one sub-layer in the stack: attention or feed-forward, from the input "
    "to the output. These pictures show what the arrangement does to the model before it has "
    "learnt anything, and later. Compare the shape of a line with what became of its arm above: "
    "choose a setting at which some arms trained and others did not."
)


def write_comparison_report(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a comparison, also of one that still goes on."""
    folder = Path(folder)
    return write_page(folder / files.REPORT, render_comparison_page(Study.open(folder)))


def render_comparison_page(study: Study) -> str:
    """The page as text."""
    got = ComparisonCharts.from_study(study)
    return render_page(
        _title(study),
        about=_about(study),
        figures=_figures(study),
        warnings=_warnings(study),
        sections=[
            Section("The answer", summary_section(study, got.arm_styles)),
            Section(
                "What trains where",
                [stability_map(study, got.arm_styles), _rules(study)],
                LEARNING_RATE_NOTE,
            ),
            Section(
                "Loss curves",
                [build_loss_charts(got)],
                "The loss says how far the answers are from what was wanted: it should fall. "
                "Choose a setting, switch arms off and on, hover for values.",
            ),
            Section("Inside the models", [build_site_charts(got)], SITES_NOTE),
            Section(
                "The arms",
                build_arm_cards(study),
                f"One block of each, drawn from what a real stack of {_depth(study)} layers was "
                "seen doing. N is the norm, f a sub-layer, x the stream.",
                narrow=True,
            ),
            Section(
                "What they answer",
                sample_outputs(study, got.arm_styles),
                "Every arm got the same held-out inputs.",
                narrow=True,
            ),
            Section(
                "How to do it again",
                build_reproduce_parts(study, got.arm_styles),
                "Everything that decides the numbers of this page.",
            ),
        ],
    )


def _title(study: Study) -> str:
    arms = len(study.spec.arms())
    return f"Which arrangement trains? {arms} arm{'s' * (arms > 1)} on {study.task.noun}"


def _about(study: Study) -> str:
    spec = study.spec
    seeds = f"{spec.seeds} seeds of each setting" if spec.seeds > 1 else "one seed of each setting"
    same = "on the same data, for each seed in the same order"
    told = (
        "An arm is one way to wire norms and residual connections; a cell is one training of it. "
        f"All cells, {seeds}, get {spec.steps:,} steps {same}."
    )
    if spec.mode == "halving":
        told += " The worse half of each arm's settings was ended early, at a quarter and a half."
    return f"{told} The comparison in {study.folder.resolve()}"


def _figures(study: Study) -> dict[str, str]:
    counts = Counter(each.state for each in study.cells)
    told = {"cells": f"{len(study.cells):,}"}
    return told | {state: f"{counts[state]:,}" for state in STATES if counts[state]}


def _warnings(study: Study) -> list[str]:
    waiting = sum(each.state == "waiting" for each in study.cells)
    if not waiting:
        return []
    if waiting == len(study.cells):
        return ["Nothing has ended yet: this page fills as cells do."]
    return [f"{waiting:,} of {len(study.cells):,} cells have not ended: not the last word."]


def _rules(study: Study) -> Note:
    told = format_rules(study.task.baseline_description)
    if study.shared_data is None:
        return Note(told)
    return Note(f"{told} Here the baseline is {format_baseline(study, 3)}.")


def _depth(study: Study) -> int:
    return max(cell.depth for cell in study.spec.cells())
