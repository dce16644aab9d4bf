"""Lines of text files, plain, .gz or .xz, with their encoding errors."""

import gzip
import lzma
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from addnorm.core.errors import UserError, closest_names
from addnorm.data.record_counts import RecordCounts

MAX_CHARACTERS = 1_000_000
"""Characters of a line; a longer line is truncated or split."""
MAX_XZ_MEMORY = 1 << 28
"""Memory that decompressing an .xz file may take; `xz -9` needs 65 MB."""
MAX_BYTES = 4 * MAX_CHARACTERS  # UTF-8 has at most four bytes per character

# Formats are recognized by their first bytes, not by the file name.
GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
UNSUPPORTED_FORMATS = {
    b"PK\x03\x04": "a zip archive; extract it first",
    b"BZh": "compressed with bzip2; decompress it first, or use gzip or xz",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; decompress it first, or use gzip or xz",
    b"\xff\xfe": "in UTF-16; expected UTF-8, try iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "in UTF-16; expected UTF-8, try iconv -f UTF-16 -t UTF-8",
}
BOM = b"\xef\xbb\xbf"

# Characters that programs such as Python's `splitlines` take for the end of a line, and NUL.
SEPARATORS = re.compile("[\x00\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]+")
SURROGATES = re.compile("[\ud800-\udfff]")  # invalid UTF-8, decoded with surrogateescape
ERROR_MODES = ("drop", "replace", "strict")
MAX_LISTED_NAMES = 1000
"""Names of a folder among which a misspelled path is searched."""


@dataclass(frozen=True)
class Line:
    """A line of a file, without its line break."""

    number: int
    text: str
    is_valid: bool = True
    """Whether all bytes are UTF-8; others are lone surrogates in the text."""
    is_truncated: bool = False
    """Whether the text was cut after `MAX_CHARACTERS`."""
    end: str = ""
    r"""Line break after the text: \n, \r\n, or \r at the end of a file; empty in a long line."""


class ByteReader(Protocol):
    """A binary file, plain or decompressed."""

    def readline(self, size: int, /) -> bytes:
        """Return the next line, or its first `size` bytes."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines."""


def check_file(path: str | Path) -> None:
    """Raise UserError unless a path is a file."""
    path = Path(path)
    if path.is_dir():
        raise UserError(
            f"{path}: expected a file, plain, .gz or .xz, got a folder; name a file in it"
        )
    if not path.exists():
        raise UserError(
            f"{path}: expected a file, plain, .gz or .xz, got no such file; {suggest_path(path)}"
        )


def suggest_path(path: Path) -> str:
    """Return a hint for a missing file: the closest name beside it, or the missing folder."""
    if not path.parent.is_dir():
        return f"the folder {path.parent} does not exist"
    with suppress(OSError):  # the folder may be unreadable
        names = [each.name for each in islice(path.parent.iterdir(), MAX_LISTED_NAMES)]
        if close := closest_names(path.name, names):
            return f"did you mean {path.parent / close[0]}?"
    return "check the spelling"


@contextmanager
def open_text(path: str | Path) -> Iterator[ByteReader]:
    """Open a file as bytes; gzip and xz are decompressed, whatever the file name."""
    path = Path(path)
    check_file(path)
    try:
        with path.open("rb") as raw:
            start = raw.peek(6)[:6]
            for magic, what in UNSUPPORTED_FORMATS.items():
                if start.startswith(magic):
                    raise UserError(f"{path} is {what}")
            if start.startswith(GZIP):
                with gzip.GzipFile(fileobj=raw) as unpacked:
                    yield unpacked
            elif start.startswith(XZ):
                # The header may ask for gigabytes; this raises before they are allocated.
                check = lzma.LZMADecompressor(memlimit=MAX_XZ_MEMORY)
                check.decompress(raw.peek(), max_length=1)
                with lzma.LZMAFile(raw) as unpacked:
                    yield unpacked
            else:
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as problem:
        raise UserError(
            f"{path} is damaged or truncated ({problem}); decompress it by hand to check it"
        ) from None
    except OSError as problem:
        raise UserError(
            f"{path} cannot be read ({problem.strerror or problem}); check its permissions"
        ) from None


