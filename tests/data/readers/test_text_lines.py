"""Text streams: decompression, line boundaries, invalid bytes and files that are not text."""

import gzip
import lzma
import os
import threading
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.data.readers import text_lines
from addnorm.data.readers.text_lines import decode_line, read_lines, single_line, split_paragraphs
from addnorm.data.record_counts import RecordCounts

COMPRESSORS = {"plain": bytes, "gz": gzip.compress, "xz": lzma.compress}


def write_file(folder, data, name="text"):
    path = folder / name
    path.write_bytes(data)
    return path


def line_texts(path, **options):
    return [line.text for line in read_lines(path, **options)]


@pytest.mark.parametrize("compression", COMPRESSORS)
@pytest.mark.parametrize("name", ["a.txt", "a.gz", "a.xz"])
def test_compression_is_detected_from_content(tmp_path, compression, name):
    path = write_file(tmp_path, COMPRESSORS[compression]("één\nzwei\r\n\nvier".encode()), name)
    assert line_texts(path) == ["één", "zwei", "", "vier"]


@given(st.lists(st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))))
def test_only_line_feeds_end_a_line(tmp_path_factory, lines):
    r"""U+2028, \x0b, \x85, NUL and a lone \r do not end a line, so parallel files stay aligned."""
    lines = [text.rstrip("\r").lstrip("\ufeff") for text in lines]
    path = write_file(
        tmp_path_factory.mktemp("lines"), "".join(f"{text}\n" for text in lines).encode()
    )
    assert line_texts(path) == lines


def test_separators_inside_a_line_become_spaces_and_are_counted():
    counts = RecordCounts()
    assert single_line("a\u2028b\x0bc\rd\x00e\x85f", counts) == "a b c d e f"
    assert single_line("plain", counts) == "plain"
    assert counts.notes == {"line separators inside a line, now blanks": 1}
    assert len(single_line("".join(map(chr, range(0x3000))), counts).splitlines()) == 1


def test_byte_order_mark_is_removed(tmp_path):
    assert line_texts(write_file(tmp_path, b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")) == [
        "one",
        "\ufefftwo",
    ]


def test_empty_file_has_no_lines(tmp_path):
    assert line_texts(write_file(tmp_path, b"")) == []
    assert line_texts(write_file(tmp_path, b"\n")) == [""]
    assert line_texts(write_file(tmp_path, gzip.compress(b""))) == []


def test_invalid_utf8_is_dropped_replaced_or_rejected(tmp_path):
    path = write_file(tmp_path, b"fine\nb\xffd\n")
    good, bad = read_lines(path)
    assert (good.is_valid, bad.is_valid, bad.number) == (True, False, 2)
    assert decode_line(good, "strict", path=path) == "fine"
    assert decode_line(bad, "drop", path=path) is None
    assert decode_line(bad, "replace", path=path) == "b\ufffdd"
    with pytest.raises(UserError, match=r"line 2: expected UTF-8; try --errors drop"):
        decode_line(bad, "strict", path=path)


@pytest.mark.parametrize("compression", COMPRESSORS)
def test_oversized_line_is_truncated_and_next_line_is_complete(tmp_path, monkeypatch, compression):
    monkeypatch.setattr(text_lines, "MAX_CHARACTERS", 10)
    monkeypatch.setattr(text_lines, "MAX_BYTES", 40)
    path = write_file(
        tmp_path, COMPRESSORS[compression](f"short\n{'ä' * 100}\nafter\n{'b' * 11}\n".encode())
    )
    lines = list(read_lines(path))
    assert [line.is_truncated for line in lines] == [False, True, False, True]
    assert [line.number for line in lines] == [1, 2, 3, 4]
    assert (lines[1].text, lines[2].text) == ("ä" * 10, "after")


@given(st.text(st.sampled_from("ab ä漢🙂"), max_size=300), st.booleans())
def test_pieces_of_oversized_line_add_up_to_the_line(tmp_path_factory, text, ended):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_lines, "MAX_CHARACTERS", 10)
        patch.setattr(text_lines, "MAX_BYTES", 40)
        end = "\nlast" if ended else ""
        path = write_file(tmp_path_factory.mktemp("giant"), f"first\n{text}{end}".encode())
        pieces = [line for line in read_lines(path, split_long=True) if line.number == 2]
    assert "".join(line.text for line in pieces) == text
    assert all(len(line.text) <= 10 and line.is_valid for line in pieces)


def test_paragraphs_end_at_blank_lines_and_are_bounded(monkeypatch):
    assert list(split_paragraphs(["", "a", " b", " ", "", "c"])) == ["a\n b", "c"]
    monkeypatch.setattr(text_lines, "MAX_CHARACTERS", 6)
    assert list(split_paragraphs(["aaa", "bbb", "cc"])) == ["aaa", "bbb\ncc"]


@pytest.mark.parametrize("compression", ["gz", "xz"])
def test_truncated_compressed_file_is_rejected(tmp_path, compression):
    data = COMPRESSORS[compression](os.urandom(50_000).hex().encode())
    with pytest.raises(
        UserError, match=r"text is damaged or truncated \(.*\); decompress it by hand"
    ):
        line_texts(write_file(tmp_path, data[: len(data) // 2]))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04....", "is a zip archive; extract it first"),
        (b"BZh91AY", "is compressed with bzip2; decompress it first"),
        (b"\x28\xb5\x2f\xfd..", "is compressed with zstd; decompress it first"),
        ("word".encode("utf-16"), "is in UTF-16; expected UTF-8, try iconv"),
    ],
)
def test_unsupported_file_types_are_rejected(tmp_path, data, message):
    with pytest.raises(UserError, match=message):
        line_texts(write_file(tmp_path, data))


def test_unreadable_paths_are_rejected(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"nowhere: expected a file, .* got no such file"):
        line_texts(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"expected a file, .* got a folder"):
        line_texts(tmp_path)
    path = write_file(tmp_path, b"secret")

    @contextmanager
    def raise_permission_error(*_):  # chmod has no effect on root
        raise PermissionError(13, "Permission denied", str(path))
        yield

    monkeypatch.setattr(type(path), "open", raise_permission_error)
    with pytest.raises(
        UserError, match=r"cannot be read \(Permission denied\); check its permissions"
    ):
        line_texts(path)


def test_named_pipe_is_read_like_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(b"one\ntwo\n"),))
    writer.start()
    assert line_texts(pipe) == ["one", "two"]
    writer.join()
