"""Locks of folders, so that two processes do not write into one."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from addnorm.core.errors import UserError
from addnorm.core.files import remove_stale_files

LOCK_FILE = ".lock"


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
        remove_stale_files(folder)
        yield


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to lock a file without waiting, and yield whether this process holds the lock.

    The lock is released when the block ends or the process dies. The block deletes the file.
    """
    while True:
        with path.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                yield False
                return
            if not _is_same_file(file.fileno(), path):
                continue  # the last holder deleted it in between, and others lock a new file
            try:
                yield True
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def _is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
