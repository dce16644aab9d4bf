"""The page of a fitted table model: scores, loss, calibration, importance and architecture."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import altair as alt
import numpy as np

from addnorm.report.charts.base import VALUES, assemble_chart, named_data
from addnorm.report.charts.curves import plot_loss
from addnorm.report.charts.explanations import explanation_sections
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.html_figure import diagram_figure
from addnorm.report.diagram.label_text import format_formula
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.html.page import (
    Chart,
    CollapsibleText,
    Facts,
    Headline,
    Note,
    Part,
    Section,
    Table,
    render_page,
    write_page,
)
from addnorm.tabular.bagged_model import list_networks
from addnorm.tabular.fit_run import FitResult, format_param
from addnorm.tabular.inspection.calibration import Reliability
from addnorm.wirings.base import registry as wirings

PAGE_FILE = "report.html"
MAX_IMPORTANCE_COLUMNS = 30
"""Maximum number of columns in the chart of importances."""
BAR_HEIGHT_PIXELS = 18
HIGHER_IS_BETTER = ("accuracy", "auc", "r2")
METRIC_LABELS = {"auc": "AUC", "r2": "R²"}
"""Display names of metrics whose name is not readable text."""


def write_fit_report(folder: str | Path, fitted: FitResult) -> Path:
    """Write `report.html` into the output folder of `addnorm fit`."""
    return write_page(Path(folder) / PAGE_FILE, render_fit_page(fitted))


def render_fit_page(fitted: FitResult) -> str:
    """Return the page of a fitted estimator as HTML."""
    config, module = fitted.config, fitted.estimator.module_
    scores = fitted.scores.get("addnorm", {})
    numbers = {
        metric_label(name): f"{value:.4g}" for name, value in scores.items() if name != "seconds"
    }
    return render_page(
        f"Prediction of {config.target} from {Path(config.table).name}",
        about=f"{module.config.model} with {module.config.wiring}, fitted to {fitted.trained:,} "
        "rows",
        key_numbers={"rows": f"{fitted.trained:,}", **numbers},
        sections=list(fit_sections(fitted)),
    )


def fit_sections(fitted: FitResult) -> Iterator[Section]:
    """Yield the sections of the page of a fit."""
    yield Section("Summary", [_headline(fitted)])
    if fitted.scores and "gradient boosting" not in fitted.scores:
        yield Section("Scores on held-out rows", [_scores(fitted.scores)])
    elif fitted.scores:
        yield Section(
            "Comparison with gradient boosting",
            [_scores(fitted.scores)],
            about="Gradient boosting uses its default parameters and the same training rows. "
            "Scores are measured on held-out rows.",
        )
    yield Section("Training", [_loss_chart(fitted)])
    if fitted.reliability is not None:
        yield Section(
            "Calibration",
            [_reliability(fitted.reliability)],
            about="On the diagonal, predicted probabilities match observed frequencies. Expected "
            f"calibration error {fitted.reliability.error:.3f}; temperature "
            f"{fitted.estimator.temperature_:.2f}.",
        )
    yield Section("Feature importance", [_importance(fitted)], about=_describe_importance(fitted))
    yield from explanation_sections(fitted)
    yield Section("Model", _model_parts(fitted))
    yield Section("Columns", [_columns(fitted)])
    yield Section("Reproduce", [_reproduce_command(fitted)])


def _describe_importance(fitted: FitResult) -> str:
    if fitted.estimator.importance != "rollout":
        return "Permutation importance: increase of the loss when a column's values are shuffled."
    return (
        "Attention rollout: fraction of the row token that comes from each column. It ignores "
        "signs and feed-forward sub-layers; importance=permutation measures the effect on the "
        "loss instead."
    )


def _headline(fitted: FitResult) -> Part:
    if not fitted.scores:
        return Headline(["No rows were held out, so the error on new rows is unknown."])
    ours, trees = fitted.scores["addnorm"], fitted.scores.get("gradient boosting")
    metric = next(iter(ours))
    label = metric_label(metric)
    result = f"{label[0].upper()}{label[1:]} {ours[metric]:.4g} on {fitted.tested:,} held-out rows."
    if trees is None:
        return Headline([result], [fitted.note])
    if ours[metric] == trees[metric]:
        relation = "equal"
    elif (trees[metric] > ours[metric]) == (metric in HIGHER_IS_BETTER):
        relation = "better"
    else:
        relation = "worse"
    return Headline(
        [result],
        [
            f"Gradient boosting: {trees[metric]:.4g}, {relation}. With one split and one seed, a "
            "small difference can be noise."
        ],
    )


def metric_label(name: str) -> str:
    """Return the display name of a metric."""
    return METRIC_LABELS.get(name, name.replace("_", " "))


def _scores(scores: Mapping[str, Mapping[str, float]]) -> Table:
    metrics = list(next(iter(scores.values())))
    rows = [
        (model, *(f"{each[name]:.4g}" if name in each else "" for name in metrics))
        for model, each in scores.items()
    ]
    return Table("", ("model", *map(metric_label, metrics)), rows, wide=True)


def _loss_chart(fitted: FitResult) -> Chart | Note:
    history = fitted.estimator.history_
    train = [(row["epoch"], row["train"]) for row in history]
    valid = [(row["epoch"], row["valid"]) for row in history if "valid" in row]
    return plot_loss(train, valid, title="Loss over epochs", y="loss", x="epoch")


def _reliability(reliability: Reliability) -> Chart:
    values = [
        {"predicted": float(predicted), "observed": float(observed), "rows": int(rows)}
        for predicted, observed, rows in zip(
            reliability.predicted, reliability.observed, reliability.rows, strict=True
        )
    ]
    unit_scale, axis = alt.Scale(domain=[0, 1]), alt.Axis(tickCount=5, format="~g")
    x = alt.X("predicted:Q", scale=unit_scale, axis=axis, title="predicted probability")
    y = alt.Y("observed:Q", scale=unit_scale, axis=axis, title="observed frequency")
    base = alt.Chart(named_data(VALUES)).encode(x=x, y=y)
    tooltip = [
        alt.Tooltip("predicted:Q", format=".3f"),
        alt.Tooltip("observed:Q", format=".3f"),
        alt.Tooltip("rows:Q", format=","),
    ]
    diagonal = (
        alt.Chart(named_data("diagonal"))
        .mark_line(strokeDash=[4, 4], color="var(--quiet)", aria=False)
        .encode(x=x, y=y)
    )
    line = base.mark_line(color="var(--blue)", aria=False)
    points = base.mark_circle(color="var(--blue)", size=70, aria=False).encode(tooltip=tooltip)
    ends = [{"predicted": end, "observed": end} for end in (0.0, 1.0)]
    return assemble_chart(
        "Reliability diagram",
        [line, diagonal, points],
        notes=[],
        values={VALUES: values, "diagonal": ends},
    )


def _importance(fitted: FitResult) -> Chart:
    names = fitted.estimator.encoder_.names
    importances = fitted.estimator.feature_importances_
    order = np.argsort(-importances, kind="stable")[:MAX_IMPORTANCE_COLUMNS]
    values = [{"column": names[i], "importance": float(importances[i])} for i in order]
    bars = (
        alt.Chart(named_data(VALUES))
        .mark_bar(color="var(--blue)", aria=False)
        .encode(
            x=alt.X(
                "importance:Q",
                title="fraction of the total importance",
                axis=alt.Axis(tickCount=6, format="~g"),
            ),
            y=alt.Y("column:N", title=None, sort=[str(each["column"]) for each in values]),
            tooltip=[alt.Tooltip("column:N"), alt.Tooltip("importance:Q", format=".3f")],
        )
    )
    num_omitted = len(names) - len(order)
    notes = [f"{num_omitted} less important columns are omitted."] if num_omitted > 0 else []
    chart = assemble_chart("Importance of columns", [bars], notes=notes, values={VALUES: values})
    height = BAR_HEIGHT_PIXELS * len(values)
    return replace(chart, spec={**chart.spec, "height": height}, wide=True)


def _model_parts(fitted: FitResult) -> list[Part]:
    networks = list_networks(fitted.estimator.module_)
    module = networks[0]
    config, plan = module.config, module.stacks[0].plan
    block = build_block_diagram(config.wiring, depth=config.depth, kinds=plan.kinds)
    card = wirings.card(wirings.resolve(config.wiring).name)
    facts = {
        "model": config.model,
        "wiring": config.wiring,
        "formula": format_formula(card.formula),
        "norm": config.norm,
        "numeric": config.numeric,
        "dim": str(config.dim),
        "depth": str(config.depth),
        "heads": str(config.heads),
        "members": str(config.members),
        "networks": str(len(networks)),
        "parameters": f"{sum(p.numel() for each in networks for p in each.parameters()):,}",
        "epochs": str(len(fitted.estimator.history_)),
    }
    for name in module.unused_fields:
        facts.pop(name, None)
    return [Facts("Architecture", facts), diagram_figure("Block diagram", [compute_layout(block)])]


def _columns(fitted: FitResult) -> Table:
    encoder = fitted.estimator.encoder_
    rows = [
        (name, kind, f"{importance:.3f}")
        for name, kind, importance in zip(
            encoder.names, encoder.kinds, fitted.estimator.feature_importances_, strict=True
        )
    ]
    return Table("", ("column", "type", "importance"), rows, wide=True, tall=len(rows) > 20)


def _reproduce_command(fitted: FitResult) -> CollapsibleText:
    config = fitted.config
    params = [
        f"{name}={format_param(value)}"
        for name, value in config.params.items()
        if name != "column_types"
    ]
    column_types = [
        argument
        for name, kind in (config.params.get("column_types") or {}).items()
        for argument in ("--column-type", f"{name}={kind}")
    ]
    options = ["--target", config.target, "--task", config.task, *column_types]
    options += ["--test-size", f"{config.holdout:g}", "--seed", str(config.seed)]
    for name, columns in (("--drop", config.drop), ("--id", config.ids)):
        options += [argument for column in columns for argument in (name, column)]
    command = shlex.join(["addnorm", "fit", config.table, *params, *options])
    return CollapsibleText("Command that repeats this fit bit for bit", command)
