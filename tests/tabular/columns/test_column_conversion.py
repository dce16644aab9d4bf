"""Columns of strings are read once for each distinct cell, as if every cell were read."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.tabular.columns.column_conversion import format_value, to_raw_column

MISSING = (None, float("nan"), float("inf"), "", "  ")
CELLS = st.one_of(
    st.sampled_from([*MISSING, "a", " a", "0", "1", "True", "?", 0.0, -0.0, 2.0, 2.5]),
    st.text(max_size=3),
)


def to_objects(cells):
    values = np.empty(len(cells), dtype=object)
    values[:] = cells
    return values


def is_missing(cell):
    return cell is None or not str(cell).strip() or (type(cell) is float and not np.isfinite(cell))


@given(st.lists(CELLS, min_size=1, max_size=12))
def test_mixed_cells_are_read_one_by_one(cells):
    raw = to_raw_column(to_objects([*cells, "text"]))
    assert raw.inferred_type == "text"
    expected = [None if is_missing(each) else format_value(each) for each in cells]
    assert raw.values.tolist() == [*expected, "text"]


@pytest.mark.parametrize(
    ("cells", "kind", "values"),
    [
        (["x", True, 1], "text", ["x", "True", "1"]),  # equal, but not the same text
        (["x", np.str_("y"), b"z"], "text", ["x", "y", "z"]),
        ([" ", None, 1.5], "numeric", [np.nan, np.nan, 1.5]),
        (["", "  "], "numeric", [np.nan, np.nan]),
    ],
)
def test_other_columns(cells, kind, values):
    raw = to_raw_column(to_objects(cells))
    assert raw.inferred_type == kind
    if kind == "numeric":
        np.testing.assert_array_equal(raw.values, values)
    else:
        assert raw.values.tolist() == values


def test_strings_of_pandas():
    for dtype in ("object", "string", "category"):
        series = pd.Series(["a", None, " ", "b", "a"], dtype=dtype)
        assert to_raw_column(series).values.tolist() == ["a", None, None, "b", "a"]
