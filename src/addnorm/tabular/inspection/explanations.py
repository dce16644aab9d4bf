"""Explanations of single predictions: the effect of each cell."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from addnorm.core.errors import UserError
from addnorm.models.tabular.table_batch import TableBatch
from addnorm.tabular.inspection.charts import save_chart

MAX_SHOWN_COLUMNS = 12
"""Largest number of columns in a chart."""
MAX_PRINTED_ROWS = 5


@dataclass(frozen=True)
class Explanation:
    """Effects of cells on predictions.

    effect[row, column] = f(row) - mean over r of f(row with the cell of reference row r)

    f is the predicted number, or the probability of the predicted class. The reference rows are
    training rows. An effect measures one cell with all other cells fixed, so the effects of a row
    need not sum to its prediction.
    """

    effects: np.ndarray
    """(rows, columns) effect of each cell."""
    answers: np.ndarray
    """(rows) predicted number, or probability of the class in `of`."""
    columns: list[str]
    """Column names."""
    cells: list[list[str]]
    """Formatted cells, by row and column."""
    of: list[str]
    """(rows) predicted class, or "the prediction" for a number."""

    def __str__(self) -> str:
        lines = [f"effects of {len(self.columns)} columns on {len(self.effects)} predictions"]
        for row, effects in enumerate(self.effects[:MAX_PRINTED_ROWS]):
            largest = np.argsort(-np.abs(effects))[:3]
            cells = (f"{self.columns[n]}={self.cells[row][n]} {effects[n]:+.3g}" for n in largest)
            lines.append(f"  {self.of[row]} {self.answers[row]:.4g}: {', '.join(cells)}")
        more = len(self.effects) - MAX_PRINTED_ROWS
        return "\n".join([*lines, *([f"  and {more} more rows"] if more > 0 else [])])

    def chart(self, row: int = 0) -> Any:
        """Return the largest effects on one row as an Altair bar chart."""
        import altair as alt

        if not 0 <= row < len(self.effects):
            raise UserError(
                f"row: expected an index below {len(self.effects)}, the number of explained rows, "
                f"got {row}"
            )
        largest = np.argsort(-np.abs(self.effects[row]))[:MAX_SHOWN_COLUMNS]
        table = [
            {
                "cell": f"{self.columns[column]} = {self.cells[row][column]}",
                "effect": float(self.effects[row, column]),
                "sign": "towards" if self.effects[row, column] >= 0 else "against",
            }
            for column in largest
        ]
        bars = alt.Chart({"values": table}).mark_bar()
        return bars.encode(
            x=alt.X("effect:Q", title=f"effect on {self.of[row]}"),
            y=alt.Y("cell:N", sort=[str(each["cell"]) for each in table], title=None),
            color=alt.Color(
                "sign:N",
                scale=alt.Scale(domain=["towards", "against"], range=["#0072b2", "#d55e00"]),
                legend=None,
            ),
        ).properties(width=360, title=f"{self.of[row]}: {self.answers[row]:.4g}")

    def save(self, path: str | Path, row: int = 0) -> Path:
        """Write the chart of a row to a .svg, .png, .html or .json file."""
        return save_chart(self.chart(row), path)


def column_effects(
    predict: Any, cells: TableBatch, reference: TableBatch, sources: list[int]
) -> np.ndarray:
    """Return the effect of every column on the prediction of every row, (rows, columns).

    Args:
        predict: maps (cells, row indices) to one value per row; the indices name the explained rows
        cells: rows to explain
        reference: rows that replacement cells are taken from
        sources: column of each feature
    """
    rows, replacements = cells.num_rows, reference.num_rows
    base = predict(cells, np.arange(rows))
    column_of_feature = torch.tensor(sources)
    effects = np.zeros((rows, max(sources) + 1))
    for row in range(rows):
        repeated = cells.select_rows(torch.full((replacements,), row))
        for column in range(effects.shape[1]):
            mask = (column_of_feature == column).expand(replacements, -1)
            if not bool(mask.any()):
                continue
            mixed = repeated.replace_cells(reference.to("cpu", repeated.numbers.dtype), mask)
            effects[row, column] = base[row] - predict(mixed, np.full(replacements, row)).mean()
    return effects
