"""Cleaning: each rule takes what it should, leaves what it should, and says so."""

import pytest

from addnorm.core.errors import UserError
from addnorm.data.clean import PATH, PLACEHOLDER, TAG, Cleaner, Rules, mask, tidy, unmarked
from addnorm.data.counts import Counts


def reason(source, target, **rules):
    """Why a pair goes; None if it stays."""
    counts = Counts()
    kept = Cleaner(Rules(**rules), counts).clean(source, target, "here")
    assert counts.dropped.total() == (kept is None)
    return None if kept else next(iter(counts.dropped))


@pytest.mark.parametrize(
    "text",
    [
        *("%s", "%d files", "%(name)s", "%1$s of %2$d", "%-10.3f", "%lu bytes", "%1", "%L1", "%n"),
        *("{name}", "{0}", "{}", "{0:d}", "{user.name}", "{{ name }}", "${HOME}", "$1", "$name"),
        *("%{count} items", "100%%", "%PRODUCTNAME", "$(ARG1)", "$who|!", "%@", "%zu", "%.*s"),
    ],
)
def test_placeholders_are_seen(text):
    assert PLACEHOLDER.search(text)
    assert reason(f"Open {text} now", f"Jetzt {text} auf") == "placeholder"


@pytest.mark.parametrize(
    "text",
    [
        *("100% done", "5 % of it", "50%", "costs $100", "costs $5.50", "a {curly word} set"),
        *("100%increase", "R&D", "it's", "C# and F#", "a = b"),
    ],
)
def test_what_looks_like_a_placeholder_only_is_left(text):
    assert not PLACEHOLDER.search(text)


@pytest.mark.parametrize("text", ["<b>x</b>", "a &amp; b", "&#160;", "<br/>", "<a href='x'>"])
def test_markup_is_seen(text):
    assert TAG.search(text)
    assert reason(f"Open {text} now", f"Jetzt {text} auf") == "markup"


@pytest.mark.parametrize("text", ["a < b and c > d", "AT&T; and more", "x <- y", "1 <2> 3"])
def test_signs_are_no_markup(text):
    assert not TAG.search(text.replace("AT&T;", "AT&T"))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "see https://example.org",
            "in /etc/passwd",
            "~/file",
            "./run",
            "C:\\temp",
            "me@example.org",
        ),
        *("www.example.org", "(/usr/bin)", "`/usr/share`", "--prefix=/usr"),
    ],
)
def test_paths_and_addresses_are_seen(text):
    assert PATH.search(text)
    assert reason(f"Open {text} now", f"Jetzt {text} auf") == "path"


@pytest.mark.parametrize(
    "text", ["and/or", "TCP/IP", "5 / 3", "read/write", "e. g.", "a: b", "@ 5"]
)
def test_slashes_between_words_are_no_paths(text):
    assert not PATH.search(text)


@pytest.mark.parametrize(
    ("pair", "clean"),
    [
        (("&File", "&Datei"), ("File", "Datei")),
        (("_Open…", "Ö_ffnen…"), ("_Open…".strip("_"), "Öffnen…")),
        (("E_xit", "_Beenden"), ("Exit", "Beenden")),
        (("Save ~As", "Speichern ~unter"), ("Save As", "Speichern unter")),
        (("&Open", "打开(&O)"), ("Open", "打开")),
        (("_Open...", "開く(_O)..."), ("Open...", "開く...")),
        (("E_xit", "終了 (_X)"), ("Exit", "終了")),
        (("&2 Pages", "&2 Seiten"), ("2 Pages", "2 Seiten")),
        (("R&D", "F&E"), ("R&D", "F&E")),
        (("Salt & Pepper", "Salz & Pfeffer"), ("Salt & Pepper", "Salz & Pfeffer")),
        (("Set file_name", "file_name setzen"), ("Set file_name", "file_name setzen")),
        (("Set file_name", "Dateiname setzen"), ("Set file_name", "Dateiname setzen")),
        (("a_b_c", "x_y_z"), ("a_b_c", "x_y_z")),
        (("about ~", "etwa ~"), ("about ~", "etwa ~")),
    ],
)
def test_one_shortcut_mark_goes_and_other_signs_stay(pair, clean):
    assert unmarked(*pair) == clean


def test_white_space_and_control_characters_become_single_blanks():
    assert tidy(" a\n\tb\x00c\u2028d\u00a0 e\x1b") == "a b c d e\x1b"


def test_masks_are_the_same_on_both_sides():
    assert mask("%(a)s likes %(b)s", "%(b)s gefällt %(a)s") == ("{1} likes {2}", "{2} gefällt {1}")
    assert mask("%s and %s", "%s und %s") == ("{1} and {2}", "{1} und {2}")
    assert mask("%s and %s", "nur %s") is None
    assert mask("plain", "schlicht") == ("plain", "schlicht")
    assert reason("Open %s now", "Jetzt %d auf", placeholders="mask") == "placeholder"
    assert reason("Open %s now", "Jetzt %s auf", placeholders="mask") is None
    assert reason("Open <b>it</b>", "<b>Es</b> auf", placeholders="mask") == "markup"


def test_placeholders_tags_and_paths_may_stay():
    assert reason("<b>%s</b> in /etc", "<b>%s</b> im /etc", placeholders="keep") is None


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        ("Open", "Öffnen", None),
        ("Open", " \n", "empty"),
        ("", "Leer", "empty"),
        ("OK", "OK", "equal sides"),
        ("&OK", "OK", "equal sides"),
        ("---", "----", "no letters"),
        ("yes", "ja, " * 10, "length ratio"),
        ("word " * 101, "Wort " * 90, "too long"),
        ("a" * 1001, "b" * 900, "too long"),
        ("b\udcffd", "schlecht", "invalid text"),
        ("|menu|Open", "Öffnen", None),
    ],
)
def test_shapes(source, target, why):
    assert reason(source, target) == why


def test_short_pairs_go_if_asked_by_the_side_with_more_words():
    assert reason("Open file", "Datei öffnen", min_words=3) == "too short"
    assert reason("Open the file", "打开文件", min_words=3) is None


@pytest.mark.parametrize(("rule", "kept"), [("source", 2), ("pair", 3), ("keep", 4)])
def test_duplicates_go_by_source_by_pair_or_not_at_all(rule, kept):
    counts = Counts()
    cleaner = Cleaner(Rules(duplicates=rule), counts)
    pairs = [("Open", "Öffnen"), ("Open", "Öffnen"), ("Open", "Offen"), ("Close", "Zu")]
    found = [cleaner.clean(*pair) for pair in pairs]
    assert sum(map(bool, found)) == kept
    assert counts.dropped["duplicate"] == 4 - kept


def test_what_a_rule_takes_is_counted_with_the_first_place():
    counts = Counts()
    cleaner = Cleaner(Rules(), counts)
    for place in ("a.mo", "b.mo"):
        assert cleaner.clean("OK", "OK", place) is None
    assert (counts.dropped, counts.first) == ({"equal sides": 2}, {"equal sides": "a.mo"})


def test_unknown_rules_are_refused():
    with pytest.raises(UserError, match="unknown placeholders 'masks'; did you mean 'mask'"):
        Rules(placeholders="masks")
    with pytest.raises(UserError, match="unknown duplicates 'all'; Known: source, pair, keep"):
        Rules(duplicates="all")
    with pytest.raises(UserError, match=r"the ratio of lengths is 0\.5; wanted 1 or more"):
        Rules(ratio=0.5)
