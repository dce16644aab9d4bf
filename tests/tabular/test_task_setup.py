"""A whole table before any fit."""

import datetime
import decimal

import numpy as np
import pandas as pd
import pytest

from addnorm.core.errors import UserError
from addnorm.tabular.task_setup import infer_column_types, infer_task, split_rows, split_target


@pytest.mark.parametrize(
    ("y", "task", "values"),
    [
        (["no", "yes"], "classify", ["no", "yes"]),
        ([True, False], "classify", [True, False]),
        ([1.5, 2.25], "regress", [1.5, 2.25]),
        ([decimal.Decimal("1.5"), decimal.Decimal("2.25")], "regress", [1.5, 2.25]),
        ([datetime.time(1), datetime.time(2)], "classify", ["01:00:00", "02:00:00"]),
    ],
)
def test_a_target_is_numbers_truths_or_texts(y, task, values):
    X, found = split_target(pd.DataFrame({"a": [1, 2], "y": y}), "y")
    assert (list(X.columns), found.tolist(), infer_task(found)) == (["a"], values, task)


def test_types_are_told_or_found_and_an_empty_column_is_refused():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [np.nan, np.nan]})
    told = {"a": "categorical"}
    assert infer_column_types(frame[["a", "b"]], told) == {"a": "categorical", "b": "categorical"}
    with pytest.raises(UserError, match="columns without any value: 'c'"):
        infer_column_types(frame, told)


def test_halves_are_alike_where_they_can_be():
    y = pd.Series(["rare"] * 4 + ["often"] * 36)
    stay, held = split_rows(y, 0.25, classify=True, seed=1)
    assert sorted([*stay, *held]) == list(range(40))
    assert (y.iloc[held] == "rare").sum() == 1
    many = pd.Series([f"c{row % 15}" for row in range(30)])
    assert len(split_rows(many, 0.2, classify=True)[1]) == 6
    with pytest.raises(UserError, match=r"too few rows \(1\) to hold out 0\.2 of them"):
        split_rows(y.head(1), 0.2, classify=False)
