"""Files that come into being whole: written under a temporary name, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: str | Path) -> Iterator[Path]:
    """A temporary name beside `path` to write to.

    It becomes `path` if the block ends well, and vanishes if it does not; whoever reads `path` sees
    the old file or the new one, never a part, even after a power cut.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "answer.txt"
    >>> with replacing(target) as name:
    ...     _ = name.write_text("42")
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
    finally:
        temporary.unlink(missing_ok=True)


def fsync_path(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
