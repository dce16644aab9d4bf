"""Reading of columns of any library, and type inference."""

import datetime

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import (
    empty_columns,
    format_cell,
    is_frame,
    read_column,
    read_columns,
    to_pandas,
)
from addnorm.tabular.columns.table_files import read_table
from tests.tabular.sample_tables import FRAME, LABELS, classifier, mixed

KINDS = ["numeric", "numeric", "boolean", "categorical", "string", "datetime"]


def assert_same_column(one, two):
    assert one.kind == two.kind
    for x, y in zip(one.values, two.values, strict=True):
        assert x == y or (x != x and y != y), (one.name, x, y)


def test_column_types_are_inferred():
    frame, _ = mixed(200)
    assert [column.kind for column in read_columns(frame)] == KINDS


@pytest.mark.parametrize("library", [pl.from_pandas, pa.Table.from_pandas])
def test_polars_and_arrow_are_read_like_pandas(library):
    frame, _ = mixed(200)
    other = library(frame)
    assert is_frame(other) and not is_frame(frame.to_numpy())
    for one, two in zip(read_columns(frame), read_columns(to_pandas(other)), strict=True):
        assert_same_column(one, two)


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
def test_column_type_of_each_dtype(values, kind):
    assert read_column("x", values).kind == kind


def test_numbers_converted_to_strings_by_numpy_are_numeric():
    rows = np.array([[1, "a"], [2.5, "b"]])
    assert rows.dtype.kind == "U"
    assert [column.kind for column in read_columns(rows)] == ["numeric", "categorical"]


def test_missing_values_have_one_representation():
    numbers = read_column("x", np.array([1.0, np.nan, np.inf, -np.inf])).values
    assert np.isnan(numbers).tolist() == [False, True, True, True]
    texts = read_column("x", np.array(["a", None, np.nan, "", "  ", pd.NA, pd.NaT], object)).values
    assert texts.tolist() == ["a", None, None, None, None, None, None]


def test_integer_categories_are_formatted_alike_with_and_without_missing_cells():
    kinds = {"x": "categorical"}
    complete = read_columns(pd.DataFrame({"x": [1, 2, 3]}), kinds)[0].values
    with_missing = read_columns(pd.DataFrame({"x": [1, 2, None]}), kinds)[0].values
    assert complete.tolist() == ["1", "2", "3"]
    assert with_missing.tolist() == ["1", "2", None]


def test_explicit_types_by_name_and_position():
    X = np.array([[1.0, 2.0], [3.0, 2.5]])
    columns = read_columns(X, {0: "categorical", "x1": "categorical"})
    assert [column.kind for column in columns] == ["categorical"] * 2
    assert columns[1].values.tolist() == ["2", "2.5"]
    frame = pd.DataFrame({"when": ["2026-01-01", "2026-01-02T12:00:00+00:00"]})
    seconds = read_columns(frame, {"when": "datetime"})[0].values
    assert seconds[1] - seconds[0] == 36 * 3600


@pytest.mark.parametrize(
    ("frame", "kinds", "message"),
    [
        ({"x": [1]}, {"y": "numeric"}, "unknown column in column_types 'y'"),
        ({"x": [1]}, {"x": "number"}, "unknown column type 'number'; did you mean 'numeric'"),
        ({"x": ["a"]}, {"x": "numeric"}, "column 'x': expected numeric values, got 'a'"),
        ({"x": ["a"]}, {"x": "datetime"}, "column 'x': expected datetime values such .*, got 'a'"),
        ({"x": [1]}, ["numeric"], "column_types: expected a dict from column to type"),
        ({"x": [1j]}, None, "column 'x': Complex data not supported: complex128"),
    ],
)
def test_invalid_column_types_are_rejected(frame, kinds, message):
    with pytest.raises(UserError, match=message):
        read_columns(pd.DataFrame(frame), kinds)


