"""Catalogues against strangers: written by babel, read by us, and by Python's own gettext."""

import gettext
import io
import random
import struct

import pytest
from babel.messages import Catalog
from babel.messages.mofile import write_mo
from babel.messages.pofile import write_po
from hypothesis import given
from hypothesis import strategies as st

from addnorm.data.gettext import BrokenCatalogue, parse_mo, parse_po, read_catalogue

# No NUL and 0x04, which .mo files need for themselves; no surrogates.
WORDS = st.text(
    st.characters(exclude_characters="\0\x04", exclude_categories=["Cs"]), min_size=1, max_size=30
)
PLAIN = st.text('abc äß漢\n\t"\\%{}_&', min_size=1, max_size=30)  # what survives a .po of babel
MESSAGES = st.dictionaries(
    st.tuples(st.none() | WORDS, WORDS), st.tuples(WORDS, st.none() | WORDS), max_size=8
)


def mo(entries, header="Content-Type: text/plain; charset=UTF-8\n", order="<", charset="utf-8"):
    """A .mo file out of (id, string) pairs, in bytes as GNU's manual describes them."""
    rows = sorted(
        (id.encode(charset), text.encode(charset)) for id, text in [("", header), *entries]
    )
    start = 28 + 16 * len(rows)
    ids, texts, blob = [], [], b""
    for table, column in ((ids, 0), (texts, 1)):
        for row in rows:
            table += [len(row[column]), start + len(blob)]
            blob += row[column] + b"\0"
    numbers = [0x950412DE, 0, len(rows), 28, 28 + 8 * len(rows), 0, 0, *ids, *texts]
    return struct.pack(f"{order}{len(numbers)}I", *numbers) + blob


def written(messages, write):
    catalogue = Catalog(locale="de", charset="utf-8")
    for (context, id), (string, plural) in messages.items():
        if plural is None:
            catalogue.add(id, string, context=context)
        else:
            catalogue.add((id, f"{id}s"), (string, plural), context=context)
    file = io.BytesIO()
    write(file, catalogue)
    return file.getvalue()


def expected(messages):
    return {
        (context, (id,) if plural is None else (id, f"{id}s")): (string,)
        if plural is None
        else (string, plural)
        for (context, id), (string, plural) in messages.items()
    }


def found(catalogue):
    return {(entry.context, entry.ids): entry.strings for entry in catalogue.entries}


@given(MESSAGES)
@pytest.mark.peer
def test_what_babel_writes_into_a_mo_file_is_read(messages):
    catalogue = parse_mo(written(messages, write_mo))
    assert found(catalogue) == expected(messages)
    assert (catalogue.language, catalogue.plurals, catalogue.singular) == ("de", 2, 0)


@given(MESSAGES)
@pytest.mark.peer
def test_pythons_gettext_reads_the_same(messages):
    data = written(messages, write_mo)
    stranger = gettext.GNUTranslations(io.BytesIO(data))
    for entry in parse_mo(data).entries:
        one, many = entry.ids[0], entry.ids[-1]
        if entry.context is None and len(entry.ids) == 1:
            assert stranger.gettext(one) == entry.strings[0]
        elif entry.context is None:
            assert tuple(stranger.ngettext(one, many, n) for n in (1, 2)) == entry.strings
        elif len(entry.ids) == 1:
            assert stranger.pgettext(entry.context, one) == entry.strings[0]


@given(
    st.dictionaries(
        st.tuples(st.none() | PLAIN, PLAIN), st.tuples(PLAIN, st.none() | PLAIN), max_size=8
    )
)
@pytest.mark.peer
def test_what_babel_writes_into_a_po_file_is_read(messages):
    data = written(messages, lambda file, catalogue: write_po(file, catalogue, width=40))
    assert found(parse_po(data)) == expected(messages)


@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("charset", ["UTF-8", "ISO-8859-1", "EUC-JP"])
def test_byte_order_and_charset_of_a_mo_file(order, charset):
    text = "日本" if charset == "EUC-JP" else "Größe"
    header = f"Project: x\nContent-Type: text/plain; charset={charset}\n"
    catalogue = parse_mo(mo([("size", text), ("menu\x04Open", "auf")], header, order, charset))
    assert found(catalogue) == {(None, ("size",)): (text,), ("menu", ("Open",)): ("auf",)}


