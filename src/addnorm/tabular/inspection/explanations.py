"""Why a row got its answer: what each of its cells contributes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from addnorm.core.errors import UserError
from addnorm.models.tabular.table_batch import TableBatch
from addnorm.tabular.inspection.charts import save_chart

MAX_SHOWN_COLUMNS = 12
"""Columns of a picture at most."""


@dataclass(frozen=True)
class Explanation:
    """Effects of cells on answers.

    effect[row, column] = answer(row) - mean of answer(row with that cell of another row)

    The other rows are training rows. An effect says how much the cell moved this answer, all other
    cells as they are; effects need not add up to the answer.
    """

    effects: np.ndarray
    """(rows, columns)."""
    answers: np.ndarray
    """(rows): the probability of `of`, or the predicted number."""
    columns: list[str]
    cells: list[list[str]]
    """What stands in each cell, as text."""
    of: list[str]
    """What the answer is about, for each row: a class, or the target."""

    def chart(self, row: int = 0) -> Any:
        """The strongest effects on one row as bars."""
        import altair as alt

        if not 0 <= row < len(self.effects):
            raise UserError(f"row {row} is not among the {len(self.effects)} that were explained")
        strong = np.argsort(-np.abs(self.effects[row]))[:MAX_SHOWN_COLUMNS]
        table = [
            {
                "cell": f"{self.columns[place]} = {self.cells[row][place]}",
                "effect": float(self.effects[row, place]),
                "sign": "towards" if self.effects[row, place] >= 0 else "against",
            }
            for place in strong
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
        """Write the picture of a row; the name's ending tells the format."""
        return save_chart(self.chart(row), path)


def column_effects(
    predict: Any, cells: TableBatch, reference: TableBatch, sources: list[int]
) -> np.ndarray:
    """Effects of every column on answers, (rows, columns).

    said: from (cells, row numbers) to answers, (n)
    """
    rows, others = cells.num_rows, reference.num_rows
    base = predict(cells, np.arange(rows))
    column = torch.tensor(sources)
    effects = np.zeros((rows, max(sources) + 1))
    for row in range(rows):
        same = cells.select_rows(torch.full((others,), row))
        for number in range(effects.shape[1]):
            where = (column == number).expand(others, -1)
            if not bool(where.any()):
                continue
            mixed = same.replace_cells(reference.to("cpu", same.numbers.dtype), where)
            effects[row, number] = base[row] - predict(mixed, np.full(others, row)).mean()
    return effects