@pytest.mark.parametrize(
    "values",
    [
        pd.Series([datetime.date(9999, 12, 31)]),
        pd.Series([datetime.datetime(9999, 12, 31)], dtype=object),
        pd.Series(np.array(["9999-12-31"], dtype="datetime64[s]")),
        pd.Series(["9999-12-31"]),
        pd.Series([datetime.datetime(9999, 12, 31, 9, tzinfo=datetime.timezone.max)]),
        to_pandas(pa.table({"x": pa.array([datetime.date(9999, 12, 31)])}))["x"],
        to_pandas(pa.table({"x": pa.array([datetime.datetime(9999, 12, 31)])}))["x"],
    ],
)
def test_datetimes_beyond_the_nanosecond_range(values):
    column = read_column("x", values)
    assert column.kind == "datetime" and format_cell(column, 0).startswith("9999-12-3")


def test_timedeltas_are_seconds():
    spans = [datetime.timedelta(days=1), None, datetime.timedelta(microseconds=1)]
    for values in (pd.Series(spans), pd.Series(spans, dtype=object)):
        column = read_column("x", values)
        assert column.kind == "numeric"
        np.testing.assert_array_equal(column.values, [86400, np.nan, 1e-6])


@pytest.mark.parametrize("container", [np.array, lambda each: np.array(each, object), pd.Series])
@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "2", "1"], "categorical"),
        (["1.5", "2", "1e3"], "numeric"),
        ([str(number) for number in range(100)], "numeric"),
        (["01", "02", "03"], "categorical"),
        ([f"{number:05}" for number in range(100)], "string"),
        (["2026-01-01", "2026-01-02 08:00", "2026-01-01"], "datetime"),
        (["2026-01-01", "2026-13-01"], "categorical"),
        (["True", "False"], "categorical"),
    ],
)
def test_type_of_strings_does_not_depend_on_the_container(container, texts, kind):
    assert read_column("x", container(texts)).kind == kind


@pytest.mark.parametrize("container", [np.array, lambda each: np.array(each, object), pd.Series])
@pytest.mark.parametrize("spelling", ["?", " ?", "n/a", "NA", "NaN", "null", "-", "#N/A", "nil"])
def test_spellings_of_missing_values_do_not_change_the_type(container, spelling):
    """Regression test: one "?" turned a numeric column into a string column."""
    column = read_column("x", container(["1", "2", spelling, "40"]))
    assert column.kind == "numeric" and column.missing_texts == {spelling: 1}
    np.testing.assert_array_equal(column.values, [1, 2, np.nan, 40])
    days = read_column("x", container(["2026-01-01", spelling]))
    assert days.kind == "datetime" and np.isnan(days.values[1])
    assert read_column("x", container(["Rome", spelling])).values.tolist() == ["Rome", None]
    for kind in ("numeric", "datetime", "boolean", "categorical", "string"):
        assert (
            read_column(
                "x", container(["1" if kind != "datetime" else "2026-01-01", spelling]), kind
            ).kind
            == kind
        )


def test_frames_and_csv_files_are_read_alike(tmp_path):
    rows = [["7", "a", "01"], ["?", "NA", "02"], ["12", "b", "03"]] * 3
    frame = pd.DataFrame(rows, columns=["n", "c", "zip"])
    frame.to_csv(tmp_path / "t.csv", index=False)
    for one, two in zip(
        read_columns(frame), read_columns(read_table(tmp_path / "t.csv")[0]), strict=True
    ):
        assert_same_column(one, two)


def test_categorical_dtype_keeps_every_text():
    cells = pd.Series(["NA", "DE", None] * 3, dtype="category")
    assert read_column("x", cells).values.tolist()[:3] == ["NA", "DE", None]
    encoder = TableEncoder.from_columns([read_column("x", cells)], np.ones(9))
    plain = pd.DataFrame({"x": ["NA", "DE", None, "n/a", "FR"]})
    known, _, missing, spelled, rare = encoder.encode(plain).codes[:, 0].tolist()
    assert len({known, missing, rare}) == 3 and spelled == missing


