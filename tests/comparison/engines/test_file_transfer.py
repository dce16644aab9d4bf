"""Files of other machines: only those of the cell are written, and the result is the last one."""

import pytest

from addnorm.comparison.engines.file_transfer import read_files, write_cell_files, write_files
from addnorm.core.errors import UserError


def test_files_round_trip(tmp_path):
    contents = {"a/b.txt": b"1", "c.bin": b"\0\xff"}
    write_files(contents, tmp_path)
    (tmp_path / ".lock").touch()
    assert read_files(tmp_path) == contents
    assert read_files(tmp_path, prefix="data/") == {f"data/{k}": v for k, v in contents.items()}


@pytest.mark.parametrize(
    "name",
    ["../x", "/tmp/x", "a/../../x", "..", "", ".", "a/..", "link/x", "x\0y", "cell/../../x"],
)
def test_name_outside_the_folder_is_rejected(tmp_path, name):
    folder, other = tmp_path / "folder", tmp_path / "other"
    folder.mkdir(), other.mkdir()
    (folder / "link").symlink_to(other)
    with pytest.raises(UserError, match="expected a file below"):
        write_files({"good.txt": b"", name: b"bad"}, folder)
    assert [path.name for path in folder.iterdir()] == ["link"]
    assert not list(other.iterdir())


def test_symbolic_link_is_replaced_not_followed(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x").symlink_to(target)
    with pytest.raises(UserError):
        write_files({"x": b"new"}, tmp_path / "folder")
    assert target.read_bytes() == b"kept"


@pytest.mark.parametrize("name", ["other.json", "other/rows.jsonl", "../result.json", "cellar/x"])
def test_worker_writes_its_own_cell_only(tmp_path, name):
    with pytest.raises(UserError, match="expected files of cell cell"):
        write_cell_files({"cell/rows.jsonl": b"", name: b""}, tmp_path / "cell")
    assert not list(tmp_path.iterdir())


def test_text_instead_of_bytes_is_rejected(tmp_path):
    with pytest.raises(UserError, match="expected bytes, got str"):
        write_files({"x": "text"}, tmp_path)


def test_result_is_written_last(tmp_path, monkeypatch):
    """A collection that is killed half-way does not look like a finished cell."""
    written = []
    monkeypatch.setattr(
        "pathlib.Path.write_bytes", lambda self, data: (written.append(self.name), self.touch())
    )
    contents = {"cell.json": b"", "cell.log": b"", "cell/rows.jsonl": b"", "cell/config.yaml": b""}
    write_cell_files(contents, tmp_path / "cell")
    assert [name.split(".")[1] for name in written] == ["rows", "config", "cell", "cell"]
    assert written[-1].startswith(".cell.json")
