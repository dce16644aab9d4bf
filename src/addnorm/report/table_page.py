"""The page of a fit to a table: how good, how sure, what mattered, what is wired."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np

from addnorm.report.charts.base import VALUES, assemble_chart, named_data
from addnorm.report.charts.run import plot_loss
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.svg import render_svg
from addnorm.report.diagram.symbols import format_formula
from addnorm.report.html.page import (
    Chart,
    CollapsibleText,
    Facts,
    Figure,
    Headline,
    Note,
    Part,
    Section,
    Table,
    render_page,
    write_page,
)
from addnorm.tabular.fit_run import FitResult, format_param
from addnorm.tabular.inspection.calibration import Reliability
from addnorm.tabular.inspection.importance import ATTENTION_MODELS
from addnorm.wirings.base import registry as wirings

PAGE_FILE = "report.html"
MAX_IMPORTANCE_COLUMNS = 30
"""Columns whose importance is drawn, at most."""
HIGHER_IS_BETTER = ("accuracy", "auc", "r2")


def write_fit_report(folder: str | Path, fitted: FitResult) -> Path:
    """Write `report.html` into the folder of a fit."""
    return write_page(Path(folder) / PAGE_FILE, render_fit_page(fitted))


def render_fit_page(fitted: FitResult) -> str:
    """The page as text."""
    config, module = fitted.config, fitted.estimator.module_
    own = fitted.scores.get("addnorm", {})
    figures = {name: f"{value:.4g}" for name, value in own.items() if name != "seconds"}
    return render_page(
        f"{config.target} in {Path(config.table).name}",
        about=f"{module.config.model} with {module.config.wiring}, {fitted.trained:,} rows",
        figures={"rows": f"{fitted.trained:,}", **figures},
        sections=list(_sections(fitted)),
    )


def _sections(fitted: FitResult) -> Iterator[Section]:
    yield Section("The answer", [_headline(fitted)])
    if fitted.scores:
        yield Section(
            "Beside gradient boosting",
            [_scores(fitted.scores)],
            about="Gradient boosting with its defaults, on the same rows; measured on rows neither "
            "has seen.",
        )
    yield Section("How training went", [_loss_chart(fitted)])
    if fitted.reliability is not None:
        yield Section(
            "How sure, and how right",
            [_reliability(fitted.reliability)],
            about="On the diagonal, probabilities mean what they say. Expected calibration error "
            f"{fitted.reliability.error:.3f}; temperature {fitted.estimator.temperature_:.2f}.",
        )
    yield Section(
        "What mattered",
        [_importance(fitted)],
        about=_describe_importance(fitted),
    )
    yield Section("What is wired", _model_parts(fitted))
    yield Section("The columns", [_columns(fitted)])
    yield Section("Again", [_reproduce_command(fitted)])


def _describe_importance(fitted: FitResult) -> str:
    rolled = fitted.estimator.module_.config.model in ATTENTION_MODELS
    if fitted.estimator.importance == "permutation" or not rolled:
        return "How much the loss grows when a column's cells change places."
    return (
        "How much of each column reaches the row's token through attention (rollout); it knows "
        "neither signs nor feed-forwards. importance=permutation asks the loss instead."
    )


def _headline(fitted: FitResult) -> Part:
    if not fitted.scores:
        return Headline(["Nothing was held out, so nothing is known of new rows."])
    ours, trees = fitted.scores["addnorm"], fitted.scores.get("gradient boosting")
    measure = next(iter(ours))
    if trees is None:
        return Headline(
            [f"{measure} {ours[measure]:.4g} on {fitted.tested:,} rows that were held out."],
            [fitted.note],
        )
    better = (ours[measure] > trees[measure]) == (measure in HIGHER_IS_BETTER)
    return Headline(
        [f"{measure} {ours[measure]:.4g} on {fitted.tested:,} rows that were held out."],
        [
            f"Gradient boosting: {trees[measure]:.4g}, "
            f"{'worse' if better else 'better'} or equal. One split and one seed: a difference "
            "this page cannot tell from chance if it is small."
        ],
    )


def _scores(scores: Mapping[str, Mapping[str, float]]) -> Table:
    measures = list(next(iter(scores.values())))
    rows = [
        (model, *(f"{each[name]:.4g}" if name in each else "" for name in measures))
        for model, each in scores.items()
    ]
    return Table("Scores", ("", *measures), rows, wide=True)


def _loss_chart(fitted: FitResult) -> Chart | Note:
    history = fitted.estimator.history_
    train = [(row["epoch"], row["train"]) for row in history]
    valid = [(row["epoch"], row["valid"]) for row in history if "valid" in row]
    made = plot_loss(train, valid, title="Loss over epochs")
    if isinstance(made, Chart):  # its axes speak of steps and nats; here they are others
        return Chart(made.title, _rename_axes(made.spec), made.note, made.wide)
    return made


def _rename_axes(spec: Any) -> Any:
    if isinstance(spec, Mapping):
        names = {"step": "epoch", "loss (nats)": "loss", "loss (nats), log": "loss, log"}
        return {
            key: names[each] if key == "title" and each in names else _rename_axes(each)
            for key, each in spec.items()
        }
    return [_rename_axes(each) for each in spec] if isinstance(spec, list) else spec


def _reliability(reliability: Reliability) -> Chart:
    values = [
        {"said": float(said), "true": float(true), "rows": int(rows)}
        for said, true, rows in zip(
            reliability.predicted, reliability.observed, reliability.rows, strict=True
        )
    ]
    share = alt.Scale(domain=[0, 1])
    base = alt.Chart(named_data(VALUES)).encode(
        x=alt.X("said:Q", scale=share, title="probability that was said"),
        y=alt.Y("true:Q", scale=share, title="share that came true"),
    )
    told = [
        alt.Tooltip("said:Q", format=".3f"),
        alt.Tooltip("true:Q", format=".3f"),
        alt.Tooltip("rows:Q", format=","),
    ]
    ends = [{"said": 0.0, "true": 0.0}, {"said": 1.0, "true": 1.0}]
    even = alt.Chart(named_data("ends")).mark_line(
        strokeDash=[4, 4], color="var(--quiet)", aria=False
    )
    even = even.encode(x=alt.X("said:Q", scale=share), y=alt.Y("true:Q", scale=share))
    line = base.mark_line(color="var(--blue)", aria=False)
    points = base.mark_circle(color="var(--blue)", size=70, aria=False).encode(tooltip=told)
    return assemble_chart(
        "Reliability", [line, even, points], notes=[], values={VALUES: values, "ends": ends}
    )


def _importance(fitted: FitResult) -> Chart:
    names = fitted.estimator.encoder_.names
    shares = fitted.estimator.feature_importances_
    order = np.argsort(-shares, kind="stable")[:MAX_IMPORTANCE_COLUMNS]
    values = [{"column": names[place], "share": float(shares[place])} for place in order]
    bars = (
        alt.Chart(named_data(VALUES))
        .mark_bar(color="var(--blue)", aria=False)
        .encode(
            x=alt.X("share:Q", title="share of all importance"),
            y=alt.Y("column:N", title=None, sort=[str(each["column"]) for each in values]),
            tooltip=[alt.Tooltip("column:N"), alt.Tooltip("share:Q", format=".3f")],
        )
    )
    left = len(names) - len(order)
    notes = [f"{left} columns that mattered less are not shown."] if left > 0 else []
    chart = assemble_chart("Importance of columns", [bars], notes=notes, values={VALUES: values})
    return Chart(chart.title, {**chart.spec, "height": {"step": 18}}, chart.note, wide=True)


def _model_parts(fitted: FitResult) -> list[Part]:
    module = fitted.estimator.module_
    config, plan = module.config, module.stacks[0].plan
    made = [
        compute_layout(build_block_diagram(config.wiring, depth=config.depth, kinds=plan.kinds))
    ]
    card = wirings.card(wirings.resolve(config.wiring).name)
    facts = {
        "model": config.model,
        "wiring": config.wiring,
        "formula": format_formula(card.formula),
        "norm": config.norm,
        "numbers": config.numeric,
        "dim": str(config.dim),
        "depth": str(config.depth),
        "heads": str(config.heads),
        "parameters": f"{sum(p.numel() for p in module.parameters()):,}",
        "epochs": str(len(fitted.estimator.history_)),
    }
    for name in module.unused_fields:  # what the model does not have is not told
        facts.pop({"numeric": "numbers"}.get(name, name), None)
    picture = Figure("The block", render_svg(made, theme="light"), render_svg(made, theme="dark"))
    return [Facts("The model", facts), picture]


def _columns(fitted: FitResult) -> Table:
    encoder = fitted.estimator.encoder_
    rows = [
        (name, kind, f"{share:.3f}")
        for name, kind, share in zip(
            encoder.names, encoder.kinds, fitted.estimator.feature_importances_, strict=True
        )
    ]
    return Table("Columns", ("column", "type", "importance"), rows, wide=True, tall=len(rows) > 20)


def _reproduce_command(fitted: FitResult) -> CollapsibleText:
    config = fitted.config
    keys = [
        f"{name}={format_param(value)}"
        for name, value in config.params.items()
        if name != "column_types"
    ]
    types = [
        part
        for name, kind in (config.params.get("column_types") or {}).items()
        for part in ("--column-type", f"{name}={kind}")
    ]
    asked = ["--target", config.target, "--task", config.task, *types]
    drawn = ["--test-size", f"{config.holdout:g}", "--seed", str(config.seed)]
    command = shlex.join(["addnorm", "fit", config.table, *keys, *asked, *drawn])
    return CollapsibleText("The command that does this again, to the same bits", command)
