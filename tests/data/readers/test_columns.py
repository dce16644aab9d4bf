"""Tables: every format gives the same records, and every row is accounted for."""

import csv
import gzip
import io
import json
import lzma
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data.readers import streams
from addnorm.data.readers.columns import read_records, split_files
from addnorm.data.record_counts import RecordCounts

ROWS = [("good film", "1"), ("böse", "0"), ("so so", "1")]
COLUMNS = {"text": "sentence", "label": "label"}
WANTED = [{"text": text, "label": label} for text, label in ROWS]


def put(folder, name, data):
    path = folder / name
    data = data if isinstance(data, bytes) else data.encode()
    pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
    path.write_bytes(pack(data))
    return path


def read(*paths, columns=COLUMNS, **options):
    counts = RecordCounts()
    found = list(read_records(paths, columns, counts=counts, **options))
    counts.keep("train", len(found))
    counts.to_dict()  # adds up, or complains
    return found, counts


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
    found, counts = read(put(tmp_path, name, data))
    assert found == WANTED and counts.read == 3


def test_a_file_without_a_header_has_columns_by_number(tmp_path):
    path = put(tmp_path, "a.tsv.xz", TSV)
    assert read(path, columns={"text": "0", "label": "1"})[0] == WANTED
    assert read(put(tmp_path, "b", TSV), columns={"text": "0"}, format="tsv")[0] == [
        {"text": text} for text, _ in ROWS
    ]
    numbers = put(tmp_path, "c.csv", "1,0\nx,y\n")
    assert read(numbers, columns={"text": "0"}, header=True)[0] == [{"text": "y"}]


SAFE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1).filter(
    str.strip
)


@given(st.lists(st.tuples(SAFE | st.just('a "quoted", b'), SAFE), min_size=1))
@pytest.mark.peer
def test_what_pythons_csv_writes_is_read(tmp_path_factory, rows):
    file = io.StringIO()
    csv.writer(file).writerows([("text", "label"), *rows])
    path = put(tmp_path_factory.mktemp("csv"), "a.csv", file.getvalue())
    found = read(path, columns={"text": "text", "label": "label"})[0]
    assert [tuple(record.values()) for record in found] == [(a.strip(), b.strip()) for a, b in rows]


def test_a_quoted_cell_may_hold_lines_and_its_row_is_one_record(tmp_path):
    path = put(tmp_path, "a.csv", 'text,label\n"one\ntwo, ""three""",a\nfour,b\n')
    found, counts = read(path, columns={"text": "text", "label": "label"})
    assert found == [{"text": 'one two, "three"', "label": "a"}, {"text": "four", "label": "b"}]
    assert counts.notes == {"line separators inside a line, now blanks": 1}
    assert read(path, columns={"text": "text"})[0][0] == {"text": 'one\ntwo, "three"'}


def test_rows_that_are_no_use_are_counted(tmp_path):
    data = b"a\tb\n1\t2\n\n3\n4\t5\t6\n\t7\nb\xffd\t8\n9\t10\n"
    path = put(tmp_path, "a.tsv", data)
    found, counts = read(path, columns={"source": "a", "target": "b"})
    assert found == [{"source": "1", "target": "2"}, {"source": "9", "target": "10"}]
    assert counts.dropped == {"empty": 2, "other number of columns": 2, "invalid UTF-8": 1}
    assert counts.first_locations["invalid UTF-8"] == f"{path}, line 7"
    replaced, counts = read(path, columns={"source": "a", "target": "b"}, errors="replace")
    assert replaced[1] == {"source": "b\ufffdd", "target": "8"}
    assert counts.notes == {"cells with invalid UTF-8, its bytes replaced": 1}
    with pytest.raises(UserError, match="line 7: expected UTF-8 in column 'a'; try --errors drop"):
        read(path, columns={"source": "a", "target": "b"}, errors="refuse")


def test_json_values_of_all_kinds(tmp_path):
    values = ["x", 1, 2.5, True, None, [], {}, "", "\ud800", float("nan")]
    lines = [json.dumps({"text": value}) for value in values]
    path = put(tmp_path, "a.jsonl", "\n".join([*lines, "{broken", "[1]", "{}", "", "5"]))
    found, counts = read(path, columns={"text": "text"})
    assert [record["text"] for record in found] == ["x", "1", "2.5", "true"]
    assert counts.dropped == {
        "empty": 5,
        "neither text nor number": 2,
        "invalid UTF-8": 1,
        "not JSON": 1,
        "not a JSON object": 2,
    }


def test_a_column_may_be_missing_in_some_rows_but_not_in_all(tmp_path):
    path = put(tmp_path, "a.jsonl", '{"id": 1}\n{"id": 2, "text": "x"}\n{broken\n')
    found, counts = read(path, columns={"text": "text"})
    assert (found, counts.dropped) == ([{"text": "x"}], {"empty": 1, "not JSON": 1})
    for name in ("txt", "txt.de"):
        with pytest.raises(UserError, match=f"unknown column '{name}'; did .* Known: id, text$"):
            read(path, columns={"text": name})
    path = put(tmp_path, "b.jsonl", '{"text": {"de": "x"}}\n')
    assert read(path, columns={"text": "text.en"})[1].dropped == {"empty": 1}


