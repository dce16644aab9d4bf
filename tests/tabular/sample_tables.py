"""Small tables and estimators shared by the tests."""

import numpy as np
import pandas as pd

from addnorm.models.tabular import MODELS
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor

QUICK = {"dim": 8, "depth": 1, "heads": 2, "max_epochs": 3, "random_state": 0}


def mixed(rows=60, seed=0):
    """Return a frame with a column of every type, most with missing cells, and a binary target.

    The target depends on two of the columns.
    """
    rng = np.random.default_rng(seed)
    number = rng.normal(size=rows)
    colour = rng.choice(["red", "green", "blue"], rows)
    frame = pd.DataFrame(
        {
            "number": number,
            "count": rng.integers(0, 9, rows),
            "flag": rng.random(rows) < 0.5,
            "colour": colour,
            "note": [
                f"item {index} of box {index % 7}, number {index * 3}" for index in range(rows)
            ],
            "day": pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 900, rows), "D"),
        }
    )
    frame["note"] = [f"{text} {rng.integers(1e9)}" for text in frame["note"]]
    frame.loc[::7, "number"] = np.nan
    frame.loc[1, "number"] = np.inf
    frame.loc[::11, "colour"] = None
    frame.loc[::13, "day"] = pd.NaT
    y = np.where((number > 0) ^ (colour == "red"), "yes", "no")
    return frame, y


FRAME, LABELS = mixed()
NUMBERS = np.random.default_rng(0).normal(size=(40, 3))
SUMS = NUMBERS.sum(1)


def classifier(**changes):
    # A temperature of a small table takes five more networks.
    return TabularTransformerClassifier(**quick(**{"calibration": "none"} | changes))


def regressor(**changes):
    return TabularTransformerRegressor(**quick(**changes))


def quick(model="ft_transformer", **changes):
    """Return parameters of a small model, without those that it does not use."""
    unused = MODELS[model].unused_fields if model in MODELS else ()
    defaults = {name: value for name, value in QUICK.items() if name not in unused}
    return defaults | {"model": model} | changes