def test_explicit_type_wins_over_odd_cells():
    """Regression test: column_types={"age": "numeric"} was refused because of one odd cell."""
    column = read_column("age", pd.Series(["1", "abc", "3", "abc"]), "numeric")
    np.testing.assert_array_equal(column.values, [1, np.nan, 3, np.nan])
    assert column.failed_texts == {"abc": 2}
    column = read_column("day", pd.Series(["2026-01-01", "soon"]), "datetime")
    assert np.isnan(column.values).tolist() == [False, True]


@pytest.mark.parametrize(
    ("texts", "date_format", "others"),
    [
        (["12/31/2026", "01/02/2026"], "%m/%d/%Y", ()),
        (["31/12/2026", "01/02/2026"], "%d/%m/%Y", ()),
        (["01/02/2026", "03/04/2026"], "%m/%d/%Y", ("%d/%m/%Y",)),
        (["31.12.2026", "1.2.2026"], "%d.%m.%Y", ()),
        (["12/31/2026 23:59", "01/02/2026 8:00"], "%m/%d/%Y %H:%M", ()),
        (["12/31/2026 11:59 PM", "1/2/2026 8:00 AM"], "%m/%d/%Y %I:%M %p", ()),
        (["31-Dec-2026", "01-Feb-2026"], "%d-%b-%Y", ()),
        (["Dec 31, 2026", "Feb 1, 2026"], "%b %d, %Y", ()),
        (["2026/12/31", "2026/02/01"], "%Y/%m/%d", ()),
    ],
)
def test_usual_formats_of_dates(texts, date_format, others):
    column = read_column("x", np.array([*texts, "?"], object))
    assert (column.kind, column.date_format, column.other_formats) == (
        *("datetime", date_format),
        others,
    )
    seconds = read_column("x", np.array(texts, object), "datetime", date_format=date_format).values
    np.testing.assert_array_equal(column.values[:2], seconds)
    assert format_cell(column, 0)[:7] in ("2026-12", "2026-01")
    iso = pd.Series([format_cell(column, row) for row in range(2)])
    np.testing.assert_array_equal(read_column("x", iso, "datetime").values, seconds)


@pytest.mark.parametrize("texts", [["1/2", "3/4"], ["1.2.3", "1.2.4"], ["a b c", "13/13/2026"]])
def test_other_texts_are_no_dates(texts):
    assert read_column("x", np.array(texts, object)).kind == "categorical"


def test_new_rows_have_the_date_format_of_the_fit():
    frame = pd.DataFrame({"day": ["31/12/2026", "01/02/2026"] * 20})
    estimator = classifier(max_epochs=1).fit(frame, ["x", "y"] * 20)
    expected = estimator.predict_proba(frame)[1]
    for cell in ("01/02/2026", "2026-02-01", pd.Timestamp("2026-02-01")):
        new = estimator.predict_proba(pd.DataFrame({"day": [cell]}))[0]
        np.testing.assert_allclose(new, expected, rtol=1e-12)


def test_periods_are_datetimes():
    """Regression test: periods became categories or strings."""
    periods = pd.Series(pd.period_range("2026-01", periods=3, freq="M"))
    expected = read_column("x", pd.Series(pd.to_datetime(["2026-01", "2026-02", "2026-03"])))
    for values in (periods, periods.astype(object)):
        assert_same_column(read_column("x", values), expected)


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"x": [[1, 2], [3]]}),
        pd.DataFrame({"x": [{"a": 1}, None]}),
        pl.DataFrame({"x": [[1, 2], [3]]}),
        pl.DataFrame({"x": [{"a": 1}, {"a": 2}]}),
        pa.table({"x": [[1, 2], [3]]}),
    ],
)
def test_nested_cells_are_rejected(frame):
    """Regression test: lists were read as strings such as "[1, 2]"."""
    with pytest.raises(UserError, match=r"column 'x': expected one value in each cell, got a"):
        read_columns(to_pandas(frame))


