"""Files that engines send between machines, checked before they are written."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from addnorm.comparison.cell_result import ERROR_SUFFIX, LOG_SUFFIX, RESULT_SUFFIX
from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write

FileContents = dict[str, bytes]
"""File contents by relative path."""


def read_files(folder: Path, *, prefix: str = "") -> FileContents:
    """Return the files below a folder, hidden ones left out, by `prefix` and relative path."""
    return {
        f"{prefix}{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name[0] != "."
    }


def write_files(contents: Mapping[str, bytes], folder: Path) -> None:
    """Write files below a folder, in their order.

    Raises:
        UserError: a name is absolute, contains `..`, or leaves the folder by a symbolic link; then
            nothing is written
    """
    root = folder.resolve()
    for name, data in contents.items():
        path = PurePosixPath(name)
        is_inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
        if not is_inside or "\0" in name or not (root / name).resolve().is_relative_to(root):
            raise UserError(f"expected a file below {folder}, got {name!r} from another process")
        if not isinstance(data, bytes):
            raise UserError(f"{name}: expected bytes, got {type(data).__name__}")
    for name, data in contents.items():
        with atomic_write(root / name) as temporary:
            temporary.write_bytes(data)


def write_cell_files(contents: Mapping[str, bytes], folder: Path) -> None:
    """Write the files that a worker returned for a cell.

    Args:
        contents: files in the folder of the cell, and its log, error and result beside it
        folder: folder of the cell

    Raises:
        UserError: a file belongs to another cell or lies elsewhere; then nothing is written
    """
    # The result is the last one: it marks the cell as finished.
    beside = [f"{folder.name}.{suffix}" for suffix in (LOG_SUFFIX, ERROR_SUFFIX, RESULT_SUFFIX)]
    for name in contents:
        if name not in beside and not name.startswith(f"{folder.name}/"):
            raise UserError(f"expected files of cell {folder.name}, got {name!r} from its worker")
    ordered = sorted(contents, key=lambda name: beside.index(name) if name in beside else -1)
    write_files({name: contents[name] for name in ordered}, folder.parent)