def read_lines(path: str | Path, *, split_long: bool = False) -> Iterator[Line]:
    r"""Yield the lines of a file; only \n and \r\n end a line.

    Args:
        path: the file
        split_long: whether a line beyond `MAX_CHARACTERS` yields several lines of equal number,
            split at a space if possible; otherwise it is truncated
    """
    with open_text(path) as file:
        number = 0
        while data := file.readline(MAX_BYTES + 2):
            number += 1
            if number == 1:
                data = data.removeprefix(BOM)
            is_complete = data.endswith(b"\n") or len(data) < MAX_BYTES
            text, end = _split_line_break(_decode_bytes(data))
            if is_complete and len(text) <= MAX_CHARACTERS:
                yield _make_line(number, text, end=end)
            elif split_long:
                yield from _split_long_line(file, number, data)
            else:
                while not data.endswith(b"\n") and (data := file.readline(MAX_BYTES)):
                    pass
                yield _make_line(number, text[:MAX_CHARACTERS], is_truncated=True)


def decode_line(line: Line, errors: str, *, path: str | Path) -> str | None:
    """Return the text of a line; None for a line to drop.

    Args:
        line: the line
        errors: handling of invalid UTF-8: drop, replace or strict
        path: the file, for error messages
    """
    if line.is_valid or errors == "replace":
        return replace_invalid(line.text)
    if errors == "strict":
        raise UserError(
            f"{path}, line {line.number}: expected UTF-8; try --errors drop or --errors replace, "
            f"or iconv if the file has another encoding"
        )
    return None


def replace_invalid(text: str) -> str:
    """Replace each byte of invalid UTF-8 by U+FFFD."""
    return text if text.isascii() else SURROGATES.sub("\ufffd", text)


def single_line(text: str, counts: RecordCounts) -> str:
    """Replace characters that a program may take for the end of a line by spaces."""
    joined = SEPARATORS.sub(" ", text)
    if joined != text:
        counts.note("line separators inside a line, now blanks")
    return joined


def split_paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Join lines to paragraphs, separated by blank lines, of at most `MAX_CHARACTERS`."""
    held: list[str] = []
    size = 0
    for text in texts:
        blank = not text.strip()
        if held and (blank or size + len(text) > MAX_CHARACTERS):
            yield "\n".join(held)
            held, size = [], 0
        if not blank:
            held.append(text)
            size += len(text) + 1
    if held:
        yield "\n".join(held)


def _make_line(number: int, text: str, *, is_truncated: bool = False, end: str = "") -> Line:
    return Line(number, text, text.isascii() or not SURROGATES.search(text), is_truncated, end)


def _split_line_break(text: str) -> tuple[str, str]:
    """Return a line without its break, and the break."""
    end = next((end for end in ("\r\n", "\n", "\r") if text.endswith(end)), "")
    return text.removesuffix(end), end


def _decode_bytes(data: bytes) -> str:
    return data.decode("utf-8", errors="surrogateescape")


def _split_long_line(file: ByteReader, number: int, data: bytes) -> Iterator[Line]:
    """Yield a long line in pieces; `data` is the part that was read."""
    rest, end = b"", ""
    while data:
        last = data.endswith(b"\n")
        data = rest + data
        # The bytes of a character may continue in the next read: keep back an incomplete one.
        cut = len(data) if last else len(data) - _count_incomplete_bytes(data)
        text, rest = _decode_bytes(data[:cut]), data[cut:]
        if last:
            text, end = _split_line_break(text)
        while len(text) > MAX_CHARACTERS:
            stop = text.rfind(" ", MAX_CHARACTERS // 2, MAX_CHARACTERS) + 1 or MAX_CHARACTERS
            yield _make_line(number, text[:stop])
            text = text[stop:]
        if last:
            rest = text.encode("utf-8", errors="surrogateescape")
            break
        rest = text.encode("utf-8", errors="surrogateescape") + rest
        data = file.readline(MAX_BYTES)
    if rest:
        yield _make_line(number, _decode_bytes(rest), end=end)


def _count_incomplete_bytes(data: bytes) -> int:
    """Return the number of bytes at the end that begin an incomplete character."""
    for back in range(1, 4):
        byte = data[-back] if back <= len(data) else 0
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if need > back else 0
        if byte < 0x80:
            return 0
    return 0
