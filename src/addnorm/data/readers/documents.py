"""Whole documents as records: a file keeps its line breaks, blank lines and white space.

A document is written in pieces of about `PIECE_CHARACTERS`, so that no reader of a corpus has to
hold a large file in memory. The concatenated pieces are the document; each but the first is marked
as the continuation of the record before it.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from addnorm.data.corpus import CONTINUES, PREVIOUS
from addnorm.data.readers.text_lines import decode_line, read_lines
from addnorm.data.record_counts import RecordCounts

PIECE_CHARACTERS = 10_000
"""Characters of a piece; at most twice as many where no good place to cut follows."""
# Byte-level tokenizers split a text at these places, so a cut there does not change the tokens.
BEFORE_LINE = re.compile(r"(?<=\S\n)(?=\S)")
BEFORE_WORD = re.compile(r"(?<=\S)(?= \S)")


def read_document(
    path: str | Path, *, errors: str, counts: RecordCounts
) -> Iterator[dict[str, str]]:
    r"""Yield the pieces of a file; none if it is blank.

    Only \r\n is changed, to \n. Lines with invalid UTF-8 are dropped, replaced or refused.

    Args:
        path: the file
        errors: handling of lines with invalid UTF-8: drop, replace or strict
        counts: counts of dropped lines and documents, updated in place. Pieces are not counted,
            because splitting the corpus may cut them again
    """
    has_begun, pending, dropped = False, [], counts.dropped.total()
    for piece in cut_document(_iter_text(path, errors=errors, counts=counts)):
        pending.append(piece)  # blank pieces belong to the document only if text follows
        if has_begun or piece.strip():
            for text in pending:
                yield {"text": text, CONTINUES: PREVIOUS} if has_begun else {"text": text}
                has_begun = True
            pending = []
    if has_begun:
        counts.note("documents")
    elif counts.dropped.total() == dropped:  # otherwise the reason is counted already
        counts.add_read()
        counts.drop("empty", str(path))


def cut_document(texts: Iterable[str]) -> Iterator[str]:
    """Join texts and cut the result again, into pieces of a bounded size."""
    rest = ""
    for text in texts:
        rest += text
        while len(rest) > 2 * PIECE_CHARACTERS:
            cut = _find_cut(rest)
            yield rest[:cut]
            rest = rest[cut:]
    if rest:
        yield rest


def _find_cut(text: str) -> int:
    for pattern in (BEFORE_LINE, BEFORE_WORD):
        if match := pattern.search(text, PIECE_CHARACTERS, 2 * PIECE_CHARACTERS):
            return match.start()
    return PIECE_CHARACTERS


def _iter_text(path: str | Path, *, errors: str, counts: RecordCounts) -> Iterator[str]:
    """Yield the text of a file line by line, line breaks included."""
    for line in read_lines(path, split_long=True):
        text = decode_line(line, errors, path=path)
        if text is None:
            counts.add_read()
            counts.drop("invalid UTF-8", f"{path}, line {line.number}")
            continue
        if not line.is_valid:
            counts.note("lines with invalid UTF-8, its bytes replaced")
        if line.end == "\r\n":
            counts.note("line breaks \\r\\n, now \\n")
        yield text + ("\n" if line.end == "\r\n" else line.end)
