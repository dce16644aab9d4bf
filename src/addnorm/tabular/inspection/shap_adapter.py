"""Tables as arrays of numbers for the explainers of the package shap.

shap subtracts cells from each other, which texts, datetimes and None do not allow. The adapter
numbers the distinct cells of such columns, and predicts from arrays of these numbers.
"""

from typing import Any

import numpy as np

from addnorm.core.errors import UserError


class ShapAdapter:
    """A fitted estimator as a function of an array of numbers.

        adapter = model.shap_adapter(background)
        explainer = shap.PermutationExplainer(adapter.predict, adapter.background)
        values = explainer(adapter.encode(rows))

    Attributes:
        background: (rows, columns) encoded rows that cells are replaced from
        feature_names: names of the columns
    """

    def __init__(self, model: Any, background: Any, *, max_rows: int = 100) -> None:
        """Encode the background rows.

        Args:
            model: fitted estimator
            background: table with the columns of the fit
            max_rows: largest number of background rows, evenly spaced
        """
        if not isinstance(max_rows, int) or max_rows < 1:
            raise UserError(f"max_rows: expected an integer >= 1, got {max_rows!r}")
        self.model = model
        self.feature_names = list(model.encoder_.names)
        self._cells: list[list[Any]] = [[] for _ in self.feature_names]
        """Distinct cells of each column that is numbered, in the order of their numbers."""
        self._numbers: list[dict[Any, int]] = [{} for _ in self.feature_names]
        table = self.encode(background)
        self.background = table[:: max(1, -(-len(table) // max_rows))]

    def encode(self, X: Any) -> np.ndarray:
        """Return rows as numbers, (rows, columns); missing numbers are NaN."""
        table = self.model._check_table(X, reset=False)
        columns = self.model.encoder_.read(table)
        result = np.empty((len(columns[0].values), len(columns)))
        for index, column in enumerate(columns):
            if column.kind == "numeric":
                result[:, index] = column.values
                continue
            raw = table.iloc[:, index] if hasattr(table, "iloc") else table[:, index]
            for row, cell in enumerate(raw):
                result[row, index] = self._number(index, cell)
        return result

    def decode(self, table: np.ndarray) -> Any:
        """Return the frame of encoded rows."""
        import pandas

        table = np.asarray(table, dtype=np.float64)
        if table.ndim != 2 or table.shape[1] != len(self.feature_names):
            raise UserError(
                f"expected rows of {len(self.feature_names)} numbers, got an array of shape "
                f"{list(table.shape)}"
            )
        columns = dict[str, Any]()
        for index, name in enumerate(self.feature_names):
            if self.model.encoder_.kinds[index] == "numeric":
                columns[name] = table[:, index]
            else:
                numbers = table[:, index].round().astype(int)
                cells = np.empty(len(numbers), dtype=object)
                cells[:] = [self._cells[index][number] for number in numbers]
                columns[name] = cells
        return pandas.DataFrame(columns)

    def predict(self, table: np.ndarray) -> np.ndarray:
        """Return class probabilities, or numbers, for encoded rows."""
        X = self.decode(table)
        names = getattr(self.model, "feature_names_in_", None)
        X = X.to_numpy(dtype=object) if names is None else X.set_axis(names, axis=1)
        if hasattr(self.model, "predict_proba"):
            return np.asarray(self.model.predict_proba(X))
        return np.asarray(self.model.predict(X))

    def _number(self, index: int, cell: Any) -> int:
        key = None if cell is None or cell != cell else cell  # NaN and NaT differ from themselves
        numbers, cells = self._numbers[index], self._cells[index]
        if key not in numbers:
            numbers[key] = len(cells)
            cells.append(key)
        return numbers[key]
