"""Table readers: equal records from every format, and counts of dropped rows."""

import csv
import gzip
import io
import json
import lzma
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data.readers import text_lines
from addnorm.data.readers.columns import read_records, split_files
from addnorm.data.readers.tables import find_split_files
from addnorm.data.record_counts import RecordCounts

ROWS = [("good film", "1"), ("böse", "0"), ("so so", "1")]
COLUMNS = {"text": "sentence", "label": "label"}
EXPECTED = [{"text": text, "label": label} for text, label in ROWS]


def write_file(folder, name, data):
    path = folder / name
    data = data if isinstance(data, bytes) else data.encode()
    compress = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(data))
    return path


def read(*paths, columns=COLUMNS, **options):
    counts = RecordCounts()
    records = list(read_records(paths, columns, counts=counts, **options))
    counts.keep("train", len(records))
    counts.to_dict()  # raises if the counts are inconsistent
    return records, counts


TSV = "".join(f"{text}\t{label}\n" for text, label in ROWS)
JSONL = "".join(json.dumps({"sentence": t, "label": int(n), "id": 7}) + "\n" for t, n in ROWS)
CSV = "label,sentence\n" + "".join(f'{label},"{text}"\n' for text, label in ROWS)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *(("a.tsv", f"sentence\tlabel\n{TSV}"), ("a.tsv.gz", f"sentence\tlabel\r\n{TSV}")),
        *(("a.tab.xz", f"\ufeffsentence\tlabel\n{TSV}"), ("a.csv", CSV), ("a.csv.xz", CSV)),
        *(("a.jsonl", JSONL), ("a.jsonl.gz", JSONL), ("a.ndjson", JSONL), ("a.json.xz", JSONL)),
    ],
)
def test_every_format_gives_the_same_records(tmp_path, name, data):
    records, counts = read(write_file(tmp_path, name, data))
    assert records == EXPECTED and counts.read == 3


def test_columns_without_header_are_numbered(tmp_path):
    path = write_file(tmp_path, "a.tsv.xz", TSV)
    assert read(path, columns={"text": "0", "label": "1"})[0] == EXPECTED
    assert read(write_file(tmp_path, "b", TSV), columns={"text": "0"}, format="tsv")[0] == [
        {"text": text} for text, _ in ROWS
    ]
    numbers = write_file(tmp_path, "c.csv", "1,0\nx,y\n")
    assert read(numbers, columns={"text": "0"}, header=True)[0] == [{"text": "y"}]


SAFE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).filter(
    str.strip
)


@given(st.lists(st.tuples(SAFE | st.just('a "quoted", b'), SAFE), min_size=1))
@pytest.mark.peer
def test_output_of_csv_module_is_read(tmp_path_factory, rows):
    file = io.StringIO()
    csv.writer(file).writerows([("text", "label"), *rows])
    path = write_file(tmp_path_factory.mktemp("csv"), "a.csv", file.getvalue())
    records = read(path, columns={"text": "text", "label": "label"})[0]
    assert [tuple(record.values()) for record in records] == [
        (a.strip(), b.strip()) for a, b in rows
    ]


def test_quoted_cell_with_line_breaks_is_one_record(tmp_path):
    path = write_file(tmp_path, "a.csv", 'text,label\n"one\ntwo, ""three""",a\nfour,b\n')
    records, counts = read(path, columns={"text": "text", "label": "label"})
    assert records == [{"text": 'one two, "three"', "label": "a"}, {"text": "four", "label": "b"}]
    assert counts.notes == {"line separators inside a line, now blanks": 1}
    assert read(path, columns={"text": "text"})[0][0] == {"text": 'one\ntwo, "three"'}


def test_unusable_rows_are_counted(tmp_path):
    data = b"a\tb\n1\t2\n\n3\n4\t5\t6\n\t7\nb\xffd\t8\n9\t10\n"
    path = write_file(tmp_path, "a.tsv", data)
    records, counts = read(path, columns={"source": "a", "target": "b"})
    assert records == [{"source": "1", "target": "2"}, {"source": "9", "target": "10"}]
    assert counts.dropped == {"empty": 2, "other number of columns": 2, "invalid UTF-8": 1}
    assert counts.first_locations["invalid UTF-8"] == f"{path}, line 7"
    replaced, counts = read(path, columns={"source": "a", "target": "b"}, errors="replace")
    assert replaced[1] == {"source": "b\ufffdd", "target": "8"}
    assert counts.notes == {"cells with invalid UTF-8, its bytes replaced": 1}
    with pytest.raises(UserError, match="line 7: expected UTF-8 in column 'a'; try --errors drop"):
        read(path, columns={"source": "a", "target": "b"}, errors="strict")


