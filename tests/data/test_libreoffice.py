"""Help pages: paragraphs by id, pages by path, on a tree made by hand."""

import pytest

from addnorm.core.errors import UserError
from addnorm.data.clean import Cleaner, Rules
from addnorm.data.counts import Counts
from addnorm.data.libreoffice import align, paragraphs

PAGE = """<!DOCTYPE html><html><head><title>{title}</title>
<script>var p = "<p id='x'>no</p>";</script></head>
<body><header id="Top"><p dir="auto">Help</p></header><div id="DisplayArea">
<h1 id="hd_1" dir="auto">{title}</h1>
{body}
</div></body></html>"""


def put(root, path, title, *body):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(PAGE.format(title=title, body="\n".join(body)), encoding="utf-8")


def aligned(source, target, **rules):
    counts = Counts()
    rules = Rules(**{"placeholders": "keep", "duplicates": "pair", "shortcuts": False, **rules})
    cleaner = Cleaner(rules, counts)
    found = [
        tuple(pair.values())
        for pair in align(source, target, languages=("en-US", "de"), cleaner=cleaner)
    ]
    counts.keep("train", len(found))
    counts.to_dict()  # adds up, or complains
    return found, counts


@pytest.fixture
def trees(tmp_path):
    en, de = tmp_path / "en" / "help" / "en-US", tmp_path / "de" / "help" / "de"
    put(
        *(en, "text/a/one.html", "Filter"),
        '<p id="p1" class="paragraph">Click <span class="emph">OK</span> &amp; go<br>on.</p>',
        '<p id="p2">Only here.</p><p>Without id.</p><p id="p3"><img alt="icon"></p>',
        '<td><p id="p4">Shown twice</p></td><p id="p4">Shown again</p><p id="p5">=A1</p>',
    )
    put(
        *(de, "text/a/one.html", "Filter"),
        '<p id="p1" class="paragraph">Klicken Sie auf <b>OK</b> und los.</p>',
        '<p id="p4">Zweimal gezeigt</p><p id="p4">Nochmals gezeigt</p><p id="p5">=A1</p>',
        '<p id="p6">Nur hier.</p>',
    )
    put(en, "text/b/two.html", "Only English")
    return tmp_path


EXPECTED = [
    ("Click OK & go on.", "Klicken Sie auf OK und los."),
    ("Shown twice", "Zweimal gezeigt"),
    ("Shown again", "Nochmals gezeigt"),
]


@pytest.mark.parametrize(
    ("source", "target"),
    [("en", "de"), ("en/help", "de/help"), ("en/help/en-US", "de/help/de/text")],
)
def test_paragraphs_meet_wherever_the_trees_are_taken(trees, source, target):
    if target.endswith("text"):
        source += "/text"
    found, counts = aligned(trees / source, trees / target)
    assert found == EXPECTED
    assert counts.read == 6
    assert counts.dropped == {"equal sides": 2, "no counterpart": 1}
    assert counts.first["no counterpart"].endswith("one.html, id p2")
    assert counts.notes == {
        "pages in both languages": 1,
        "pages in one language only": 1,
        "paragraphs of the target alone": 1,
    }


def test_all_languages_in_one_folder(trees):
    (trees / "de" / "help" / "de").rename(trees / "en" / "help" / "de")
    assert aligned(trees / "en" / "help", trees / "en" / "help")[0] == EXPECTED


def test_a_page_without_end_tags_and_with_bad_bytes(tmp_path):
    assert paragraphs('<p id="a">one<p id="b">two <pre id="c">x\n  y') == {
        ("a", 0): "one",
        ("b", 0): "two",
        ("c", 0): "x y",
    }
    for side, text in (("en", b"good"), ("de", b"sch\xfcn")):
        (tmp_path / side).mkdir()
        (tmp_path / side / "x.html").write_bytes(
            b"<p id=a>" + text + b"</p><p id=b>" + side.encode()
        )
    found, counts = aligned(tmp_path / "en", tmp_path / "de")
    assert found == [("en", "de")]
    assert counts.dropped == {"invalid text": 1}
    assert counts.notes["pages with invalid UTF-8"] == 1


def test_trees_that_have_nothing_in_common_are_refused(trees, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"en has 2 pages \(.html\) and .*empty has 0, none with"):
        aligned(trees / "en", tmp_path / "empty")
    with pytest.raises(UserError, match="nowhere does not exist; wanted a folder with the help's"):
        aligned(trees / "en", tmp_path / "nowhere")
