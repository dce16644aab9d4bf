"""Records from plain text files: aligned lines of two files, or lines, paragraphs or all of one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Literal

from addnorm.core.errors import UserError
from addnorm.data.readers.documents import read_document
from addnorm.data.readers.text_lines import (
    Line,
    check_file,
    decode_line,
    read_lines,
    single_line,
    split_paragraphs,
)
from addnorm.data.record_counts import RecordCounts

TextUnit = Literal["line", "paragraph", "document"]
"""Part of a file that is one text."""
UNIT_OPTIONS: dict[TextUnit, str] = {
    "line": "--lines",
    "paragraph": "--paragraphs",
    "document": "--document",
}


def read_aligned_lines(
    source: str | Path, target: str | Path, *, errors: str, counts: RecordCounts
) -> Iterator[dict[str, str]]:
    """Yield line n of one file with line n of the other.

    Args:
        source: file of the sources
        target: file of the targets
        errors: handling of lines with invalid UTF-8: drop, replace or strict
        counts: counts of read and dropped records, updated in place

    Raises:
        UserError: the files have different numbers of lines
    """
    read = [0, 0]
    for one, other in zip_longest(read_lines(source), read_lines(target)):
        read[0] += one is not None
        read[1] += other is not None
        if one is None or other is None:
            continue  # count the lines of the longer file for the error message
        counts.add_read()
        left = _extract_text(one, source, errors=errors, counts=counts)
        right = None if left is None else _extract_text(other, target, errors=errors, counts=counts)
        if left is not None and right is not None:
            yield {"source": left, "target": right}
    if read[0] != read[1]:
        raise UserError(
            f"expected files with equal numbers of lines, got {source} with {read[0]:,} and "
            f"{target} with {read[1]:,}; line n of one is the translation of line n of the other"
        )


def read_lines_as_texts(
    path: str | Path, *, errors: str, counts: RecordCounts
) -> Iterator[dict[str, str]]:
    """Yield each line of a file that is not blank; huge ones in pieces."""
    for text in _iter_lines(path, errors=errors, counts=counts):
        counts.add_read()
        yield {"text": text}


def read_paragraphs(
    path: str | Path, *, errors: str, counts: RecordCounts
) -> Iterator[dict[str, str]]:
    """Yield each paragraph between blank lines of a file; huge ones in pieces."""
    for text in split_paragraphs(_iter_lines(path, errors=errors, counts=counts, keep_blank=True)):
        counts.add_read()
        yield {"text": text}


READERS: dict[TextUnit, Callable[..., Iterator[dict[str, str]]]] = {
    "line": read_lines_as_texts,
    "paragraph": read_paragraphs,
    "document": read_document,
}


def read_texts(
    paths: Sequence[str | Path], *, unit: TextUnit, errors: str, counts: RecordCounts
) -> Iterator[dict[str, str]]:
    """Yield the texts of files, in their order.

    Args:
        paths: the files
        unit: part of a file that is one text
        errors: handling of lines with invalid UTF-8: drop, replace or strict
        counts: counts of read and dropped records, updated in place
    """
    for path in paths:
        yield from READERS[unit](path, errors=errors, counts=counts)


def _iter_lines(
    path: str | Path, *, errors: str, counts: RecordCounts, keep_blank: bool = False
) -> Iterator[str]:
    """Yield the lines with their white space, which a language model may learn."""
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
    """Return the text of a line; None, with the reason counted, if it is dropped."""
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
    text_files: Mapping[str, Sequence[Path]],
    *,
    unit: TextUnit | None = None,
    errors: str = "drop",
    counts: RecordCounts,
) -> dict[str, Iterator[dict[str, str]]]:
    """Return the records of each split.

    Args:
        pair_files: source and target file of each split
        text_files: text files of each split
        unit: part of a text file that is one text; lines if None
        errors: handling of lines with invalid UTF-8: drop, replace or strict
        counts: counts of read and dropped records, updated in place
    """
    has_pairs, has_texts = any(map(any, pair_files.values())), any(text_files.values())
    if has_pairs == has_texts:
        raise UserError(
            "expected --source and --target for translation, or --text for a language model, got "
            f"{'both' if has_pairs else 'none of them'}"
        )
    if has_pairs and unit is not None:
        option = UNIT_OPTIONS[unit]
        raise UserError(
            f"{option}: expected with --text only, got it with --source and --target; leave it out"
        )
    splits = {}
    for split, paths in text_files.items():
        if paths:
            splits[split] = read_texts(paths, unit=unit or "line", errors=errors, counts=counts)
    for split, (source, target) in pair_files.items():
        if source is not None and target is not None:
            splits[split] = read_aligned_lines(source, target, errors=errors, counts=counts)
        elif source is not None or target is not None:
            prefix = "--" if split == "train" else f"--{split}-"
            present, missing = ("source", "target") if target is None else ("target", "source")
            raise UserError(f"{prefix}{present}: expected {prefix}{missing} with it, got one file")
    if "train" not in splits:
        options = "--text" if has_texts else "--source and --target"
        raise UserError(f"expected {options} for training, got held-out files only")
    groups = (*text_files.values(), *pair_files.values())
    for path in (path for group in groups for path in group):
        if path is not None:
            check_file(path)
    return splits