def test_json_values_of_all_types(tmp_path):
    values = ["x", 1, 2.5, True, None, [], {}, "", "\ud800", float("nan")]
    lines = [json.dumps({"text": value}) for value in values]
    path = write_file(tmp_path, "a.jsonl", "\n".join([*lines, "{broken", "[1]", "{}", "", "5"]))
    records, counts = read(path, columns={"text": "text"})
    assert [record["text"] for record in records] == ["x", "1", "2.5", "true"]
    assert counts.dropped == {
        "empty": 5,
        "neither text nor number": 2,
        "invalid UTF-8": 1,
        "not JSON": 1,
        "not a JSON object": 2,
    }


def test_column_missing_in_all_rows_is_rejected(tmp_path):
    path = write_file(tmp_path, "a.jsonl", '{"id": 1}\n{"id": 2, "text": "x"}\n{broken\n')
    records, counts = read(path, columns={"text": "text"})
    assert (records, counts.dropped) == ([{"text": "x"}], {"empty": 1, "not JSON": 1})
    for name in ("txt", "txt.de"):
        with pytest.raises(
            UserError, match=f"unknown column '{name}'; did .* Expected one of id, text$"
        ):
            read(path, columns={"text": name})
    path = write_file(tmp_path, "b.jsonl", '{"text": {"de": "x"}}\n')
    assert read(path, columns={"text": "text.en"})[1].dropped == {"empty": 1}


def test_dotted_names_select_nested_values(tmp_path):
    row = {"translation": {"en": "one", "de": "eins"}, "a.b": "dotted"}
    path = write_file(tmp_path, "a.jsonl", json.dumps(row))
    columns = {"source": "translation.en", "target": "translation.de"}
    assert read(path, columns=columns)[0] == [{"source": "one", "target": "eins"}]
    assert read(path, columns={"text": "a.b"})[0] == [{"text": "dotted"}]


def test_oversized_cells_are_counted(tmp_path, monkeypatch):
    for name in ("MAX_CHARACTERS", "MAX_BYTES"):
        monkeypatch.setattr(text_lines, name, 40)
    path = write_file(tmp_path, "a.tsv", f"a\tb\n{'x' * 100}\ty\n1\t2\n")
    records, counts = read(path, columns={"source": "a", "target": "b"})
    assert (len(records), counts.dropped) == (1, {"too long": 1})


@pytest.mark.parametrize(
    ("name", "data", "columns", "message"),
    [
        (
            "a.tsv",
            "sentence\tlabel\n",
            {"text": "sentense"},
            "unknown column 'sentense'; did you m",
        ),
        ("a.tsv", "x\ty\n", {"text": "2"}, "unknown column '2'; expected one of 0, 1"),
        (
            "a.csv",
            "x,y\n",
            {"text": "z"},
            r"expected one of x, y; a file without a header has columns 0, 1",
        ),
        ("a.doc", "x", {"text": "x"}, "expected a name that ends in"),
        (
            "a.json",
            '[{"text": 1}]',
            {"text": "text"},
            "expected JSON lines, one object per line, got a list",
        ),
        ("a.csv", 'x\n"' + "y" * 1_000_001, {"text": "x"}, "line 2: not CSV, the line is too long"),
        (
            "a.csv",
            'x\n"' + "y\n" * 600_000,
            {"text": "x"},
            r"not CSV \(field larger.*use --format",
        ),
    ],
)
def test_invalid_tables_are_rejected(tmp_path, name, data, columns, message):
    with pytest.raises(UserError, match=message):
        read(write_file(tmp_path, name, data), columns=columns)


def test_unknown_format_is_rejected(tmp_path):
    with pytest.raises(UserError, match="unknown format 'xls'; expected one of tsv, csv, jsonl"):
        read(write_file(tmp_path, "a.tsv", "x"), format="xls")


def test_folder_files_are_assigned_to_splits_by_name(tmp_path):
    for name in ("train-0.jsonl", "train-1.jsonl", "dev.tsv.gz", "test.csv", "README.md", "x.tsv"):
        write_file(tmp_path, name, "")
    names = lambda parts: {k: [path.name for path in v] for k, v in parts.items()}  # noqa: E731
    parts = split_files(tmp_path, {"valid": None, "test": None})
    assert names(parts) == {
        "train": ["train-0.jsonl", "train-1.jsonl"],
        "valid": ["dev.tsv.gz"],
        "test": ["test.csv"],
    }
    other = write_file(tmp_path, "other.tsv", "")
    parts = split_files(tmp_path, {"valid": "0.1", "test": str(other)})
    assert set(parts) == {"train", "test"} and parts["test"] == [other]
    for path in tmp_path.glob("train*"):
        path.unlink()
    with pytest.raises(UserError, match="expected a folder saved by `datasets`"):
        split_files(tmp_path, {})


