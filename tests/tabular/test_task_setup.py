"""Target, task, column types and train/test split of a table."""

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
def test_target_and_task(y, task, values):
    X, target = split_target(pd.DataFrame({"a": [1, 2], "y": y}), "y")
    assert (list(X.columns), target.tolist(), infer_task(target)) == (["a"], values, task)


def test_column_types_are_explicit_or_inferred_and_empty_columns_are_rejected():
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None], "c": [np.nan, np.nan]})
    types = {"a": "categorical"}
    assert infer_column_types(frame[["a", "b"]], types) == {"a": "categorical", "b": "categorical"}
    with pytest.raises(UserError, match="columns without any value: 'c'"):
        infer_column_types(frame, types)


def test_split_is_stratified_if_possible():
    y = pd.Series(["rare"] * 4 + ["often"] * 36)
    train, test = split_rows(y, 0.25, classify=True, seed=1)
    assert sorted([*train, *test]) == list(range(40))
    assert (y.iloc[test] == "rare").sum() == 1
    many_classes = pd.Series([f"c{row % 15}" for row in range(30)])
    assert len(split_rows(many_classes, 0.2, classify=True)[1]) == 6
    with pytest.raises(UserError, match=r"expected enough rows for a test fraction of 0\.2, got 1"):
        split_rows(y.head(1), 0.2, classify=False)
