"""Files: checksums, damaged documents, atomic writes, leftovers of killed processes."""

import errno
import fcntl
import json
import os
import subprocess
import sys

import pytest

from addnorm.core.errors import UserError
from addnorm.core.files import (
    HOST,
    atomic_write,
    check_file,
    file_checksum,
    read_json,
    read_json_and_files,
    read_yaml,
    write_json,
    write_yaml,
)
from addnorm.core.key_values import load_yaml, parse_key_values
from addnorm.core.locks import LOCK_FILE, folder_lock, try_lock
from addnorm.core.rows import RowLog, RowsMark, read_rows

BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}]\n"
    for before, name in zip("abcdefghij", "bcdefghijk", strict=True)
)
INVALID_JSON = {
    "brackets": b"[" * 100_000,
    "objects": b'{"a":' * 100_000,
    "nested": b"[" * 500 + b"]" * 500,
    "integer": b"9" * 10_000,
    "nan": b'{"a": NaN}',
    "duplicate": b'{"a": 1, "a": 2}',
    "bom": b'\xef\xbb\xbf{"a": 1}',
    "utf-8": b'{"a": "\xff"}',
    "utf-16": '{"a": 1}'.encode("utf-16"),
    "nul": b"\x00" * 100,
    "empty": b"",
    "words": b"just words",
}
INVALID_YAML = {
    "brackets": b"[" * 100_000,
    "nested": b"a: " + b"[" * 300 + b"]" * 300,
    "integer": b"a: " + b"9" * 10_000,
    "duplicate": b"a: 1\na: 2\n",
    "utf-8": b"a: \xff",
    "nul": b"a: \x00",
    "aliases": BOMB.encode(),
    "self": b"a: &a [*a]",
    "date": b"a: 2001-99-99",
    "tag": b"a: !!timestamp x",
    "boolean": b"a: !!bool 3",
    "python": b"a: !!python/object/apply:os.system [ls]",
    "unhashable": b"? [a]\n: 1",
    "huge": b"a: " + b"x" * 3_000_000,
}


@pytest.mark.parametrize("name", INVALID_JSON)
def test_invalid_json_is_an_error_in_one_line(tmp_path, name):
    path = tmp_path / "a.json"
    path.write_bytes(INVALID_JSON[name])
    with pytest.raises(UserError, match=r"a.json is not JSON \(.*; delete it and rerun") as error:
        read_json(path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("name", INVALID_YAML)
def test_invalid_yaml_is_an_error_in_one_line(tmp_path, name):
    path = tmp_path / "a.yaml"
    path.write_bytes(INVALID_YAML[name])
    with pytest.raises(UserError, match=r"a.yaml is not YAML \(") as error:
        load_yaml(path, "recipe")
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("text", ["", "3", "- a", "1: 2"])
def test_yaml_without_keys_is_rejected(tmp_path, text):
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(UserError, match=r"a.yaml contains no keys"):
        load_yaml(tmp_path / "a.yaml", "recipe")


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 10_000, "[*a]", "!!bool 3"])
def test_invalid_argument_is_an_error_in_one_line(value):
    with pytest.raises(UserError, match=r"cannot parse 'dim=.*'; expected key=value") as error:
        parse_key_values([f"dim={value}"])
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_folders_and_pipes_are_not_read(tmp_path, read):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(UserError, match="expected a file, got a folder or a device"):
            read(tmp_path / name)
    assert read(tmp_path / "nothing") is None


def test_json_round_trips_and_notices_every_change(tmp_path):
    path = tmp_path / "a.json"
    data = {"b": [1, 0.1, None], "größe": {"x": "\udcff"}, "1": True}
    write_json(path, data, files={"weights": "abc"})
    assert read_json(path) == data
    assert read_json_and_files(path) == (data, {"weights": "abc"})
    for key, value in {"b": [1], "new": 1, "files": {}, "checksum": "0"}.items():
        write_json(path, data, files={"weights": "abc"})
        stored = json.loads(path.read_text())
        path.write_text(json.dumps(stored | {key: value}))
        with pytest.raises(UserError, match="has changed since it was written: its checksum"):
            read_json(path)
    path.write_text(json.dumps({"a": 1}))  # written by hand
    assert read_json(path) == {"a": 1}
    with pytest.raises(UserError, match="has no checksum"):
        read_json_and_files(path, required=True)


@pytest.mark.parametrize("files", [[], {"../a": "x"}, {"a": 1}])
def test_checksums_of_other_folders_are_rejected(tmp_path, files):
    (tmp_path / "a.json").write_text(json.dumps({"files": files}))
    with pytest.raises(UserError, match="files: expected checksums by file name"):
        read_json(tmp_path / "a.json")


def test_file_of_a_newer_version_is_an_error_in_one_line(tmp_path):
    path = tmp_path / "facts.json"
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
    path.write_text(path.read_text().replace('"file_format": 1', '"file_format": 2'))
    with pytest.raises(UserError, match=r"expected file format 1, got 2; .* update this one$"):
        read_json(path)


def test_json_has_one_checksum_for_any_type_of_key(tmp_path):
    write_json(tmp_path / "a.json", {"counts": {10: 1, 9: 2}})
    assert read_json(tmp_path / "a.json") == {"counts": {"10": 1, "9": 2}}


