"""Cleaning of pairs that were strings of programs: every rule says why it took one away."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from addnorm.core.errors import UserError, unknown
from addnorm.data.counts import Counts
from addnorm.data.sources import SEPARATORS, SURROGATES
from addnorm.data.split import Seen, digest

PLACEHOLDERS = ("drop", "mask", "keep")
DUPLICATES = ("source", "pair", "keep")

PLACEHOLDER = re.compile(
    r"%\([^)\s]*\)[#0+-]*\d*(?:\.\d+)?[a-zA-Z]"  # %(name)s
    r"|%\{[^}\s]*\}|%<[^>\s]*>[a-z]"  # %{name}, %<name>s
    r"|%(?:\d+\$)?[#0+'-]*(?:\d+|\*)?(?:\.(?:\d+|\*))?(?:hh|h|ll|l|[qjztLI])?[diouxXeEfFgGaAcCsSpnmb@]"
    r"(?![^\W\d_]{2})"  # "100%increase" is no place for an integer
    r"|%L?\d{1,2}|%[A-Z]{2,}|%%"  # Qt's %1, LibreOffice's %PRODUCTNAME
    r"|\$?\{\{[^{}]*\}\}|\$?\{[\w.:!\[\]-]*\}"  # {{ name }}, ${name}, {0:d}, {}
    r"|\$\([\w.]+\)|\$[A-Za-z_]\w*(?:\|)?|\$\d(?!\d|[.,]\d)"  # $(ARG1), $name|, $1
)
TAG = re.compile(r"</?[A-Za-z!][^<>]*>|&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z]\w{1,30});|\x1b\[")
PATH = re.compile(
    r"\w://|\bwww\.|\bmailto:|[\w.+-]@[\w-]+\.\w|\b[A-Za-z]:\\"
    r"|(?:^|[\s\"'`“„«»\u203a(=\[<:])(?:~|\.{1,2})?/[\w.-]"
)
FOREIGN = (
    (PLACEHOLDER, "placeholder", ("drop",)),
    (TAG, "markup", ("drop", "mask")),
    (PATH, "path", ("drop", "mask")),
)
CONTEXT = re.compile(r"^\|[\w -]+\|(?=.)")  # |menu item|Open, how some programs wrote a context
MARKS = "&_~"  # of a keyboard shortcut: Qt and Windows, GTK, LibreOffice
BEHIND = re.compile(rf"\s?\([{MARKS}]\w\)")  # 文件(&F)
ACRONYM = re.compile(r"(?<![^\W\d_])[A-Z]{1,3}&[A-Z]{1,3}(?![^\W\d_])")  # R&D, AT&T


@dataclass(frozen=True)
class Rules:
    """What a clean pair is."""

    placeholders: str = "drop"
    """Pairs with %s, {name} or $1, with tags, with paths or addresses: drop them, keep them, or
    mask: the placeholders become numbers, and pairs with the other things go."""
    duplicates: str = "source"
    """One pair for a source sentence, one of equal pairs, or keep all."""
    ratio: float = 4.0
    """The longer side may have so many times the characters of the shorter, and ten more."""
    min_words: int = 1
    """Words, by white space, that the side with more of them has at least."""
    max_words: int = 100
    """Words that a side has at most."""
    max_characters: int = 1000
    """Characters that a side has at most."""
    shortcuts: bool = True
    """Take away the marks of keyboard shortcuts, as strings of menus have them."""

    def __post_init__(self) -> None:
        if self.placeholders not in PLACEHOLDERS:
            raise UserError(unknown("placeholders", self.placeholders, PLACEHOLDERS))
        if self.duplicates not in DUPLICATES:
            raise UserError(unknown("duplicates", self.duplicates, DUPLICATES))
        if not self.ratio >= 1:
            raise UserError(f"the ratio of lengths is {self.ratio}; wanted 1 or more; try 4")
        if self.min_words > self.max_words:
            raise UserError(
                f"pairs of at least {self.min_words} and at most {self.max_words} words cannot be; "
                f"wanted --min-words no greater than --max-words"
            )


class Cleaner:
    """Applies rules to one pair after the other and counts what each takes away."""

    def __init__(self, rules: Rules, counts: Counts) -> None:
        self.rules, self.counts = rules, counts
        self.seen = Seen()

    def clean(self, source: str, target: str, where: str = "") -> tuple[str, str] | None:
        """The pair as it goes into a corpus, or None."""
        pair, reason = self._judged(source, target)
        if reason:
            self.counts.drop(reason, where)
            return None
        return pair

    def _judged(self, source: str, target: str) -> tuple[tuple[str, str], str]:
        rules = self.rules
        source, target = tidy(source), tidy(target)
        if rules.shortcuts:
            source, target = unmarked(CONTEXT.sub("", source), CONTEXT.sub("", target))
        if rules.placeholders == "mask":
            masked = mask(source, target)
            if masked is None:
                return (source, target), "placeholder"
            source, target = masked
        pair = source, target
        if not source or not target:
            return pair, "empty"
        if SURROGATES.search(source) or SURROGATES.search(target):
            return pair, "invalid text"
        for pattern, reason, modes in FOREIGN:
            found = pattern.search(source) or pattern.search(target)
            if found and rules.placeholders in modes:
                return pair, reason
        return pair, self._shape(source, target) or self._repeated(source, target)

    def _shape(self, source: str, target: str) -> str:
        rules = self.rules
        if source == target:
            return "equal sides"
        if not (any(map(str.isalpha, source)) and any(map(str.isalpha, target))):
            return "no letters"
        words = len(source.split()), len(target.split())
        short, long = sorted((len(source), len(target)))
        if max(words) > rules.max_words or long > rules.max_characters:
            return "too long"
        if max(words) < rules.min_words:
            return "too short"
        if long > rules.ratio * short + 10:
            return "length ratio"
        return ""

    def _repeated(self, source: str, target: str) -> str:
        if self.rules.duplicates == "keep":
            return ""
        text = source if self.rules.duplicates == "source" else f"{source}\n{target}"
        return "" if self.seen.add(digest(text)) else "duplicate"


def tidy(text: str) -> str:
    """White space, line breaks and control characters as single blanks."""
    return " ".join(SEPARATORS.sub(" ", text).replace("\u200b", "").split())


def unmarked(source: str, target: str) -> tuple[str, str]:
    """Both sides without the mark of a keyboard shortcut.

    >>> unmarked("Save _As...", "Speichern _unter ...")
    ('Save As...', 'Speichern unter ...')
    >>> unmarked("&File", "文件(&F)")
    ('File', '文件')
    >>> unmarked("R&D uses file_name", "F&E nimmt file_name")
    ('R&D uses file_name', 'F&E nimmt file_name')
    """
    plain = BEHIND.sub("", source), BEHIND.sub("", target)
    behind = plain != (source, target)
    source, target = plain
    for mark in MARKS:
        one, other = _marked(source, mark), _marked(target, mark)
        # Inside a word it is a mark only if the other side has one too, in another word.
        both = behind or (one is not None and other is not None and one.word != other.word)
        if one and (both or not one.inside):
            source = source.replace(mark, "", 1)
        if other and (both or not other.inside):
            target = target.replace(mark, "", 1)
    return source, target


class _Marked(NamedTuple):
    word: str
    inside: bool


def _marked(text: str, mark: str) -> _Marked | None:
    """The word that holds the one mark, and whether it stands inside; None if it is no mark."""
    if text.count(mark) != 1 or (mark == "&" and (ACRONYM.search(text) or TAG.search(text))):
        return None
    place = text.index(mark)
    if not text[place + 1 : place + 2].isalnum():
        return None
    word = text[text.rfind(" ", 0, place) + 1 :].split(" ", 1)[0]
    return _Marked(word, place > 0 and text[place - 1].isalnum())


def mask(source: str, target: str) -> tuple[str, str] | None:
    """Both sides with `{1}`, `{2}`, ... for their placeholders; None if they have not the same.

    >>> mask("%d of %s in %s", "%s in %s, davon %d")
    ('{1} of {2} in {3}', '{2} in {3}, davon {1}')
    """
    if sorted(PLACEHOLDER.findall(source)) != sorted(PLACEHOLDER.findall(target)):
        return None
    numbers: dict[tuple[str, int], int] = {}  # the second %s of both sides is one thing

    def masked(text: str) -> str:
        met: Counter[str] = Counter()

        def number(match: re.Match[str]) -> str:
            met[match[0]] += 1
            return f"{{{numbers.setdefault((match[0], met[match[0]]), len(numbers) + 1)}}}"

        return PLACEHOLDER.sub(number, text)

    return masked(source), masked(target)
