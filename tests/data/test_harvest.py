"""Harvesting: which catalogues belong together, and which sides of them make a pair."""

import pytest

from addnorm.core.errors import UserError
from addnorm.data.clean import Cleaner, Rules
from addnorm.data.counts import Counts
from addnorm.data.harvest import harvest
from tests.data.test_gettext import PO, mo

KEEP = Rules(placeholders="keep", duplicates="keep")


def put(root, path, entries, header=""):
    """A .mo or .po file; for .po the entries are its text."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    header += "Content-Type: text/plain; charset=UTF-8\n"
    file.write_bytes(entries.encode() if isinstance(entries, str) else mo(entries, header))


def po(*pairs):
    return "".join(f'msgid "{id}"\nmsgstr "{string}"\n\n' for id, string in pairs)


def harvested(*folders, source="en", target="de", rules=KEEP):
    counts = Counts()
    pairs = harvest(folders, source=source, target=target, cleaner=Cleaner(rules, counts))
    found = [(pair["source"], pair["target"]) for pair in pairs]
    counts.keep("train", len(found))
    counts.to_dict()  # adds up, or complains
    return found, counts


@pytest.mark.parametrize(
    "path",
    [
        *(
            "de/LC_MESSAGES/x.mo",
            "share/locale/de/LC_MESSAGES/x.mo",
            "de.po",
            "po/de.po",
            "x.de.po",
        ),
        *(
            "locale/de_DE/x.po",
            "locale/de_DE/deep/er/x.po",
            "x-de.po",
            "x_de_DE.po",
            "de@informal.po",
        ),
        *("it/de.po", "a/de_DE.UTF-8/LC_MESSAGES/sub/x.po", "de/LC_MESSAGES/not_so.mo", "de.gmo"),
    ],
)
def test_the_language_is_known_by_the_path(tmp_path, path):
    entries = po(("Open", "Auf")) if path.endswith(".po") else [("Open", "Auf")]
    put(tmp_path, path, entries)
    assert harvested(tmp_path)[0] == [("Open", "Auf")]


def test_a_folder_inside_the_tree_may_be_given(tmp_path):
    put(tmp_path, "de/LC_MESSAGES/x.mo", [("Open", "Auf")])
    assert harvested(tmp_path / "de" / "LC_MESSAGES")[0] == [("Open", "Auf")]


def test_a_regional_catalogue_serves_only_where_there_is_no_better_one(tmp_path):
    put(tmp_path, "de/LC_MESSAGES/x.mo", [("January", "Januar")])
    put(tmp_path, "de_AT/LC_MESSAGES/x.mo", [("January", "Jänner")])
    put(tmp_path, "de_AT/LC_MESSAGES/y.mo", [("Cream", "Obers")])
    assert harvested(tmp_path)[0] == [("January", "Januar"), ("Cream", "Obers")]
    austrian = harvested(tmp_path, target="de_AT")[0]
    assert austrian == [("January", "Jänner"), ("Cream", "Obers")]


def test_a_po_file_stands_for_the_mo_file_beside_it(tmp_path):
    put(tmp_path, "de/LC_MESSAGES/x.mo", [("Open", "Auf")])
    put(tmp_path, "de/LC_MESSAGES/x.po", po(("Open", "Öffnen")))
    found, counts = harvested(tmp_path)
    assert found == [("Open", "Öffnen")]
    assert counts.notes["compiled catalogues beside their source, not read"] == 1


def test_two_foreign_languages_meet_by_id_and_context(tmp_path):
    put(tmp_path, "de/LC_MESSAGES/x.mo", [("Open", "Auf"), ("a\x04Open", "Offen"), ("Old", "Alt")])
    put(
        tmp_path,
        "fr/LC_MESSAGES/x.mo",
        [("Open", "Ouvrir"), ("a\x04Open", "Ouvert"), ("No", "Non")],
    )
    put(tmp_path, "fr/LC_MESSAGES/y.mo", [("Old", "Vieux")])  # another program
    found, counts = harvested(tmp_path, source="de", target="fr")
    assert sorted(found) == [("Auf", "Ouvrir"), ("Offen", "Ouvert")]
    assert counts.dropped == {"no counterpart": 1}


def test_english_may_be_the_target(tmp_path):
    put(tmp_path, "de/LC_MESSAGES/x.mo", [("Open", "Auf")])
    assert harvested(tmp_path, source="de", target="en")[0] == [("Auf", "Open")]
    assert harvested(tmp_path, source="en_US", target="de")[0] == [("Open", "Auf")]


def test_symbolic_ids_are_read_from_an_english_catalogue_or_a_comment_or_left_out(tmp_path):
    put(tmp_path, "de/LC_MESSAGES/x.mo", [("label_open", "Auf"), ("label_shut", "Zu")])
    put(tmp_path, "en/LC_MESSAGES/x.mo", [("label_open", "Open it")])
    put(tmp_path, "de/LC_MESSAGES/y.po", '#. Default: "A title"\n' + po(("box_title", "Ein Titel")))
    found, counts = harvested(tmp_path)
    assert found == [("Open it", "Auf"), ("A title", "Ein Titel")]
    assert counts.dropped == {"symbolic id": 1}


PLURAL = "file\0files"


@pytest.mark.parametrize(
    ("header", "strings", "pairs"),
    [
        ("nplurals=2; plural=n != 1;", "a\0b", [("file", "a"), ("files", "b")]),
        ("nplurals=2; plural=n == 1;", "b\0a", [("file", "a"), ("files", "b")]),
        ("nplurals=1; plural=0;", "a", [("file", "a"), ("files", "a")]),
        ("nplurals=3; plural=n==1 ? 0 : n<5 ? 1 : 2;", "a\0b\0c", [("file", "a")]),
        ("nplurals=3; plural=n==1 ? 2 : 0;", "b\0c\0a", [("file", "a")]),
        ("nplurals=3; plural=n==1 ? 2 : 0;", "b\0c", []),
    ],
)
def test_plural_forms_go_together_where_that_is_safe(tmp_path, header, strings, pairs):
    put(tmp_path, "de.mo", [(PLURAL, strings)], f"Plural-Forms: {header}\n")
    put(tmp_path, "x.de.po", po(("Open", "Auf")))
    found, counts = harvested(tmp_path)
    assert [pair for pair in found if pair[0] != "Open"] == pairs
    assert counts.dropped.total() == (not pairs)


def test_fuzzy_obsolete_and_untranslated_entries_are_counted(tmp_path):
    (tmp_path / "de.po").write_bytes(PO.encode("latin-1") + b'\nmsgid "New"\nmsgstr ""\n')
    found, counts = harvested(tmp_path)
    assert found == [
        *(('The "best" title', "Größe"), ("%d file", "%d Datei"), ("%d files", "%d Dateien"))
    ]
    assert counts.dropped == {"fuzzy": 1, "obsolete": 1, "untranslated": 1}


def test_broken_files_are_counted_not_fatal(tmp_path):
    put(tmp_path, "de/LC_MESSAGES/x.mo", [("Open", "Auf")])
    (tmp_path / "de/LC_MESSAGES/bad.mo").write_bytes(b"\xde\x12\x04\x95 and so on")
    (tmp_path / "de/LC_MESSAGES/worse.po").write_bytes(b"no catalogue")
    (tmp_path / "nameless.po").write_text(po(("a", "b")))
    found, counts = harvested(tmp_path)
    assert found == [("Open", "Auf")]
    assert counts.notes["broken catalogues"] == 2
    assert "bad.mo: a .mo file cut short" in counts.first["broken catalogues"]
    assert counts.notes["catalogues whose path names no language, not read"] == 1


def test_the_order_is_that_of_the_paths(tmp_path):
    for name in "cab":
        put(tmp_path, f"{name}/de.po", po((f"Open {name}", f"Auf {name}")))
    assert [source for source, _ in harvested(tmp_path)[0]] == ["Open a", "Open b", "Open c"]


def test_nothing_found_says_what_is_there(tmp_path):
    put(tmp_path, "fr.po", po(("Open", "Ouvrir")))
    with pytest.raises(
        UserError, match=r"no catalogue from en to de below .*; languages there: fr"
    ):
        harvested(tmp_path)
    with pytest.raises(UserError, match=r"does not exist; wanted a folder with \.mo or \.po files"):
        harvested(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is a file; wanted a folder"):
        harvested(tmp_path / "fr.po")
    with pytest.raises(UserError, match="--from de and --to de are one language"):
        harvested(tmp_path, source="de")
