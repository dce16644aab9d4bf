"""Table files: CSV dialects, types, Parquet and errors."""

import gzip
import lzma
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from addnorm.core.errors import UserError
from addnorm.tabular.columns.table_files import BLOCK_BYTES, read_table, read_table_chunks

PLAIN = "a,b,c\n1,x,0.5\n2,y,1.5\n"


def write_file(folder, data, name="t.csv"):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        b"\xef\xbb\xbf" + PLAIN.encode(),
        PLAIN.replace("\n", "\r\n"),
        PLAIN.rstrip("\n"),
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "|"),
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", ";").replace(".", ","),
        PLAIN.replace("x", '"x"').replace("a,", '"a",'),
    ],
    ids=["plain", "BOM", "CRLF", "no last end", ";", "|", "tab", "decimal comma", "quotes"],
)
def test_csv_dialects(tmp_path, data):
    frame, types = read_table(write_file(tmp_path, data))
    assert frame.to_dict("list") == {"a": [1, 2], "b": ["x", "y"], "c": [0.5, 1.5]}
    assert types == {"a": "int64", "b": "string", "c": "double"}
    (part,) = read_table_chunks(write_file(tmp_path, data), types)
    assert part.to_dict("list") == {"a": [1, 2], "b": ["x", "y"], "c": [0.5, 1.5]}


def test_quoted_separators_and_newlines(tmp_path):
    frame, _ = read_table(write_file(tmp_path, 'a,"b;c;d"\n1,"two\nlines, and ""quotes"""\n'))
    assert frame["b;c;d"].tolist() == ['two\nlines, and "quotes"']


def test_column_types_come_from_the_whole_file(tmp_path):
    """Regression test: the types of a large file were those of its first block."""
    line = "1" * 50 + ".5"
    rows = BLOCK_BYTES // (len(line) + 4) + 1000
    path = write_file(tmp_path, "a,b\n" + f"{line},2\n" * rows + "odd,3\n")
    frame, types = read_table(path)
    assert types["a"] == "string" and frame["a"].iloc[-1] == "odd"
    assert sum(len(part) for part in read_table_chunks(path, types)) == rows + 1


def test_types_of_one_file_apply_to_another(tmp_path):
    _, types = read_table(write_file(tmp_path, "zip,n,d,t\n01,1,2026-01-01,08:00:00\nA3,2,,\n"))
    assert types["zip"] == "string"
    (part,) = read_table_chunks(
        write_file(tmp_path, "zip,n,d,t\n01,1.5,2026-01-02 07:30:00.5,09:00:00.25\n02,,,\n"), types
    )
    assert part["zip"].tolist() == ["01", "02"]
    assert part["n"].iloc[0] == 1.5 and np.isnan(part["n"].iloc[1])
    assert part["d"].iloc[0] == pd.Timestamp("2026-01-02T07:30:00.5")
    frame, _ = read_table(write_file(tmp_path, "zip\n01\n02\n"), {"zip": "string"})
    assert frame["zip"].tolist() == ["01", "02"]
    with pytest.raises(UserError, match=r"expected the column types of the fit, .*'many'"):
        read_table(write_file(tmp_path, "zip,n\n01,many\n"), types)


def test_a_cell_of_another_type_keeps_its_column_as_texts(tmp_path):
    """Regression test: one odd cell far below, even in an unused column, ended a prediction."""
    rows = "1,2,true,2026-01-01,08:00:00\n"
    types = {"a": "int64", "c": "bool", "d": "date32[day]", "e": "time32[s]"}
    path = write_file(tmp_path, "a,extra,c,d,e\n" + rows * 2_000_000 + "many,odd,?,n/a,\n")
    assert path.stat().st_size > BLOCK_BYTES
    *_, last = read_table_chunks(path, types)
    assert last.iloc[-1, :2].tolist() == ["many", "odd"] and last.iloc[-1, 2:].isna().all()
    assert last["c"].iloc[0] is True and str(last["e"].iloc[0]) == "08:00:00"
    (part,) = read_table_chunks(write_file(tmp_path, f"a,extra,c,d,e\n{rows}?{rows[1:]}"), types)
    assert part["a"].iloc[0] == 1.0 and np.isnan(part["a"].iloc[1])
    assert part["extra"].tolist() == ["2", "2"]