def test_dates_that_are_none_do_not_matter():
    header = "PO-Revision-Date: last year\nLanguage: sl\nContent-Type: text/plain; charset=UTF-8\n"
    assert parse_mo(mo([("a", "b")], header)).language == "sl"
    lines = "".join(f'"{line}\\n"\n' for line in header.splitlines())
    text = f'msgid ""\nmsgstr ""\n{lines}\nmsgid "a"\nmsgstr "b"\n'
    assert found(parse_po(text.encode())) == {(None, ("a",)): ("b",)}


@pytest.mark.parametrize(
    ("rule", "number", "singular"),
    [
        ("nplurals=2; plural=(n != 1);", 2, 0),
        ("nplurals=1; plural=0;", 1, 0),
        ("nplurals=4; plural=(n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0);", 4, 1),
        ("nplurals=3; plural=n%10==1 && n%100!=11 ? 0 : n%10>=2 ? 1 : 2;", 3, 0),
        ("nplurals=2; plural=import os;", 2, 0),
    ],
)
def test_the_string_for_one_is_the_one_that_the_rule_names(rule, number, singular):
    header = f"Plural-Forms: {rule}\nContent-Type: text/plain; charset=UTF-8\n"
    catalogue = parse_mo(mo([("file\0files", "\0".join("abcd"[:number]))], header))
    assert (catalogue.plurals, catalogue.singular) == (number, singular)


PO = r"""
# Copyright
msgid ""
msgstr ""
"Content-Type: text/plain; charset=ISO-8859-1\n"
"PO-Revision-Date: YEAR-MO-DA HO:MI+ZONE\n"
"Plural-Forms: nplurals=2; "
"plural=n != 1;\n"

#: main.c:1
#, fuzzy
#| msgid "Olde"
msgid "Old"
msgstr "Alt"

#. Default: "The \"best\" title"
msgctxt "menu"
msgid "label_title"
msgstr "Größe"

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d Datei"
msgstr[1] "%d Dateien"

#~| msgid "Gonee"
#~ msgid "Gone"
#~ msgstr "Weg"
"""


def test_a_po_file_with_all_kinds_of_entries():
    fuzzy, title, plural, gone = parse_po(PO.encode("latin-1")).entries
    assert (fuzzy.ids, fuzzy.fuzzy) == (("Old",), True)
    assert (title.context, title.default, title.strings) == ("menu", 'The "best" title', ("Größe",))
    assert plural.strings == ("%d Datei", "%d Dateien")
    assert (gone.ids, gone.obsolete, gone.fuzzy) == (("Gone",), True, False)


def test_bytes_that_the_charset_does_not_have_are_kept_apart():
    (entry,) = parse_mo(mo([("a", "b")]).replace(b"b\0", b"\xff\0")).entries
    assert entry.strings == ("\udcff",)  # cleaning leaves it out


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (mo([("a", "b")])[:40], "a .mo file cut short"),
        (mo([("a", "b" * 99)])[:-50], "a .mo file cut short: message 2 of 2"),
        (b"\xde\x12\x04\x95", "a .mo file cut short"),
        (mo([("a", "b")], "charset=klingon"), "an unknown charset 'klingon'"),
        (struct.pack("<7I", 0x950412DE, 5 << 16, 0, 28, 28, 0, 0), "of unknown version 5"),
        (b"", "no .po file: it has no message"),
        (b"a poem\nabout gettext\n", "no .po file"),
        (b'msgid "a"\nmsgid "b"\nmsgstr "c"\n', "no .po file: missing msgstr"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "no .po file"),
    ],
)
def test_what_is_no_catalogue_is_said(tmp_path, capsys, data, words):
    (tmp_path / "x.mo").write_bytes(data)
    with pytest.raises(BrokenCatalogue, match=words):
        read_catalogue(tmp_path / "x.mo")
    assert capsys.readouterr() == ("", "")  # babel would print


def test_no_damage_is_worse_than_a_broken_catalogue():
    """Flipped bytes give other text or BrokenCatalogue, nothing else."""
    chance = random.Random(0)
    whole = {
        parse_mo: mo([("file\0files", "Datei\0Dateien"), ("x\x04y", "z")]),
        parse_po: PO.encode(),
    }
    for parse, data in whole.items():
        for _ in range(500):
            damaged = bytearray(data)
            for _ in range(chance.randrange(1, 6)):
                damaged[chance.randrange(4, len(data))] = chance.randrange(256)
            try:
                parse(bytes(damaged))
            except BrokenCatalogue:
                continue
