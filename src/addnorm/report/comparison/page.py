"""The page of a comparison: summary, stability map, charts, arms, outputs, reproduction."""

from collections import Counter
from pathlib import Path

from addnorm.comparison import folder_layout as files
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.outcomes import STATES, format_rules
from addnorm.report.comparison.arm_cards import build_arm_cards
from addnorm.report.comparison.page_charts import (
    ComparisonCharts,
    build_loss_charts,
    build_site_charts,
)
from addnorm.report.comparison.reproduce import build_reproduce_parts, format_baseline
from addnorm.report.comparison.sample_outputs import build_sample_outputs
from addnorm.report.comparison.stability import build_stability_map
from addnorm.report.comparison.summary import build_summary_section
from addnorm.report.format import plural
from addnorm.report.html.page import Note, Section, render_page, write_page

STABILITY_NOTE = (
    "Outcome of every arm by depth, warm-up and learning rate. An arm that trains over a wide "
    "range of learning rates is easy to tune."
)
LOSS_NOTE = "Select a setting, switch arms on and off, hover over a curve to see its values."
SITES_NOTE = (
    "A site is the position of one sub-layer in the stack, counted from input to output. These "
    "charts show signal and gradient propagation at initialization and during training. To relate "
    "them to outcomes, select a setting at which some arms trained and others did not."
)


def write_comparison_report(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a finished or unfinished comparison."""
    folder = Path(folder)
    return write_page(folder / files.REPORT, render_comparison_page(Study.open(folder)))


def render_comparison_page(study: Study) -> str:
    """Return the page of a comparison as HTML."""
    data = ComparisonCharts.from_study(study)
    return render_page(
        f"Comparison of {plural(len(study.spec.arms()), 'arm')} on {study.task.noun}",
        about=_about(study),
        key_numbers=_key_numbers(study),
        warnings=_warnings(study),
        sections=[
            Section("Summary", build_summary_section(study, data.arm_styles)),
            Section(
                "Stability map",
                [build_stability_map(study, data.arm_styles), _rules(study)],
                STABILITY_NOTE,
            ),
            Section("Loss curves", [build_loss_charts(data)], LOSS_NOTE),
            Section("Site metrics", [build_site_charts(data)], SITES_NOTE),
            Section(
                "Arms",
                build_arm_cards(study),
                _describe_arms(study),
                narrow=True,
            ),
            Section(
                "Sample outputs",
                build_sample_outputs(study, data.arm_styles),
                "Outputs of all arms for the same held-out inputs." if study.task.is_drawn else "",
                narrow=True,
            ),
            Section(
                "Reproduce",
                build_reproduce_parts(study, data.arm_styles),
                "Commands, settings, data and environment of this comparison.",
            ),
        ],
    )


def _about(study: Study) -> str:
    spec = study.spec
    sentences = [
        "An arm is one arrangement of norms and residual connections; a cell is one training run.",
        f"Every cell trains for {spec.steps:,} steps on the same data.",
        f"Each setting runs with {plural(spec.seeds, 'seed')}; cells with the same seed see the "
        "data in the same order.",
    ]
    if study.task.has_free_names:  # what a function of the user does with a cell is its business
        sentences = [
            "An arm is one combination of values of the axes; a cell is one training run, a call "
            "of your function.",
            f"Every cell is asked for {spec.steps:,} steps.",
            f"Each setting runs with {plural(spec.seeds, 'seed')}.",
        ]
    if spec.mode == "halving":
        sentences.append(
            "The worse half of each arm's settings was stopped after a quarter of the steps, and "
            "again after half of them."
        )
    return " ".join([*sentences, f"Folder: {study.folder.resolve()}"])


def _key_numbers(study: Study) -> dict[str, str]:
    counts = Counter(each.state for each in study.cells)
    numbers = {"cells": f"{len(study.cells):,}"}
    return numbers | {state: f"{counts[state]:,}" for state in STATES if counts[state]}


def _warnings(study: Study) -> list[str]:
    waiting = sum(each.state == "waiting" for each in study.cells)
    if not waiting:
        return []
    if waiting == len(study.cells):
        return ["No cell has finished yet."]
    return [f"{waiting:,} of {len(study.cells):,} cells have not finished; results may change."]


def _rules(study: Study) -> Note:
    rules = format_rules(study.task.baseline_description, study.task.objective)
    if study.shared_data is None:
        return Note(rules)
    return Note(f"{rules} The baseline of this comparison is {format_baseline(study, 3)}.")


def _describe_arms(study: Study) -> str:
    if not study.task.is_drawn:
        return "The values of the axes, which your function received."
    depth = max(cell.depth for cell in study.spec.cells())
    return (
        f"One layer of each arm, drawn from the recorded forward pass of a {depth}-layer stack. N "
        "is the norm, f a sub-layer, x the residual stream."
    )
