"""Partial dependence: the mean prediction over the values of one column."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.tabular.inspection.charts import save_chart

MAX_LINES = 60
"""Rows whose own lines are drawn behind the mean."""


@dataclass(frozen=True)
class PartialDependence:
    """Predictions of rows whose cell in one column is replaced.

    average[o, v] = mean over rows of f_o(row with the value v in the column)

    The other cells stay as they are, so that combinations may occur that no row has.
    """

    column: str
    kind: str
    """Type of the column."""
    values: list[Any]
    """Values of the column, increasing for numbers and datetimes, else the most frequent first."""
    individual: np.ndarray
    """(outputs, rows, values) predictions (individual conditional expectation)."""
    outputs: list[str]
    """Name of each output: the classes, the quantiles, the targets, or "prediction"."""

    @property
    def average(self) -> np.ndarray:
        """Mean over the rows, (outputs, values)."""
        return np.asarray(self.individual.mean(1))

    def chart(self, output: int = -1) -> Any:
        """Return the dependence of one output as an Altair chart."""
        import altair as alt

        if not -len(self.outputs) <= output < len(self.outputs):
            raise UserError(
                f"output: expected an index of {len(self.outputs)} outputs, got {output}"
            )
        is_ordered = self.kind in ("numeric", "datetime")
        texts = [_to_json(value) for value in self.values]
        mean = [
            {"value": value, "prediction": float(each)}
            for value, each in zip(texts, self.average[output], strict=True)
        ]
        axis = {"numeric": "value:Q", "datetime": "value:T"}.get(self.kind, "value:N")
        x = alt.X(axis, title=self.column, sort=None if not is_ordered else alt.Undefined)
        y = alt.Y(
            "prediction:Q",
            title=f"mean prediction of {self.outputs[output]}",
            scale=alt.Scale(zero=False),
        )
        base = alt.Chart({"values": mean}).encode(x=x, y=y)
        if not is_ordered:
            return base.mark_bar(color="#0072b2").properties(width=360)
        step = max(1, self.individual.shape[1] // MAX_LINES)
        lines = [
            {"value": value, "prediction": float(each), "row": row}
            for row, line in enumerate(self.individual[output][::step])
            for value, each in zip(texts, line, strict=True)
        ]
        behind = (
            alt.Chart({"values": lines})
            .mark_line(color="#999999", opacity=0.25, strokeWidth=1)
            .encode(x=x, y=y, detail="row:N")
        )
        return alt.layer(behind, base.mark_line(color="#0072b2", strokeWidth=3)).properties(
            width=360
        )

    def save(self, path: str | Path, output: int = -1) -> Path:
        """Write the chart of an output to a .svg, .png, .html or .json file."""
        return save_chart(self.chart(output), path)


def compute_dependence(
    model: Any, X: Any, column: Any, *, max_values: int, max_rows: int
) -> PartialDependence:
    """Compute the partial dependence of a fitted estimator.

    Args:
        model: fitted estimator
        X: checked table, a pandas frame or an array
        column: name or position of the column
        max_values: largest number of values of the column
        max_rows: largest number of rows, evenly spaced
    """
    names, kinds = model.encoder_.names, model.encoder_.kinds
    index = column_index(names, column)
    kind = kinds[index]
    if kind == "string":
        raise UserError(
            f"column: expected a column with numbers, datetimes or categories, got {column!r} of "
            "type string"
        )
    for name, value in (("max_values", max_values), ("max_rows", max_rows)):
        if not isinstance(value, int) or value < 1:
            raise UserError(f"{name}: expected an integer >= 1, got {value!r}")
    step = max(1, -(-len(X) // max_rows))
    rows = X.iloc[::step] if hasattr(X, "iloc") else X[::step]
    values = _choose_values(X, model.encoder_, index, max_values)
    predictions = []
    for value in values:
        changed = rows.copy()
        if hasattr(changed, "iloc"):
            changed.isetitem(index, [value] * len(changed))
        else:
            changed[:, index] = value
        predictions.append(_predict(model, changed))
    outputs = _output_names(model, predictions[0].shape[1])
    individual = np.stack(predictions, 2).transpose(1, 0, 2)
    return PartialDependence(names[index], kind, values, individual, outputs)


def column_index(names: Any, column: Any) -> int:
    """Return the position of a column that is given by name or by position."""
    if str(column) in names:
        return list(names).index(str(column))
    if isinstance(column, int | np.integer) and 0 <= int(column) < len(names):
        return int(column)
    raise UserError(unknown_name_message("column", str(column), names))


def _choose_values(X: Any, encoder: Any, index: int, count: int) -> list[Any]:
    """Return values of a column: evenly spaced ranks, or the most frequent categories."""
    import pandas

    column = encoder.read(X)[index]
    raw = X.iloc[:, index] if hasattr(X, "iloc") else pandas.Series(X[:, index])
    if column.values.dtype == np.float64:
        present = np.flatnonzero(~np.isnan(column.values))
        if not len(present):
            raise UserError(f"X: expected a value in column {column.name!r}, got none")
        order = present[np.argsort(column.values[present], kind="stable")]
        # Without the outermost 1 % at each end, where few rows are.
        ranks = np.linspace(0.01, 0.99, count) * (len(order) - 1)
        chosen = order[np.unique(ranks.round().astype(int))]
        _, first = np.unique(column.values[chosen], return_index=True)
        return [raw.iloc[int(chosen[each])] for each in first]
    values = raw[[each is not None for each in column.values]].value_counts()
    if not len(values):
        raise UserError(f"X: expected a value in column {column.name!r}, got none")
    return values.index.tolist()[:count]


def _predict(model: Any, X: Any) -> np.ndarray:
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(X))
    predictions = np.asarray(model.predict(X))
    return predictions.reshape(len(predictions), -1)


def _output_names(model: Any, count: int) -> list[str]:
    if hasattr(model, "classes_"):
        return [str(each) for each in model.classes_]
    if model.quantiles is not None:
        return [f"quantile {each:g}" for each in model.quantiles]
    return ["the target"] if count == 1 else [f"target {number}" for number in range(count)]


def _to_json(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