def test_edited_yaml_is_accepted_without_its_first_line(tmp_path):
    path = tmp_path / "a.yaml"
    write_yaml(path, "dim: 8\nnorm: größer\n")
    assert read_yaml(path) == {"dim": 8, "norm": "größer"}
    first, rest = path.read_text().split("\n", 1)
    edited = rest.replace("8", "9")
    path.write_text(f"{first}\n{edited}")
    with pytest.raises(UserError, match="restore it, or delete its first line to accept"):
        read_yaml(path)
    assert read_yaml(path, verify=False)["dim"] == 9
    path.write_text(edited)
    assert read_yaml(path)["dim"] == 9
    path.write_text(f"{first}\n")  # all other lines are lost
    with pytest.raises(UserError, match="has changed since it was written"):
        read_yaml(path)


def test_checked_file_must_not_change(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"abc" * 1_000_000)
    checksum = file_checksum(path)
    check_file(path, checksum, hint="restore it")
    with path.open("r+b") as file:
        file.seek(2_500_000)
        file.write(b"x")
    with pytest.raises(UserError, match=r"weights has changed .* checksum differs; restore it"):
        check_file(path, checksum, hint="restore it")
    path.unlink()
    with pytest.raises(UserError, match=r"cannot be read \(No such file or directory\)"):
        check_file(path, checksum, hint="restore it")


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    dead, alive = f"{HOST}-{dead_pid()}", f"{HOST}-{os.getppid()}"
    far = f"0000aaaa-{dead_pid()}"  # maybe alive on another machine
    stale = [tmp_path / f".{name}.{dead}" for name in ("a.json", "rows.jsonl", "b.yaml")]
    names = (f".a.json.{alive}", f".a.json.{far}", ".a.json.x", f".notes.{dead}", "x.1")
    kept = [tmp_path / name for name in names]
    for path in (*stale, *kept):
        path.write_text("")
    write_json(tmp_path / "a.json", {})
    assert [path.exists() for path in stale] == [False, True, True]
    with folder_lock(tmp_path):
        assert not any(path.exists() for path in stale)
    assert all(path.exists() for path in kept)


def test_killed_writer_leaves_nothing_after_the_next_write(tmp_path):
    code = (
        "import os, signal, sys; from addnorm.core.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as path:\n"
        "    path.write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a[1].json")], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    write_json(tmp_path / "a[1].json", {"a": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["a[1].json"]


def test_written_file_has_the_rights_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", {})
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640


def test_symbolic_link_is_written_through(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link.json").symlink_to("far/a.json")
    for value in (1, 2):  # a new file, then an existing one
        write_json(tmp_path / "link.json", {"a": value})
        assert (tmp_path / "link.json").is_symlink()
        assert read_json(tmp_path / "far" / "a.json") == {"a": value}
    assert {path.name for path in tmp_path.iterdir()} == {"far", "link.json"}


def test_failed_write_keeps_the_old_file(tmp_path):
    write_json(tmp_path / "a.json", {"a": 1})
    with pytest.raises(OSError, match="full"), atomic_write(tmp_path / "a.json") as path:
        path.write_text("{")
        raise OSError(errno.ENOSPC, "full")
    assert read_json(tmp_path / "a.json") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_locked_folder_holds_no_other_file(tmp_path):
    with folder_lock(tmp_path / "new"):
        assert [path.name for path in (tmp_path / "new").iterdir()] == [LOCK_FILE]


def test_lock_file_is_deleted_with_the_lock(tmp_path):
    path = tmp_path / "lock"
    with try_lock(path) as first, try_lock(path) as second:
        assert (first, second) == (True, False)
        assert path.exists()
    assert not path.exists()
    with pytest.raises(OSError, match="full"), folder_lock(tmp_path / "new"):
        raise OSError("full")
    assert not list((tmp_path / "new").iterdir())


def test_lock_of_a_file_that_its_holder_deletes_in_between(tmp_path, monkeypatch):
    """A lock of a deleted file protects nothing: other processes create a new one."""
    path, lock = tmp_path / "lock", fcntl.flock
    calls = []

    def delete_before_first_lock(file, flags):
        if not calls:
            path.unlink()
        calls.append(flags)
        lock(file, flags)

    monkeypatch.setattr(fcntl, "flock", delete_before_first_lock)
    with try_lock(path) as first, try_lock(path) as second:
        assert (first, second) == (True, False)


def test_marks_notice_lost_and_changed_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    log = RowLog(path)
    log.append([{"a": 1}, {"a": 2}])
    middle = log.mark
    log.append([{"a": 3}])
    for mark in (RowsMark(), middle, log.mark):
        mark.check(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"2", b"5"))
    with pytest.raises(UserError, match="has changed since it was written: its checksum differs"):
        middle.check(path)
    for lost in (b"", data[:-1], data[:9]):
        path.write_bytes(lost)
        with pytest.raises(UserError, match=r"is truncated: expected at least 27 bytes, got \d+;"):
            log.mark.check(path)
    path.unlink()
    with pytest.raises(UserError, match=r"cannot be read \(No such file or directory\)"):
        middle.check(path)


def test_log_continues_after_a_mark(tmp_path):
    path = tmp_path / "rows.jsonl"
    log = RowLog(path)
    log.append([{"a": 1}])
    mark = log.mark
    log.append([{"a": 2}])
    again = RowLog(path)
    again.truncate(mark)
    again.append([{"a": 2}])
    assert again.mark == log.mark
    assert list(read_rows(path)) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000])
def test_endless_lines_are_errors_in_one_line(tmp_path, line):
    (tmp_path / "rows.jsonl").write_bytes(line + b"\n")
    with pytest.raises(UserError, match=r"rows.jsonl, line 1") as error:
        list(read_rows(tmp_path / "rows.jsonl"))
    assert len(str(error.value)) < 300
