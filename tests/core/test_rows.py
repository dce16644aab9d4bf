"""Rows: round trips, incomplete files, full disks."""

import json
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.core.rows import read_rows, write_rows

# The strings "nan", "inf" and "-inf" are read as numbers, because JSON has no such numbers.
text = st.text().filter(lambda word: word not in ("nan", "inf", "-inf"))
rows = st.lists(
    st.dictionaries(
        st.text(), st.one_of(text, st.integers(), st.floats(), st.booleans(), st.none())
    )
)


def same(a, b):
    return str(list(a)) == str(list(b))  # nan is not equal to itself, but prints the same


@given(rows)
def test_rows_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    write_rows(path, rows)
    assert same(read_rows(path), rows)


@given(rows, rows)
def test_append_adds_rows(tmp_path_factory, old, new):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    write_rows(path, old, append=True)
    write_rows(path, new, append=True)
    assert same(read_rows(path), [*old, *new])


def test_file_is_standard_json(tmp_path):
    path = tmp_path / "rows.jsonl"
    write_rows(path, [{"loss": math.nan, "norm": -math.inf, "arm": "größer"}, {"step": 1}])
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[0] == '{"loss": "nan", "norm": "-inf", "arm": "größer"}'
    json.loads(lines[0], parse_constant=pytest.fail)
    first = next(read_rows(path))
    assert math.isnan(first["loss"])
    assert first["norm"] == -math.inf


def test_lone_surrogate_round_trips(tmp_path):
    write_rows(tmp_path / "rows.jsonl", [{"file": "\udcff"}])
    assert next(read_rows(tmp_path / "rows.jsonl")) == {"file": "\udcff"}


def test_write_creates_folders_and_leaves_no_temporary_file(tmp_path):
    path = tmp_path / "a" / "b" / "rows.jsonl"
    write_rows(path, [{"a": 1}])
    assert [file.name for file in path.parent.iterdir()] == ["rows.jsonl"]


def test_empty_file_has_no_rows(tmp_path):
    write_rows(tmp_path / "rows.jsonl", [])
    assert list(read_rows(tmp_path / "rows.jsonl")) == []


@pytest.mark.parametrize("size", range(1, 15))
def test_incomplete_last_line_is_ignored(tmp_path, size):
    """Truncated at every byte, including inside a character."""
    path = tmp_path / "rows.jsonl"
    whole, cut = b'{"a": 1}\n', '{"b": "ü日😀"}'.encode()
    path.write_bytes(whole + cut[:size])
    assert list(read_rows(path)) == [{"a": 1}]


@pytest.mark.parametrize("tail", ['{"b": "ü', "{", '{"b": 1, ', "\xff"])
def test_append_removes_incomplete_last_line(tmp_path, tail):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + tail.encode("latin-1"))
    write_rows(path, [{"c": 2}], append=True)
    assert list(read_rows(path)) == [{"a": 1}, {"c": 2}]


def test_append_keeps_complete_row_without_line_feed(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}')
    write_rows(path, [{"c": 2}], append=True)
    assert list(read_rows(path)) == [{"a": 1}, {"c": 2}]


def test_blank_lines_are_ignored(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\r\n\n{"a": 2}\n\n')
    assert [row["a"] for row in read_rows(path)] == [1, 2]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (b'{"a": \n', r"line 2 is not JSON .*; expected one object per line"),
        (b"\xff\xfe\n", r"line 2 is not JSON .*can't decode"),
        (b"[1, 2]\n", r"line 2: expected a JSON object, got \[1, 2\]"),
        (b"3\n", r"line 2: expected a JSON object, got 3"),
    ],
)
def test_invalid_line_is_reported_with_its_number(tmp_path, broken, message):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + broken + b'{"a": 2}\n')
    found = read_rows(path)
    assert next(found) == {"a": 1}
    with pytest.raises(UserError, match=message):
        next(found)


@pytest.mark.parametrize("name", ["nowhere.jsonl", "."])
def test_missing_file_is_reported(tmp_path, name):
    with pytest.raises(UserError, match=r"no rows at .*: there is no such file"):
        list(read_rows(tmp_path / name))


@pytest.mark.parametrize(
    ("row", "got"),
    [
        ({"a": [1, 2]}, r"'a': \[1, 2\] of type list"),
        ({"a": {"b": 1}}, "of type dict"),
        ({"a": 1j}, "of type complex"),
        ({1: 2}, "got 1: 2"),
    ],
)
def test_nested_row_is_rejected_and_nothing_is_written(tmp_path, row, got):
    path = tmp_path / "rows.jsonl"
    write_rows(path, [{"a": 1}])
    for append in (False, True):
        with pytest.raises(UserError, match=got):
            write_rows(path, [{"a": 2}, row], append=append)
    assert list(read_rows(path)) == [{"a": 1}]


def test_full_disk_keeps_old_file(tmp_path):
    """A process limited to 4096 bytes per file fails like one on a full disk."""
    path = tmp_path / "rows.jsonl"
    write_rows(path, [{"a": 1}])
    code = (
        "import resource, sys; from addnorm.core import write_rows\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"try: write_rows({str(path)!r}, [{{'a': i}} for i in range(10000)])\n"
        "except OSError as problem: sys.exit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 7
    assert list(read_rows(path)) == [{"a": 1}]
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]