def test_nested_values_are_reached_with_a_dot(tmp_path):
    row = {"translation": {"en": "one", "de": "eins"}, "a.b": "dotted"}
    path = put(tmp_path, "a.jsonl", json.dumps(row))
    wanted = {"source": "translation.en", "target": "translation.de"}
    assert read(path, columns=wanted)[0] == [{"source": "one", "target": "eins"}]
    assert read(path, columns={"text": "a.b"})[0] == [{"text": "dotted"}]


def test_giant_cells_are_counted(tmp_path, monkeypatch):
    for name in ("MAX_CHARACTERS", "MAX_BYTES"):
        monkeypatch.setattr(streams, name, 40)
    path = put(tmp_path, "a.tsv", f"a\tb\n{'x' * 100}\ty\n1\t2\n")
    found, counts = read(path, columns={"source": "a", "target": "b"})
    assert (len(found), counts.dropped) == (1, {"too long": 1})


@pytest.mark.parametrize(
    ("name", "data", "columns", "words"),
    [
        (
            "a.tsv",
            "sentence\tlabel\n",
            {"text": "sentense"},
            "unknown column 'sentense'; did you m",
        ),
        ("a.tsv", "x\ty\n", {"text": "2"}, "unknown column '2'; Known: 0, 1"),
        ("a.csv", "x,y\n", {"text": "z"}, r"Known: x, y; a file without a header has columns 0, 1"),
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
def test_tables_that_cannot_be_right_are_refused(tmp_path, name, data, columns, words):
    with pytest.raises(UserError, match=words):
        read(put(tmp_path, name, data), columns=columns)


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(UserError, match="unknown format 'xls'; Known: tsv, csv, jsonl"):
        read(put(tmp_path, "a.tsv", "x"), format="xls")


def test_a_folder_with_named_files_has_parts(tmp_path):
    for name in ("train-0.jsonl", "train-1.jsonl", "dev.tsv.gz", "test.csv", "README.md", "x.tsv"):
        put(tmp_path, name, "")
    names = lambda parts: {k: [path.name for path in v] for k, v in parts.items()}  # noqa: E731
    parts = split_files(tmp_path, {"valid": None, "test": None})
    assert names(parts) == {
        "train": ["train-0.jsonl", "train-1.jsonl"],
        "valid": ["dev.tsv.gz"],
        "test": ["test.csv"],
    }
    other = put(tmp_path, "other.tsv", "")
    parts = split_files(tmp_path, {"valid": "0.1", "test": str(other)})
    assert set(parts) == {"train", "test"} and parts["test"] == [other]
    for path in tmp_path.glob("train*"):
        path.unlink()
    with pytest.raises(UserError, match="expected a folder saved by `datasets`"):
        split_files(tmp_path, {})


def saved(folder, *, parts):
    """A folder as save_to_disk of `datasets` writes it, its data empty."""
    for split in parts:
        place = folder / split
        place.mkdir(parents=True)
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (place / "state.json").write_text(json.dumps(state))
        (place / "data-00000-of-00001.arrow").touch()
        names = {"_type": "ClassLabel", "names": ["bad", "good"]}
        info = {"features": {"text": {"_type": "Value"}, "label": names}}
        (place / "dataset_info.json").write_text(json.dumps(info))


def test_a_folder_of_datasets_is_recognised(tmp_path):
    saved(tmp_path, parts=["train", "validation"])
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
def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch, name):
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"requires pyarrow, .* pip install 'addnorm\[tabular\]'"):
        read(put(tmp_path, name, "PAR1"))


def test_parquet_and_arrow_give_the_same_records(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = arrow.table(
        {"sentence": [t for t, _ in ROWS], "label": ["1", "0", "1"], "n": [1, 2, 3]}
    )
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet")[0] == WANTED
    with pytest.raises(UserError, match="unknown column 'text'; Known: sentence, label, n"):
        read(tmp_path / "a.parquet", columns={"text": "text"})
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        read(put(tmp_path, "b.parquet", "PAR1 and no more"))
    saved(tmp_path / "set", parts=["train"])
    table = arrow.table({"text": ["a", None, "c"], "label": [1, 0, 0]})
    path = tmp_path / "set" / "train" / "data-00000-of-00001.arrow"
    with arrow.OSFile(str(path), "wb") as sink, arrow.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    paths = split_files(tmp_path / "set", {})["train"]
    found, counts = read(*paths, columns={"text": "text", "label": "label"})
    assert found == [{"text": "a", "label": "good"}, {"text": "c", "label": "bad"}]
    assert counts.first_locations == {"empty": f"{path}, row 2"}
    with pytest.raises(UserError, match="cannot be read as an Arrow stream"):
        read(put(tmp_path, "b.arrow", "no arrow"))