def test_multiplicity_counts_as_repetition():
    texts, counts = np.array([f"t{index}" for index in range(70)], object), np.full(70, 8.0)
    assert read_column("x", texts).kind == "string"
    assert read_column("x", texts, multiplicity=counts).kind == "categorical"
    assert read_column("x", np.repeat(texts, 8)).kind == "categorical"


@pytest.mark.parametrize("kind", ["categorical", "string"])
def test_explicit_text_columns_keep_every_digit(kind):
    def read(values):
        return read_column("x", values, kind).values.tolist()

    assert read(np.array(["01", "02"])) == ["01", "02"]
    assert read(pd.Series(["01", None])) == ["01", None]
    large = 2**53 + np.arange(2)
    assert read(large) == read(pd.Series(large)) == ["9007199254740992", "9007199254740993"]
    assert read(pd.Series([2**53 + 1, None], dtype="Int64")) == ["9007199254740993", None]
    assert read(np.array([2**53 + 1, None], object)) == ["9007199254740993", None]
    assert read(pd.Series([True, False])) == ["True", "False"]
    assert read(pd.Series(pd.to_datetime(["2026-01-01"]))) == ["2026-01-01T00:00:00"]


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("datetime", [1, 2], "column 'x': expected datetime values .*, got numbers; convert"),
        ("numeric", pd.to_datetime(["2026-01-01"]), "expected numeric values, got datetimes"),
        ("boolean", ["a"], "column 'x': expected boolean values, got 'a'"),
        ("boolean", [0.5], "column 'x': expected boolean values, got '0.5'"),
        ("boolean", pd.to_datetime(["2026-01-01"]), "column 'x': expected boolean values, got"),
    ],
)
def test_values_of_another_type_are_rejected(kind, values, message):
    with pytest.raises(UserError, match=message):
        read_column("x", pd.Series(values), kind)


@pytest.mark.parametrize("kind", ["numeric", "datetime", "boolean", "categorical", "string"])
@pytest.mark.parametrize("nothing", [np.nan, None, "", pd.NaT])
def test_empty_columns_may_have_any_type(kind, nothing):
    column = read_column("x", pd.Series([nothing] * 3), kind)
    assert column.kind == kind and format_cell(column, 0) == "absent" and len(column.values) == 3


def test_booleans_have_one_representation():
    for values in ([True, False, None], [1, 0, None], ["true", "FALSE", None], ["1", "0", ""]):
        assert read_column("x", pd.Series(values), "boolean").values.tolist() == [
            *("True", "False", None)
        ]


def test_empty_columns_are_listed():
    frame = pd.DataFrame({"a": [1.0, np.nan], "b": [np.nan, np.inf], "c": [None, ""]})
    assert empty_columns(read_columns(frame)) == ["b", "c"]


def test_duplicate_names_require_positions():
    frame = pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"])
    kinds = [column.kind for column in read_columns(frame, {1: "categorical"})]
    assert kinds == ["numeric", "categorical"]
    with pytest.raises(UserError, match=r"expected a unique column name, got 'a'"):
        read_columns(frame, {"a": "categorical"})


@pytest.mark.parametrize(
    "series", [pl.Series([1, 2]), pd.Series([1, 2]), pa.chunked_array([[1, 2]])]
)
def test_series_are_rejected(series):
    with pytest.raises(UserError, match=r"Expected 2D array, got .* instead"):
        to_pandas(series)


def test_record_batch_readers_are_tables():
    table = pa.table({"x": [1, 2], "c": ["a", None]})
    reader = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    assert is_frame(reader)
    assert to_pandas(reader).shape == (2, 2)