def test_integers_with_leading_zeros_are_texts(tmp_path):
    """Regression test: the class "01" of a CSV file was read as 1."""
    frame, types = read_table(write_file(tmp_path, "a,b,c\n01,10,0\n2,0,-1\n"))
    assert frame["a"].tolist() == ["01", "2"] and frame["b"].tolist() == [10, 0]
    assert types == {"a": "string", "b": "int64", "c": "int64"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "expected a table with a header and rows"),
        ("a,b\n", "expected a header and at least one row, got no rows"),
        ("a,b\n1\n", "expected a table with a header and rows"),
        ("Größe,b\n1,2\n".encode("latin-1"), "expected UTF-8 text, got other bytes; convert"),
        ("a,b\nGröße,2\n".encode("latin-1"), "expected UTF-8 text, got other bytes"),
        ("a,a\n1,2\n", "expected unique column names, got 'a' more than once"),
        ("a,b\n1,2\n".encode("utf-16"), "in UTF-16; expected UTF-8"),
    ],
)
def test_invalid_files_are_rejected(tmp_path, data, message):
    for read in (read_table, lambda path: list(read_table_chunks(path))):
        with pytest.raises(UserError, match=message):
            read(write_file(tmp_path, data))


def test_parquet_with_integer_column_names(tmp_path):
    pd.DataFrame({1: [1, 2], 2: ["a", "b"]}).to_parquet(tmp_path / "t.parquet")
    frame, types = read_table(tmp_path / "t.parquet")
    assert list(frame) == ["1", "2"] and types == {}
    (part,) = read_table_chunks(tmp_path / "t.parquet")
    assert list(part) == ["1", "2"]


def test_parquet_without_rows_is_rejected(tmp_path):
    pyarrow.parquet.write_table(pa.table({"a": pa.array([], pa.int64())}), tmp_path / "t.parquet")
    with pytest.raises(UserError, match="got no rows"):
        read_table(tmp_path / "t.parquet")


def test_named_index_becomes_a_column(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3]}, index=pd.Index([5, 6, 7], name="key"))
    frame.to_parquet(tmp_path / "named.parquet")
    frame.rename_axis(None).to_parquet(tmp_path / "plain.parquet")
    for read in (lambda path: read_table(path)[0], lambda path: next(read_table_chunks(path))):
        named, plain = (read(tmp_path / f"{name}.parquet") for name in ("named", "plain"))
        assert named["key"].tolist() == [5, 6, 7] and list(plain.columns) == ["a"]
        assert list(named.index) == [0, 1, 2]


@pytest.fixture
def small_memory(monkeypatch):
    """Let tables have at most 20 MB."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    name = "addnorm.tabular.columns.table_files.MEMORY_PER_TABLE_BYTE"
    monkeypatch.setattr(name, memory // (20 << 20))


MESSAGE = r"bomb\S+: expected at most \d+ MB of table, .* got more; use fewer rows or columns, or"


@pytest.mark.parametrize("module", [gzip, lzma])
@pytest.mark.parametrize("row", [b"1,2\n", b"," * 50 + b"\n", b"a" * 1000 + b",b\n"])
def test_compressed_csv_bomb_is_rejected_before_it_fills_memory(
    tmp_path, small_memory, module, row
):
    header = b",".join(b"c%d" % i for i in range(row.count(b",") + 1)) + b"\n"
    options = {"compresslevel": 1} if module is gzip else {"preset": 0}
    path = tmp_path / "bomb.csv"
    with module.open(path, "wb", **options) as file:
        file.write(header)
        for _ in range(8):
            file.write(row * ((4 << 20) // len(row)))
    before = pa.total_allocated_bytes()
    with pytest.raises(UserError, match=MESSAGE):
        read_table(path)
    assert pa.total_allocated_bytes() - before < 64 << 20


def test_parquet_bomb_is_rejected_before_it_fills_memory(tmp_path, small_memory):
    column = pa.array(np.zeros(1 << 20))
    with pyarrow.parquet.ParquetWriter(
        tmp_path / "bomb.parquet", pa.schema([("a", pa.float64())]), compression="zstd"
    ) as writer:
        for _ in range(12):
            writer.write_table(pa.table({"a": column}))
    assert (tmp_path / "bomb.parquet").stat().st_size < 100_000
    with pytest.raises(UserError, match=MESSAGE):
        read_table(tmp_path / "bomb.parquet")


def test_table_within_the_limit_is_read(tmp_path, small_memory):
    (tmp_path / "a.csv").write_bytes(gzip.compress(b"a,b\n" + b"1,x\n" * 1000))
    frame, types = read_table(tmp_path / "a.csv")
    assert frame.shape == (1000, 2) and types == {"a": "int64", "b": "string"}
