"""Atomic file writes, JSON files and folder locks.

A file written here is either complete or absent: it is written under a temporary name, flushed to
disk, and renamed. A reader never sees a part of it, even after a power failure.
"""

import fcntl
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError

LOCK_FILE = ".lock"


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` when the block succeeds.

    If the block raises, the temporary file is deleted and `path` keeps its old content. Missing
    parent folders are created.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "answer.txt"
    >>> with atomic_write(target) as temporary:
    ...     _ = temporary.write_text("42")
    >>> target.read_text()
    '42'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        fsync_path(temporary)
        temporary.replace(path)
        fsync_path(path.parent)
    except OSError as problem:
        if problem.filename in (None, str(temporary)):
            problem.filename = str(path)  # a failed write does not name its file
        raise
    finally:
        temporary.unlink(missing_ok=True)


def fsync_path(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, data: Any) -> None:
    """Write `data` as indented JSON, atomically; NaN and infinities become null."""
    text = json.dumps(replace_nonfinite(data), indent=2, ensure_ascii=False, allow_nan=False)
    with atomic_write(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or None if there is no such file.

    Raises:
        UserError: the file does not contain JSON
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as problem:
        raise UserError(
            f"{path} is not JSON ({problem}); delete it and rerun the command that wrote it"
        ) from None


def replace_nonfinite(value: Any) -> Any:
    """Return a copy of nested JSON data with None in place of NaN and infinities.

    >>> replace_nonfinite({"loss": math.nan, "curve": (1.0, math.inf)})
    {'loss': None, 'curve': [1.0, None]}
    """
    if isinstance(value, dict):
        return {name: replace_nonfinite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def folder_lock(folder: Path, activity: str = "training") -> Iterator[None]:
    """Create `folder` if needed and hold its lock; the system releases it if the process dies.

    Args:
        folder: the folder to lock
        activity: what the holder does in the folder, for the error message of other processes

    Raises:
        UserError: another process holds the lock, or the folder is not writable
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / LOCK_FILE).touch()
    except OSError as problem:
        raise UserError(
            f"cannot write to {folder} ({problem.strerror or problem}); choose a writable folder "
            "with -o"
        ) from None
    with try_lock(folder / LOCK_FILE) as acquired:
        if not acquired:
            raise UserError(
                f"another process is {activity} into {folder}; wait for it to end, or choose "
                "another -o"
            )
        yield


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to lock a file without waiting, and yield whether this process holds the lock.

    The lock is released when the block ends or the process dies.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
