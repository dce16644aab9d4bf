"""Plain text readers: alignment of parallel files and counts of dropped lines."""

import pytest

from addnorm.core.errors import UserError
from addnorm.data.readers import text_lines
from addnorm.data.readers.text_files import (
    read_aligned_lines,
    read_lines_as_texts,
    read_paragraphs,
    read_splits,
)
from addnorm.data.record_counts import RecordCounts


def write_file(folder, name, data):
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def read(function, *paths, **options):
    counts = RecordCounts()
    records = list(function(*paths, counts=counts, **{"errors": "drop", **options}))
    counts.keep("train", len(records))
    counts.to_dict()  # raises if the counts are inconsistent
    return records, counts


def test_parallel_lines_stay_aligned_around_dropped_lines(tmp_path):
    source = write_file(tmp_path, "a", b"one\r\n\ntwo\x0b2\nb\xffd\nfour\n \nsix")
    target = write_file(tmp_path, "b", "eins\nleer\nzwei\u2028\nkaputt\nvier\r\nleer\nsechs\n")
    records, counts = read(read_aligned_lines, source, target)
    assert [(pair["source"], pair["target"]) for pair in records] == [
        *(("one", "eins"), ("two 2", "zwei"), ("four", "vier"), ("six", "sechs"))
    ]
    assert counts.read == 7
    assert counts.dropped == {"empty": 2, "invalid UTF-8": 1}
    assert counts.first_locations == {
        "empty": f"{source}, line 2",
        "invalid UTF-8": f"{source}, line 4",
    }


def test_invalid_utf8_is_replaced_and_counted(tmp_path):
    source, target = write_file(tmp_path, "a", b"b\xffd\n"), write_file(tmp_path, "b", "schlecht\n")
    records, counts = read(read_aligned_lines, source, target, errors="replace")
    assert records == [{"source": "b\ufffdd", "target": "schlecht"}]
    assert counts.notes == {"lines with invalid UTF-8, its bytes replaced": 1}
    with pytest.raises(UserError, match="line 1: expected UTF-8"):
        read(read_aligned_lines, source, target, errors="strict")


def test_unequal_line_counts_are_rejected(tmp_path):
    source, target = write_file(tmp_path, "a", "1\n2\n3"), write_file(tmp_path, "b", "1\n" * 1200)
    with pytest.raises(
        UserError, match=r"equal numbers of lines, got .*a with 3 and .*b with 1,200"
    ):
        read(read_aligned_lines, source, target)
    with pytest.raises(
        UserError, match=r"equal numbers of lines, got .*b with 1,200 and .*a with 3"
    ):
        read(read_aligned_lines, target, source)


def test_oversized_lines_are_dropped_from_pairs_and_split_in_texts(tmp_path, monkeypatch):
    monkeypatch.setattr(text_lines, "MAX_CHARACTERS", 10)
    monkeypatch.setattr(text_lines, "MAX_BYTES", 40)
    path = write_file(tmp_path, "a", f"one\n{'word ' * 20}\nthree\n")
    records, counts = read(read_aligned_lines, path, path)
    assert [pair["source"] for pair in records] == ["one", "three"]
    assert counts.dropped == {"too long": 1} and counts.first_locations == {
        "too long": f"{path}, line 2"
    }
    records, counts = read(read_lines_as_texts, path)
    assert "".join(record["text"] for record in records) == f"one{'word ' * 20}three"
    assert counts.read == len(records) == 12
    assert counts.notes == {"pieces that giant lines were cut into": 9}


def test_lines_keep_their_whitespace(tmp_path):
    path = write_file(tmp_path, "a", " = Title = \n\n\tx\x0c\n  \n")
    records, counts = read(read_lines_as_texts, path)
    assert [record["text"] for record in records] == [" = Title = ", "\tx "]
    assert counts.dropped == {"empty": 2}


def test_paragraphs_end_at_blank_lines(tmp_path):
    path = write_file(tmp_path, "a", b"one\n  two\n\n\nthr\xffee\nfour\n")
    records, counts = read(read_paragraphs, path)
    assert [record["text"] for record in records] == ["one\n  two", "four"]
    assert counts.dropped == {"invalid UTF-8": 1}


@pytest.mark.parametrize(
    ("sides", "texts", "options", "message"),
    [
        ({}, {}, {}, "or --text for a language model, got none of them"),
        ({"train": "ab"}, {"train": "a"}, {}, "expected --source and --target .* got both"),
        ({"train": "a"}, {}, {}, "--source: expected --target with it"),
        ({"train": " b"}, {}, {}, "--target: expected --source with it"),
        ({"train": "ab", "test": " b"}, {}, {}, "--test-target: expected --test-source with it"),
        (
            {"valid": "ab"},
            {},
            {},
            "expected --source and --target for training, got held-out files",
        ),
        ({}, {"valid": "a"}, {}, "expected --text for training, got held-out files"),
        (
            {"train": "ab"},
            {},
            {"unit": "paragraph"},
            "--paragraphs: expected with --text only, got it with --source",
        ),
    ],
)
def test_inconsistent_file_options_are_rejected(sides, texts, options, message):
    from pathlib import Path

    def side(pair):
        return tuple(Path(name) if name.strip() else None for name in f"{pair:<2}")

    with pytest.raises(UserError, match=message):
        read_splits(
            {split: side(pair) for split, pair in sides.items()},
            {split: [Path(name)] for split, name in texts.items()},
            counts=RecordCounts(),
            **options,
        )
