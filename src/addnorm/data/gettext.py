"""Gettext catalogues: what a .mo or .po file says, entry by entry."""

import gettext
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from babel.messages.pofile import PoFileError, read_po

LITTLE, BIG = b"\xde\x12\x04\x95", b"\x95\x04\x12\xde"
CHARSET = re.compile(rb"charset\s*=\s*([\w.:-]+)", re.IGNORECASE)
PLURALS = re.compile(r"nplurals\s*=\s*(\d+)\s*;\s*plural\s*=\s*([^;\n]+)")
LANGUAGE = re.compile(r"^Language:[ \t]*(\S+)[ \t]*$", re.MULTILINE)
# Lines of a .po file that nobody here wants and that babel stumbles over: the dates of the header,
# which need not be dates, and the former text of an obsolete entry.
UNWANTED = re.compile(r'"(?:PO-Revision|POT-Creation)-Date:|#~\|')
DEFAULT = re.compile(r'Default:\s*"(.*)"\s*$')


class BrokenCatalogue(Exception):
    """A file that is no catalogue, or a damaged one."""


@dataclass(frozen=True)
class Entry:
    """One message and its translations; several where the message has plural forms."""

    ids: tuple[str, ...]
    strings: tuple[str, ...]
    context: str | None = None
    fuzzy: bool = False
    obsolete: bool = False
    default: str = ""
    """The English text of a symbolic id, where a comment gives it."""

    @property
    def key(self) -> tuple[str | None, str]:
        """What catalogues of two languages have in common."""
        return self.context, self.ids[0]


@dataclass(frozen=True)
class Catalogue:
    """The entries of a file, without its header entry, and what the header says."""

    entries: tuple[Entry, ...]
    language: str = ""
    plurals: int = 2
    singular: int = 0
    """Which of the strings is for the number one."""


def read_catalogue(path: str | Path) -> Catalogue:
    """Read a .mo or .po file, by what it begins with."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise BrokenCatalogue(problem.strerror or str(problem)) from None
    return parse_mo(data) if data[:4] in (LITTLE, BIG) else parse_po(data)


def parse_mo(data: bytes) -> Catalogue:
    """The catalogue of a .mo file.

    Not babel's `read_mo`, which decodes before it knows the charset, ends at a date it does not
    like, and loses messages that differ only in their context. Messages that differ between systems
    ("%<PRIuMAX>" and the like, a second table of the file) are left out, as babel and Python do.
    """
    try:
        raw = list(_mo(data))
    except (struct.error, IndexError) as problem:
        raise BrokenCatalogue(f"a .mo file cut short: {problem}") from None
    header = next((string for id, string in raw if not id), b"")
    charset = _charset(header)
    entries = []
    for id, string in raw:
        if not id:
            continue
        context, mark, message = id.rpartition(b"\x04")
        entries.append(
            Entry(
                tuple(_text(part, charset) for part in message.split(b"\0")),
                tuple(_text(part, charset) for part in string.split(b"\0")),
                context=_text(context, charset) if mark else None,
            )
        )
    text = _text(header, charset)
    number, rule = found.groups() if (found := PLURALS.search(text)) else ("2", "n != 1")
    language = found[1] if (found := LANGUAGE.search(text)) else ""
    return Catalogue(tuple(entries), language, int(number), _singular(rule))


def parse_po(data: bytes) -> Catalogue:
    """The catalogue of a .po file, read by babel."""
    text = _text(data.removeprefix(b"\xef\xbb\xbf"), _charset(data))
    lines = [line for line in text.split("\n") if not UNWANTED.match(line)]
    try:
        found = read_po(lines, abort_invalid=True)
    except (
        PoFileError,
        ValueError,
        IndexError,
        AssertionError,
        AttributeError,
        TypeError,
    ) as error:
        raise BrokenCatalogue(f"no .po file: {error}") from None
    entries = [
        Entry(
            _forms(message.id),
            _forms(message.string),
            context=message.context,
            fuzzy=message.fuzzy,
            obsolete=obsolete,
            default=_default(message.auto_comments),
        )
        for obsolete, messages in ((False, found), (True, found.obsolete.values()))
        for message in messages
        if message.id
    ]
    if not entries and "msgid" not in text:
        raise BrokenCatalogue("no .po file: it has no message")
    singular = _singular(found.plural_expr)
    return Catalogue(tuple(entries), found.locale_identifier or "", found.num_plurals, singular)


def _mo(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The ids and strings of a .mo file as bytes."""
    order = "<" if data[:4] == LITTLE else ">"
    version, count, ids, strings = struct.unpack_from(f"{order}4I", data, 4)
    if version >> 16 > 1:
        raise BrokenCatalogue(f"a .mo file of unknown version {version >> 16}")
    for number in range(count):
        pair = []
        for table in (ids, strings):
            length, start = struct.unpack_from(f"{order}2I", data, table + 8 * number)
            if start + length > len(data):
                raise BrokenCatalogue(f"a .mo file cut short: message {number + 1} of {count}")
            pair.append(data[start : start + length])
        yield pair[0], pair[1]


def _forms(text: str | Sequence[str] | None) -> tuple[str, ...]:
    return (text or "",) if isinstance(text, str | None) else tuple(text)


def _singular(rule: str) -> int:
    """Which string is for the number one, by the rule that the header gives in C."""
    try:
        return gettext.c2py(rule.strip())(1)
    except (ValueError, OverflowError, ZeroDivisionError, RecursionError):
        return 0


def _charset(header: bytes) -> str:
    found = CHARSET.search(header)
    name = found[1].decode("ascii") if found else "utf-8"
    if name == "CHARSET":  # a template's
        return "utf-8"
    try:
        "".encode(name)
    except LookupError:
        raise BrokenCatalogue(f"an unknown charset {name!r}") from None
    return name


def _text(data: bytes, charset: str) -> str:
    return data.decode(charset, errors="surrogateescape")


def _default(comments: list[str]) -> str:
    found = (DEFAULT.match(comment) for comment in comments)
    return next((match[1].replace('\\"', '"') for match in found if match), "")
