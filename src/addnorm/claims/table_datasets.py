"""Tables used by claims: some that come with scikit-learn, and synthetic ones."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from addnorm.claims.external_datasets import EXTERNAL_TABLES
from addnorm.core.files import atomic_write
from addnorm.core.seeds import derive_seed

if TYPE_CHECKING:
    import pandas as pd

TARGET_COLUMN = "target"
MISSING_FRACTION = 0.1
"""Fraction of removed cells in the tables with missing cells."""


def make_table(folder: Path, name: str) -> Path:
    """Write the table with a name as CSV, unless it exists; return its path."""
    path = folder / f"{name}.csv"
    if not path.exists():
        with atomic_write(path) as file:
            (TABLES | EXTERNAL_TABLES)[name]().to_csv(file, index=False)
    return path


def _diabetes() -> "pd.DataFrame":
    """Return 442 patients with ten numbers each; the target is the disease progression."""
    from sklearn.datasets import load_diabetes

    return load_diabetes(as_frame=True).frame


def _breast_cancer() -> "pd.DataFrame":
    """Return 569 tumors with thirty measurements each; the target is malignant or benign."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    return frame.assign(**{TARGET_COLUMN: frame[TARGET_COLUMN].map({0: "malignant", 1: "benign"})})


def _digits() -> "pd.DataFrame":
    """Return 1,797 handwritten digits of 8 x 8 pixels, a column each; the target is the digit."""
    from sklearn.datasets import load_digits

    frame = load_digits(as_frame=True).frame
    return frame.assign(**{TARGET_COLUMN: frame[TARGET_COLUMN].map(lambda digit: f"digit {digit}")})


def _make_waves() -> "pd.DataFrame":
    """Return 1,500 rows of eight numbers with a nonlinear target.

    y = sin(2 x_1) + x_2 x_3 + |x_4| + 0.1 noise; x_5 to x_8 are irrelevant
    """
    import pandas as pd

    rng = _make_rng("waves")
    x = rng.standard_normal((1500, 8))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.abs(x[:, 3])
    y += 0.1 * rng.standard_normal(len(y))
    return pd.DataFrame(x, columns=[f"x{n}" for n in range(1, 9)]).assign(**{TARGET_COLUMN: y})


def _make_views() -> "pd.DataFrame":
    """Return 2,000 rows of twelve columns, which are noisy views of four hidden numbers.

    z: (4), standard normal; the class is whether z_1 z_2 + z_3 - z_4 > 0
    column c: z_(c mod 4) + 0.5 noise; every second one is quantized to six categories
    """
    import pandas as pd

    rng = _make_rng("views")
    z = rng.standard_normal((2000, 4))
    views = z[:, np.arange(12) % 4] + 0.5 * rng.standard_normal((2000, 12))
    columns: dict[str, object] = {}
    for index, values in enumerate(views.T):
        bins = np.digitize(values, (-1.4, -0.6, 0.0, 0.6, 1.4))
        name = f"c{index + 1}"
        columns[name] = np.array(list("abcdef"))[bins] if (index // 4 + index) % 2 else values
    is_positive = z[:, 0] * z[:, 1] + z[:, 2] - z[:, 3] > 0
    return pd.DataFrame(columns).assign(**{TARGET_COLUMN: np.where(is_positive, "yes", "no")})


def _with_missing_cells(name: str) -> "pd.DataFrame":
    """Return a table with randomly removed input cells."""
    frame = TABLES[name]()
    inputs = frame.drop(columns=TARGET_COLUMN)
    mask = _make_rng("gaps", name).random(inputs.shape) < MISSING_FRACTION
    return inputs.mask(mask).assign(**{TARGET_COLUMN: frame[TARGET_COLUMN]})


def _make_rng(*names: str) -> np.random.Generator:
    return np.random.default_rng(derive_seed(0, "table", *names))


TABLES: dict[str, Callable[[], "pd.DataFrame"]] = {
    "diabetes": _diabetes,
    "breast_cancer": _breast_cancer,
    "waves": _make_waves,
    "views": _make_views,
    "breast_cancer-gaps": lambda: _with_missing_cells("breast_cancer"),
    "views-gaps": lambda: _with_missing_cells("views"),
    "digits": _digits,
}
"""Functions that build the tables, by name; the target column is `TARGET_COLUMN`."""