def write_saved_dataset(folder, *, splits):
    """Write a folder in the layout of `Dataset.save_to_disk`, with empty data files."""
    for split in splits:
        split_folder = folder / split
        split_folder.mkdir(parents=True)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (split_folder / "state.json").write_text(json.dumps(state))
        (split_folder / "data-00000-of-00001.arrow").touch()
        names = {"_type": "ClassLabel", "names": ["bad", "good"]}
        info = {"features": {"text": {"_type": "Value"}, "label": names}}
        (split_folder / "dataset_info.json").write_text(json.dumps(info))


def test_saved_dataset_folder_is_recognized(tmp_path):
    write_saved_dataset(tmp_path, splits=["train", "validation"])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    assert split_files(tmp_path, {}) == {
        split: [tmp_path / name / "data-00000-of-00001.arrow"]
        for split, name in (("train", "train"), ("valid", "validation"))
    }
    assert set(split_files(tmp_path / "train", {})) == {"train"}
    (tmp_path / "train" / "state.json").write_text("{}")
    with pytest.raises(UserError, match=r"state.json cannot be read \(KeyError"):
        split_files(tmp_path, {})


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_missing_pyarrow_error_names_the_extra(tmp_path, monkeypatch, name):
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"requires pyarrow, .* pip install 'addnorm\[tabular\]'"):
        read(write_file(tmp_path, name, "PAR1"))


def test_parquet_and_arrow_give_the_same_records(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = arrow.table(
        {"sentence": [t for t, _ in ROWS], "label": ["1", "0", "1"], "n": [1, 2, 3]}
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[0] == EXPECTED
    with pytest.raises(
        UserError, match="unknown column 'text'; expected one of sentence, label, n"
    ):
        read(tmp_path / "a.parquet", columns={"text": "text"})
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        read(write_file(tmp_path, "b.parquet", "PAR1 and no more"))
    write_saved_dataset(tmp_path / "set", splits=["train"])
    table = arrow.table({"text": ["a", None, "c"], "label": [1, 0, 0]})
    path = tmp_path / "set" / "train" / "data-00000-of-00001.arrow"
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    paths = split_files(tmp_path / "set", {})["train"]
    records, counts = read(*paths, columns={"text": "text", "label": "label"})
    assert records == [{"text": "a", "label": "good"}, {"text": "c", "label": "bad"}]
    assert counts.first_locations == {"empty": f"{path}, row 2"}
    with pytest.raises(UserError, match="cannot be read as an Arrow stream"):
        read(write_file(tmp_path, "b.arrow", "no arrow"))


def test_repeated_text_of_a_parquet_file_is_not_expanded(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pool = pyarrow.default_memory_pool()
    texts = pyarrow.array(["word " * 400_000, "short"])  # 2 MB, 600 times
    numbers = pyarrow.array([0, 0, 1] * 300, pyarrow.int32())
    table = pyarrow.table({"text": pyarrow.DictionaryArray.from_arrays(numbers, texts)})
    path = tmp_path / "a.parquet"
    parquet.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30)
    assert path.stat().st_size < 10_000
    before = pool.bytes_allocated()
    counts, largest = RecordCounts(), 0
    for record in read_records([path], {"text": "text"}, counts=counts):
        assert record == {"text": "short"}
        largest = max(largest, pool.bytes_allocated() - before)
    assert counts.read == 900 and counts.dropped == {"too long": 600}
    assert largest < 50_000_000


def test_huge_column_of_a_parquet_file_is_rejected(tmp_path, monkeypatch):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("addnorm.data.readers.tables.MAX_CHUNK_BYTES", 1 << 20)
    table = pyarrow.table({"text": ["a" * 3_000_000], "other": ["b" * 9_000_000]})
    parquet.write_table(table, tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(UserError, match=r"at most 1 MB of column 'text' in a row group, got"):
        read(tmp_path / "a.parquet", columns={"text": "text"})


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_compressed_bomb_is_read_with_bounded_memory(tmp_path, compress):
    (tmp_path / "a.tsv").write_bytes(compress(b"text\n" + bytes(60_000_000) + b"\nend\n"))
    assert (tmp_path / "a.tsv").stat().st_size < 200_000
    tracemalloc.start()
    try:
        records, counts = read(tmp_path / "a.tsv", columns={"text": "text"})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert records == [{"text": "end"}] and counts.dropped == {"too long": 1}
    assert peak < 45_000_000


def test_xz_file_that_asks_for_gigabytes_is_rejected(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 400 << 20}]
    data = lzma.LZMACompressor(filters=filters)
    (tmp_path / "a.tsv").write_bytes(data.compress(b"text\na\n") + data.flush())
    with pytest.raises(UserError, match=r"a.tsv is damaged or truncated \(Memory usage limit"):
        read(tmp_path / "a.tsv", columns={"text": "text"})


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "{", '{"_data_files": 3}'])
def test_damaged_state_of_a_dataset_is_an_error_in_one_line(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UserError, match=r"state.json cannot be read") as error:
        find_split_files(tmp_path)
    assert "\n" not in str(error.value)
