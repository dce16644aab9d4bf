"""Files of one split of a corpus, with their checksums."""

import hashlib
from contextlib import ExitStack
from pathlib import Path

from addnorm.core.files import atomic_write


class SplitWriter:
    """Writes the lines of a split to one file, or to shards.

    Args:
        folder, split: where
        shard_bytes: size of a shard; None for one file
        files: closes the files, which get their names then
    """

    def __init__(self, folder: Path, split: str, shard_bytes: int | None, files: ExitStack) -> None:
        self.folder, self.split, self.files = folder, split, files
        self.shard_bytes = shard_bytes
        self.checksums: dict[str, str] = {}
        self._open_next()

    def write(self, line: bytes) -> None:
        """Append a line; a shard that is full is followed by another."""
        if self.shard_bytes is not None and self.num_bytes >= self.shard_bytes:
            self.close()
            self._open_next()
        self.file.write(line)
        self.checksum.update(line)
        self.num_bytes += len(line)

    def close(self) -> dict[str, str]:
        """Close the current file; return the checksums of all files by name."""
        self.file.close()
        self.checksums[self.name] = self.checksum.hexdigest()
        return self.checksums

    def _open_next(self) -> None:
        number = "" if self.shard_bytes is None else f"-{len(self.checksums) + 1:05d}"
        self.name = f"{self.split}{number}.jsonl"
        temporary = self.files.enter_context(atomic_write(self.folder / self.name))
        self.file = self.files.enter_context(temporary.open("wb"))
        self.checksum, self.num_bytes = hashlib.sha256(), 0
