"""Columns of any library, and the kinds they are found to be."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from addnorm.core.errors import UserError
from addnorm.tabular.columns import (
    as_pandas,
    empty_columns,
    is_frame,
    read_column,
    read_columns,
    shown,
)
from tests.tabular.tables import mixed

KINDS = ["numeric", "numeric", "boolean", "categorical", "string", "datetime"]


def same(one, other):
    assert one.kind == other.kind
    for mine, theirs in zip(one.values, other.values, strict=True):
        assert mine == theirs or (mine != mine and theirs != theirs), (one.name, mine, theirs)


def test_kinds_are_found_by_themselves():
    frame, _ = mixed(200)
    assert [column.kind for column in read_columns(frame)] == KINDS


@pytest.mark.parametrize("library", [pl.from_pandas, pa.Table.from_pandas])
def test_polars_and_arrow_are_read_as_pandas_is(library):
    frame, _ = mixed(200)
    other = library(frame)
    assert is_frame(other) and not is_frame(frame.to_numpy())
    for one, two in zip(read_columns(frame), read_columns(as_pandas(other)), strict=True):
        same(one, two)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pd.Series([1, None, 3], dtype="Int64"), "numeric"),
        (pd.Series([True, None, False], dtype="boolean"), "boolean"),
        (pd.Series([True, None, False], dtype=object), "boolean"),
        (pd.Series(["a", None, "b"], dtype="category"), "categorical"),
        (pd.Series([3, 5, 3], dtype="category"), "categorical"),
        (pd.Series([1.5, None, pd.NA], dtype=object), "numeric"),
        (pd.Series(["1", "x", 2], dtype=object), "categorical"),
        (pd.Series([datetime.date(2026, 1, 1), None]), "datetime"),
        (pd.Series(pd.to_datetime(["2026-01-01", None]).tz_localize("Asia/Tokyo")), "datetime"),
        (pd.Series(pd.to_timedelta([1, 2], "D")), "numeric"),
        (np.array([1, 2], dtype=np.uint8), "numeric"),
        (np.array(["2026-01-01"], dtype="datetime64[D]"), "datetime"),
        (np.array([None, None], dtype=object), "numeric"),
    ],
)
def test_every_type_has_a_kind(values, kind):
    assert read_column("x", values).kind == kind


def test_numbers_that_numpy_made_texts_are_numbers():
    rows = np.array([[1, "a"], [2.5, "b"]])
    assert rows.dtype.kind == "U"
    assert [column.kind for column in read_columns(rows)] == ["numeric", "categorical"]


def test_absent_has_one_form():
    numbers = read_column("x", np.array([1.0, np.nan, np.inf, -np.inf])).values
    assert np.isnan(numbers).tolist() == [False, True, True, True]
    texts = read_column("x", np.array(["a", None, np.nan, "", "  ", pd.NA, pd.NaT], object)).values
    assert texts.tolist() == ["a", None, None, None, None, None, None]


def test_whole_numbers_are_spelt_alike_as_categories_with_and_without_holes():
    told = {"x": "categorical"}
    whole = read_columns(pd.DataFrame({"x": [1, 2, 3]}), told)[0].values
    holes = read_columns(pd.DataFrame({"x": [1, 2, None]}), told)[0].values
    assert whole.tolist() == ["1", "2", "3"]
    assert holes.tolist() == ["1", "2", None]


def test_types_are_overridable_by_name_and_position():
    X = np.array([[1.0, 2.0], [3.0, 2.5]])
    found = read_columns(X, {0: "categorical", "x1": "categorical"})
    assert [column.kind for column in found] == ["categorical"] * 2
    assert found[1].values.tolist() == ["2", "2.5"]
    frame = pd.DataFrame({"when": ["2026-01-01", "2026-01-02T12:00:00+00:00"]})
    moments = read_columns(frame, {"when": "datetime"})[0].values
    assert moments[1] - moments[0] == 36 * 3600


@pytest.mark.parametrize(
    ("frame", "told", "words"),
    [
        ({"x": [1]}, {"y": "numeric"}, "unknown column in column_types 'y'"),
        ({"x": [1]}, {"x": "number"}, "unknown column type 'number'; did you mean 'numeric'"),
        ({"x": ["a"]}, {"x": "numeric"}, "column 'x' is numeric, .* could not be read"),
        ({"x": ["a"]}, {"x": "datetime"}, "column 'x' is datetime, and holds what is no date"),
        ({"x": [1j]}, None, "Complex data not supported: column 'x'"),
    ],
)
def test_mistakes_are_told(frame, told, words):
    with pytest.raises(UserError, match=words):
        read_columns(pd.DataFrame(frame), told)


def test_empty_columns_are_named():
    frame = pd.DataFrame({"a": [1.0, np.nan], "b": [np.nan, np.inf], "c": [None, ""]})
    assert empty_columns(read_columns(frame)) == ["b", "c"]


def test_cells_are_shown_as_text():
    frame, _ = mixed()
    columns = {column.name: column for column in read_columns(frame)}
    assert shown(columns["number"], 0) == "absent"
    assert shown(columns["colour"], 0) == "absent"
    assert shown(columns["flag"], 0) in ("True", "False")
    assert shown(columns["day"], 1).startswith("202")
