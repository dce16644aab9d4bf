"""Records out of plain text files: a line of each side, or lines and paragraphs of one."""

from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path

from addnorm.core.errors import UserError
from addnorm.data.readers.streams import (
    Line,
    check_file,
    decode_line,
    read_lines,
    single_line,
    split_paragraphs,
)
from addnorm.data.record_counts import RecordCounts


def read_aligned_lines(
    source: str | Path, target: str | Path, *, errors: str, counts: RecordCounts
) -> Iterator[dict[str, str]]:
    """Line n of one file with line n of the other; refused if they do not have equally many."""
    read = [0, 0]
    for one, other in zip_longest(read_lines(source), read_lines(target)):
        read[0] += one is not None
        read[1] += other is not None
        if one is None or other is None:
            continue  # only to count the longer one
        counts.add_read()
        left = _extract_text(one, source, errors=errors, counts=counts)
        right = None if left is None else _extract_text(other, target, errors=errors, counts=counts)
        if left is not None and right is not None:
            yield {"source": left, "target": right}
    if read[0] != read[1]:
        raise UserError(
            f"{source} has {read[0]:,} lines and {target} has {read[1]:,}; wanted equally many, "
            f"line n of the one being the translation of line n of the other"
        )


def read_texts(
    path: str | Path, *, paragraphs: bool = False, errors: str, counts: RecordCounts
) -> Iterator[dict[str, str]]:
    """Every line of a file, or every paragraph between blank lines; giant ones in pieces."""
    if not paragraphs:
        for text in _iter_lines(path, errors=errors, counts=counts):
            counts.add_read()
            yield {"text": text}
        return
    for text in split_paragraphs(_iter_lines(path, errors=errors, counts=counts, keep_blank=True)):
        counts.add_read()
        yield {"text": text}


def _iter_lines(
    path: str | Path, *, errors: str, counts: RecordCounts, keep_blank: bool = False
) -> Iterator[str]:
    """The lines as they are, white space and all: a language model may want to learn it."""
    last = 0
    for line in read_lines(path, split_long=True):
        if line.number == last:
            counts.note("pieces that giant lines were cut into")
        last = line.number
        text = decode_line(line, errors, path=path)
        if text is not None and (keep_blank or text.strip()):
            yield single_line(_note_invalid(text, line, counts), counts)
        else:
            counts.add_read()
            reason = "invalid UTF-8" if text is None else "empty"
            counts.drop(reason, f"{path}, line {line.number}")


def _extract_text(line: Line, path: str | Path, *, errors: str, counts: RecordCounts) -> str | None:
    """The text of a line, or None with the reason counted."""
    text = decode_line(line, errors, path=path)
    if text is None:
        reason = "invalid UTF-8"
    elif line.is_truncated:
        reason = "too long"
    else:
        text = single_line(_note_invalid(text, line, counts), counts).strip()
        reason = "" if text else "empty"
    if reason:
        counts.drop(reason, f"{path}, line {line.number}")
        return None
    return text


def _note_invalid(text: str, line: Line, counts: RecordCounts) -> str:
    if not line.is_valid:
        counts.note("lines with invalid UTF-8, its bytes replaced")
    return text


def read_splits(
    pair_files: Mapping[str, tuple[Path | None, Path | None]],
    text_files: Mapping[str, Path | None],
    *,
    paragraphs: bool = False,
    errors: str = "drop",
    counts: RecordCounts,
) -> tuple[str, dict[str, Iterator[dict[str, str]]]]:
    """The task and the records of each split, out of the files that were given for it."""
    paired, single = any(map(any, pair_files.values())), any(text_files.values())
    if paired == single:
        raise UserError(
            f"got {'both --src/--tgt and --text' if paired else 'no file'}; wanted --src and --tgt "
            f"for translation, or --text for a language model"
        )
    if paired and paragraphs:
        raise UserError(
            "got --paragraphs with --src and --tgt; wanted it with --text alone, since a pair is a "
            "line of each file; leave it out"
        )
    parts = {}
    for split, path in text_files.items():
        if path is not None:
            parts[split] = read_texts(path, paragraphs=paragraphs, errors=errors, counts=counts)
    for split, (source, target) in pair_files.items():
        if source is not None and target is not None:
            parts[split] = read_aligned_lines(source, target, errors=errors, counts=counts)
        elif source is not None or target is not None:
            prefix = "--" if split == "train" else f"--{split}-"
            there, missing = ("src", "tgt") if target is None else ("tgt", "src")
            raise UserError(
                f"got {prefix}{there} without {prefix}{missing}; wanted both sides; add the other"
            )
    if "train" not in parts:
        wanted = "--text" if single else "--src and --tgt"
        raise UserError(
            f"got files to hold out and nothing to train on; wanted {wanted} beside them"
        )
    for path in (*text_files.values(), *(path for pair in pair_files.values() for path in pair)):
        if path is not None:
            check_file(path)
    return ("lm" if single else "translate"), parts
