"""Sections that explain a fit: partial dependence of columns, and effects on single predictions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import altair as alt
import numpy as np

from addnorm.report.charts.base import VALUES, assemble_chart, named_data
from addnorm.report.html.page import Chart, Section
from addnorm.tabular.fit_run import FitResult
from addnorm.tabular.inspection.dependence import PartialDependence
from addnorm.tabular.inspection.explanations import Explanation
from addnorm.tabular.training.regression_targets import TargetList

MAX_COLUMNS = 4
"""Columns with a chart of their partial dependence."""
MAX_VALUES = 12
EXPLAINED_ROWS = 2
"""Test rows whose predictions are explained."""
MAX_BARS = 8
BAR_HEIGHT_PIXELS = 20


def explanation_sections(fitted: FitResult) -> Iterator[Section]:
    """Yield the sections; none without test rows or for several targets."""
    estimator, sample = fitted.estimator, fitted.sample
    if sample is None or not len(sample) or isinstance(estimator.target_, TargetList):
        return
    importances, kinds = estimator.feature_importances_, estimator.encoder_.kinds
    columns = [
        int(index)
        for index in np.argsort(-importances, kind="stable")
        if importances[index] > 0
        and kinds[index] != "string"
        and sample.iloc[:, index].notna().any()
    ][:MAX_COLUMNS]
    if columns:
        yield Section(
            "Effect of columns",
            [
                dependence_chart(estimator.partial_dependence(sample, index, max_values=MAX_VALUES))
                for index in columns
            ],
            about="Partial dependence: the mean prediction of "
            f"{len(sample)} test rows if all had the same value in a column.",
        )
    explanation = estimator.explain(sample[:EXPLAINED_ROWS])
    yield Section(
        "Explained predictions",
        [effect_chart(explanation, row) for row in range(len(explanation.effects))],
        about="Effect of each cell: the prediction minus the mean prediction with the cells of "
        "training rows in its place, all other cells unchanged.",
    )


def dependence_chart(dependence: PartialDependence, output: int = -1) -> Chart:
    """Return the chart of one output."""
    values = [
        {"value": _to_json(value), "prediction": float(each)}
        for value, each in zip(dependence.values, dependence.average[output], strict=True)
    ]
    axes = {"numeric": "value:Q", "datetime": "value:T"}
    is_ordered = dependence.kind in axes
    x = alt.X(
        axes.get(dependence.kind, "value:N"),
        title=dependence.column,
        sort=alt.Undefined if is_ordered else None,
        axis=alt.Axis(labelOverlap=True, labelAngle=0, labelLimit=90),
        scale=alt.Scale(zero=False) if dependence.kind == "numeric" else alt.Undefined,
    )
    y = alt.Y(
        "prediction:Q",
        title=f"mean prediction of {dependence.outputs[output]}",
        scale=alt.Scale(zero=False),
        axis=alt.Axis(tickCount=5),
    )
    base = alt.Chart(named_data(VALUES)).encode(
        x=x,
        y=y,
        tooltip=[
            alt.Tooltip("value:N", title=dependence.column),
            alt.Tooltip("prediction:Q", format=".4g"),
        ],
    )
    layers = [base.mark_circle(color="var(--blue)", size=60, aria=False)]
    if is_ordered:
        layers.insert(0, base.mark_line(color="var(--blue)", aria=False))
    return assemble_chart(dependence.column, layers, notes=[], values={VALUES: values})


def effect_chart(explanation: Explanation, row: int) -> Chart:
    """Return the chart of the largest effects on one row."""
    effects = explanation.effects[row]
    largest = np.argsort(-np.abs(effects), kind="stable")[:MAX_BARS]
    values = [
        {
            "cell": f"{explanation.columns[each]} = {explanation.cells[row][each]}"[:60],
            "effect": float(effects[each]),
            "direction": "towards" if effects[each] >= 0 else "against",
        }
        for each in largest
    ]
    scale = alt.Scale(domain=["towards", "against"], range=["var(--blue)", "var(--orange)"])
    bars = (
        alt.Chart(named_data(VALUES))
        .mark_bar(aria=False)
        .encode(
            x=alt.X("effect:Q", title="effect", axis=alt.Axis(tickCount=5, format="~g")),
            y=alt.Y(
                "cell:N",
                title=None,
                sort=[str(each["cell"]) for each in values],
                axis=alt.Axis(labelLimit=240),
            ),
            color=alt.Color("direction:N", scale=scale, legend=None),
            tooltip=[alt.Tooltip("cell:N"), alt.Tooltip("effect:Q", format="+.4g")],
        )
    )
    title = f"Test row {row + 1}: {explanation.of[row]} {explanation.answers[row]:.4g}"
    chart = assemble_chart(title, [bars], notes=[], values={VALUES: values})
    return replace(chart, spec={**chart.spec, "height": BAR_HEIGHT_PIXELS * len(values)})


def _to_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