def test_format_cell():
    frame, _ = mixed()
    columns = {column.name: column for column in read_columns(frame)}
    assert format_cell(columns["number"], 0) == "absent"
    assert format_cell(columns["colour"], 0) == "absent"
    assert format_cell(columns["flag"], 0) in ("True", "False")
    assert format_cell(columns["day"], 1).startswith("202")


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["1", "1.5", "007", "2026-01-01", "true", " ", "nan", "1e999"]),
    st.dates(),
    st.datetimes(timezones=st.sampled_from([None, datetime.timezone.utc])),
    st.timedeltas(datetime.timedelta(-9999), datetime.timedelta(9999)),
    st.decimals(allow_nan=False),
    st.binary(max_size=3),
    st.tuples(st.integers(0, 2)),
)


@settings(max_examples=150)
@given(st.one_of(*(st.lists(each, min_size=1, max_size=9) for each in (CELLS, *CELLS.branches))))
def test_explicit_inferred_type_reads_the_same_values(values):
    cells = np.empty(len(values), dtype=object)
    cells[:] = values
    one = read_column("x", cells)
    assert one.kind in KINDS
    assert one.values.dtype == (np.float64 if one.kind in ("numeric", "datetime") else object)
    assert_same_column(one, read_column("x", cells, one.kind))
    if one.kind in ("numeric", "datetime"):
        assert not np.isinf(one.values).any()


def test_numbers_and_strings_of_a_list_keep_their_types():
    rows = [[1.5, "a", 3], [2.5, "b", 4]] * 10
    from_list = classifier(max_epochs=1).fit(rows, ["x", "y"] * 10)
    assert from_list.encoder_.kinds == ("numeric", "categorical", "numeric")
    frame = pd.DataFrame(rows)
    from_array = classifier(max_epochs=1).fit(frame.to_numpy(), ["x", "y"] * 10)
    np.testing.assert_array_equal(from_list.predict_proba(rows), from_array.predict_proba(rows))


def test_duplicate_column_names_are_rejected():
    frame = pd.DataFrame(np.ones((4, 3)), columns=["a", "b", "a"])
    with pytest.raises(ValueError, match="X: expected unique column names, got 'a' more than once"):
        classifier().fit(frame, [0, 1, 0, 1])


def test_categorical_dates_match_plain_dates():
    days = pd.Series(pd.to_datetime(["2026-01-01", "2026-01-02"] * 20))
    frame, y = pd.DataFrame({"day": days.astype("category")}), ["x", "y"] * 20
    estimator = classifier(max_epochs=1).fit(frame, y)
    expected = estimator.predict_proba(frame)
    for plain in (days, days.dt.date, days.dt.strftime("%Y-%m-%dT%H:%M:%S")):
        probabilities = estimator.predict_proba(pd.DataFrame({"day": plain}))
        np.testing.assert_array_equal(probabilities, expected)


def test_empty_columns_require_an_explicit_type():
    frame = FRAME.assign(only=np.nan)
    with pytest.raises(ValueError, match="columns without any value: 'only'"):
        classifier().fit(frame, LABELS)
    for kind in ("numeric", "categorical", "string", "boolean", "datetime"):
        estimator = classifier(max_epochs=1, column_types={"only": kind}).fit(frame, LABELS)
        assert np.isfinite(estimator.predict_proba(frame)).all()


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (pl.DataFrame({"a": [1.0]}).lazy(), r"got LazyFrame instead; call .collect\(\) first"),
        ({"a": [1.0]}, "got dict of named values instead; pass pandas.DataFrame"),
        ([{"a": 1.0}], "got list of named values instead; pass pandas.DataFrame"),
        (np.zeros(3, dtype=[("a", float)]), "got ndarray of named values instead"),
    ],
)
def test_records_and_lazy_frames_are_rejected_with_advice(X, message):
    with pytest.raises(UserError, match=f"Expected 2D array, {message}") as caught:
        classifier().fit(X, [0])
    assert "\n" not in str(caught.value)
