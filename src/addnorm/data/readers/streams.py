"""Text files as they come: plain, .gz or .xz, line by line, with what is wrong with a line."""

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

MAX_CHARACTERS = 1_000_000  # of one line; a longer one is no sentence
MAX_BYTES = 4 * MAX_CHARACTERS  # what so many characters take at most

# The beginning of a file says what it is; its name may lie.
GZIP, XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
UNSUPPORTED_FORMATS = {
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"BZh": "packed with bzip2; unpack it first, or pack it with gzip or xz",
    b"\x28\xb5\x2f\xfd": "packed with zstd; unpack it first, or pack it with gzip or xz",
    b"\xff\xfe": "in UTF-16; wanted UTF-8, try iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "in UTF-16; wanted UTF-8, try iconv -f UTF-16 -t UTF-8",
}
BOM = b"\xef\xbb\xbf"

# All that some program, Python's `splitlines` among them, takes for the end of a line, and NUL.
SEPARATORS = re.compile("[\x00\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]+")
SURROGATES = re.compile("[\ud800-\udfff]")  # bytes that are no UTF-8 (surrogateescape), "\ud800"
ERROR_MODES = ("drop", "replace", "refuse")
MAX_LISTED_NAMES = 1000  # of a folder, among which the one that was meant is looked for


@dataclass(frozen=True)
class Line:
    """One line of a file, without its end."""

    number: int
    text: str
    is_valid: bool = True
    """False: some bytes were no UTF-8; they stand in the text as lone surrogates."""
    is_truncated: bool = False
    """More than `MAX_CHARACTERS`: the text is cut."""


class ByteReader(Protocol):
    """What is read here: a plain file, or the inside of a packed one."""

    def readline(self, size: int, /) -> bytes:
        """The next line, or the first `size` bytes of it."""

    def __iter__(self) -> Iterator[bytes]:
        """Lines."""


def check_file(path: str | Path) -> None:
    """Refuse what is no file, before anything else is read."""
    path = Path(path)
    if path.is_dir():
        raise UserError(
            f"{path} is a folder; wanted a file, plain, .gz or .xz; try one of those in it"
        )
    if not path.exists():
        raise UserError(
            f"{path}: there is no such file; wanted one, plain, .gz or .xz; {suggest_path(path)}"
        )


def suggest_path(path: Path) -> str:
    """What to try where nothing is: the nearest name beside it, or the folder that is missing."""
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    with suppress(OSError):  # it may be entered, but not listed
        names = [each.name for each in islice(path.parent.iterdir(), MAX_LISTED_NAMES)]
        if close := closest_names(path.name, names):
            return f"did you mean {path.parent / close[0]}?"
    return "look at the spelling"


@contextmanager
def open_text(path: str | Path) -> Iterator[ByteReader]:
    """The bytes of a file, unpacked if it begins like gzip or xz, whatever its name is."""
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
                with lzma.LZMAFile(raw) as unpacked:
                    yield unpacked
            else:
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as problem:
        raise UserError(
            f"{path} is damaged or cut short ({problem}); unpack it by hand to see how far it goes"
        ) from None
    except OSError as problem:
        raise UserError(
            f"{path} cannot be read ({problem.strerror or problem}); wanted a file that you may "
            f"read; look at its rights with ls -l"
        ) from None


def read_lines(path: str | Path, *, split_long: bool = False) -> Iterator[Line]:
    r"""The lines of a file, one by one; only \n and \r\n end a line.

    A giant line is cut after `MAX_CHARACTERS` and the rest of it skipped; with `pieces` it comes as
    several lines of one number, cut at white space where there is some.
    """
    with open_text(path) as file:
        number = 0
        while data := file.readline(MAX_BYTES + 2):
            number += 1
            if number == 1:
                data = data.removeprefix(BOM)
            whole = data.endswith(b"\n") or len(data) < MAX_BYTES
            text = _decode_bytes(data.removesuffix(b"\n").removesuffix(b"\r"))
            if whole and len(text) <= MAX_CHARACTERS:
                yield _make_line(number, text)
            elif split_long:
                yield from _split_long_line(file, number, data)
            else:
                while not data.endswith(b"\n") and (data := file.readline(MAX_BYTES)):
                    pass
                yield _make_line(number, text[:MAX_CHARACTERS], is_truncated=True)


def decode_line(line: Line, errors: str, *, path: str | Path) -> str | None:
    """The text of a line; of one with invalid UTF-8 what `errors` wants, None for "drop"."""
    if line.is_valid or errors == "replace":
        return replace_invalid(line.text)
    if errors == "refuse":
        raise UserError(
            f"{path}, line {line.number} is no UTF-8; try --errors drop or --errors replace, "
            f"or iconv if the file has another encoding"
        )
    return None


def replace_invalid(text: str) -> str:
    """The text with U+FFFD where it holds bytes that are no UTF-8."""
    return text if text.isascii() else SURROGATES.sub("\ufffd", text)


def single_line(text: str, counts: RecordCounts) -> str:
    """The text without anything that a program might take for the end of a line."""
    plain = SEPARATORS.sub(" ", text)
    if plain != text:
        counts.note("line separators inside a line, now blanks")
    return plain


def split_paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Paragraphs out of lines, blank ones between them; none is longer than `MAX_CHARACTERS`."""
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


def _make_line(number: int, text: str, *, is_truncated: bool = False) -> Line:
    return Line(number, text, text.isascii() or not SURROGATES.search(text), is_truncated)


def _decode_bytes(data: bytes) -> str:
    return data.decode("utf-8", errors="surrogateescape")


def _split_long_line(file: ByteReader, number: int, data: bytes) -> Iterator[Line]:
    """A giant line, of which `data` is read, in pieces."""
    rest = b""
    while data:
        last = data.endswith(b"\n")
        data = rest + data
        # A character may go on in what is not read yet: keep back an unfinished one.
        cut = len(data) if last else len(data) - _count_incomplete_bytes(data)
        text, rest = _decode_bytes(data[:cut]).removesuffix("\n").removesuffix("\r"), data[cut:]
        while len(text) > MAX_CHARACTERS:
            end = text.rfind(" ", MAX_CHARACTERS // 2, MAX_CHARACTERS) + 1 or MAX_CHARACTERS
            yield _make_line(number, text[:end])
            text = text[end:]
        if last:
            rest = text.encode("utf-8", errors="surrogateescape")
            break
        rest = text.encode("utf-8", errors="surrogateescape") + rest
        data = file.readline(MAX_BYTES)
    if rest:
        yield _make_line(number, _decode_bytes(rest))


def _count_incomplete_bytes(data: bytes) -> int:
    """How many bytes at the end begin a character that is not all there."""
    for back in range(1, 4):
        byte = data[-back] if back <= len(data) else 0
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if need > back else 0
        if byte < 0x80:
            return 0
    return 0
