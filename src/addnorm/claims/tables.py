"""Tables that claims are tried on: scikit-learn's own, which need no download, and made ones."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from addnorm.core.files import atomic_write
from addnorm.core.seeds import derive_seed

if TYPE_CHECKING:
    import pandas as pd

TARGET_COLUMN = "target"
MISSING_FRACTION = 0.1
"""Share of absent cells where there are any: enough to learn what absence means."""


def make_table(folder: Path, name: str) -> Path:
    """The table of a name as CSV in a folder; made once."""
    path = folder / f"{name}.csv"
    if not path.exists():
        with atomic_write(path) as file:
            TABLES[name]().to_csv(file, index=False)
    return path


def _diabetes() -> "pd.DataFrame":
    """442 patients, ten numbers each; how far the disease went in a year."""
    from sklearn.datasets import load_diabetes

    return load_diabetes(as_frame=True).frame


def _breast_cancer() -> "pd.DataFrame":
    """569 tumours, thirty measures each; whether it is a bad one."""
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame
    return frame.assign(**{TARGET_COLUMN: frame[TARGET_COLUMN].map({0: "malignant", 1: "benign"})})


def _make_waves() -> "pd.DataFrame":
    """1,500 rows of eight numbers; the target bends with some and multiplies others.

    y = sin(2 x_1) + x_2 x_3 + |x_4| + 0.1 noise; x_5 to x_8 say nothing
    """
    import pandas as pd

    chance = _make_rng("waves")
    x = chance.standard_normal((1500, 8))
    y = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + np.abs(x[:, 3])
    y += 0.1 * chance.standard_normal(len(y))
    return pd.DataFrame(x, columns=[f"x{n}" for n in range(1, 9)]).assign(**{TARGET_COLUMN: y})


def _make_views() -> "pd.DataFrame":
    """2,000 rows of twelve columns that see the same four hidden numbers, each a little wrong.

    z: (4), standard normal; the class is whether z_1 z_2 + z_3 - z_4 > 0
    column c: z_(c mod 4) + 0.5 noise; every second one in six steps, as a category
    """
    import pandas as pd

    chance = _make_rng("views")
    z = chance.standard_normal((2000, 4))
    seen = z[:, np.arange(12) % 4] + 0.5 * chance.standard_normal((2000, 12))
    columns: dict[str, object] = {}
    for place, values in enumerate(seen.T):
        steps = np.digitize(values, (-1.4, -0.6, 0.0, 0.6, 1.4))
        name = f"c{place + 1}"
        columns[name] = np.array(list("abcdef"))[steps] if (place // 4 + place) % 2 else values
    right = z[:, 0] * z[:, 1] + z[:, 2] - z[:, 3] > 0
    return pd.DataFrame(columns).assign(**{TARGET_COLUMN: np.where(right, "yes", "no")})


def _with_missing_cells(name: str) -> "pd.DataFrame":
    """A table some of whose cells are absent, by chance."""
    frame = TABLES[name]()
    inputs = frame.drop(columns=TARGET_COLUMN)
    away = _make_rng("gaps", name).random(inputs.shape) < MISSING_FRACTION
    return inputs.mask(away).assign(**{TARGET_COLUMN: frame[TARGET_COLUMN]})


def _make_rng(*names: str) -> np.random.Generator:
    return np.random.default_rng(derive_seed(0, "table", *names))


TABLES: dict[str, Callable[[], "pd.DataFrame"]] = {
    "diabetes": _diabetes,
    "breast_cancer": _breast_cancer,
    "waves": _make_waves,
    "views": _make_views,
    "breast_cancer-gaps": lambda: _with_missing_cells("breast_cancer"),
    "views-gaps": lambda: _with_missing_cells("views"),
}
"""Tables by name; the target is always called so."""
