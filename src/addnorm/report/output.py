"""Atomic output files whose failures are user errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write


@contextmanager
def open_output(path: Path) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds.

    Raises:
        UserError: if the file system refuses the write; `path` is unchanged
    """
    try:
        with atomic_write(path) as temporary:
            yield temporary
    except OSError as error:
        raise write_error(path, error) from None


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file atomically and return its path."""
    with open_output(path) as temporary:
        temporary.write_bytes(content)
    return path


def write_error(path: Path, error: OSError) -> UserError:
    """Return the error of a file or folder that cannot be written."""
    return UserError(
        f"cannot write {str(path)!r}: {error.strerror or error}; choose another location"
    )
