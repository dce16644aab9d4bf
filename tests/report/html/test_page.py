"""Pages: self-contained, escaped, whole."""

import re
from pathlib import Path

import pytest
from addnorm.report.build_arm_diagram.draw import draw

from addnorm.core.errors import UserError
from addnorm.report.charts.run import plot_curve
from addnorm.report.html.page import (
    PALETTE,
    CollapsibleText,
    Column,
    Facts,
    Figure,
    Note,
    Section,
    Table,
    render_page,
    write_page,
)
from tests.report.browser import Browser, needs_browser

EVIL = "<script>alert('&')</script>"


@pytest.fixture
def no_vega(monkeypatch):
    """Vega's script takes seconds to put together; only browsers need it."""
    monkeypatch.setattr("addnorm.report.html.page._vega", lambda: "/* vega */")


def one(*parts):
    return render_page("A page", sections=[Section("A section", parts)])


def fetched(text):
    """Addresses that a browser would fetch."""
    return re.findall(r"""(?:src|href)=["']?(?!#)([^"'\s>]+)|@import|url\((?!#)""", text)


def test_every_part_says_what_it_was_given():
    text = one(
        Facts("F", {"name": 3}),
        Table("T", ("a", "b"), [("1", "2")]),
        Note("a note"),
        CollapsibleText("more", "long\ntext"),
        Column((Note("inside"),)),
    )
    assert "<tr><th>name</th><td>3</td></tr>" in text
    assert "<th>a</th><th>b</th>" in text and "<td>1</td><td>2</td>" in text
    assert "a note" in text and "inside" in text
    assert "<summary>more</summary><pre>long\ntext</pre>" in text


def test_text_is_escaped_wherever_it_stands():
    parts = (
        Facts(EVIL, {EVIL: EVIL}),
        Table(EVIL, (EVIL,), [(EVIL,)]),
        Note(EVIL),
        CollapsibleText(EVIL, EVIL),
    )
    section = Section(EVIL, parts, EVIL)
    text = render_page(
        EVIL, sections=[section] * 4, about=EVIL, figures={EVIL: EVIL}, warnings=[EVIL]
    )
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert") > 30


def test_a_chart_cannot_end_the_script_that_holds_it(no_vega):
    text = one(plot_curve([(1, 2.0), (2, 3.0)], title="t", y="</script><b>"))
    assert "</script><b>" not in text


def test_nothing_is_fetched_and_the_browser_is_told_to_refuse(no_vega):
    text = one(plot_curve([(1, 2.0), (2, 3.0)], title="t", y="y"))
    assert fetched(text) == []
    assert "default-src 'none'" in text


def test_a_page_without_charts_is_small_and_has_no_script():
    text = one(Note("nothing"))
    assert len(text) < 20_000
    assert "<script" not in text


def test_a_chart_has_a_still_picture_in_the_pages_own_colours(no_vega):
    text = one(plot_curve([(1, 2.0), (2, 3.0)], title="t", y="y"))
    still = text[text.index('class="still"') : text.index("</figure>")]
    assert "<svg" in still and 'stroke="var(--blue)"' in still
    for theme in PALETTE:
        assert f"--blue: {PALETTE[theme]['blue']};" in text


def test_names_inside_pictures_are_theirs_alone():
    light, dark = (draw(["pre_ln"], theme=theme) for theme in ("light", "dark"))
    picture = Figure("both", light, dark)
    text = one(picture, Column((picture,)))
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(names) == len(set(names))
    used = set(re.findall(r"url\(#([^)]+)\)", text))
    used |= {n for names in re.findall(r'labelledby="([^"]+)"', text) for n in names.split()}
    assert used and used <= set(names)


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    assert write_page(path, "first \ud800") == path
    assert path.read_text(encoding="utf-8") == "first ?"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=r"cannot write '.*page.html': No space left on device; "):
        write_page(path, "second")
    assert path.read_text(encoding="utf-8") == "first ?"
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_a_place_that_is_no_folder_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .* choose another place"):
        write_page(tmp_path / "file" / "page.html", "text")


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_charts_come_alive_in_a_browser_and_stay_still_without_scripts(tmp_path, theme):
    path = tmp_path / "page.html"
    chart = plot_curve([(step, step**0.5) for step in range(1, 50)], title="Root", y="root")
    write_page(path, one(chart, chart))
    with Browser() as browser:
        browser.open(path, theme=theme)
        browser.pause_step("document.querySelectorAll('.live:not(.waiting) svg').length == 2")
        assert browser.run("document.querySelectorAll('.still').length") == 0
        paper = browser.run("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[theme]
        assert browser.complaints == []
        assert browser.requests == [path.as_uri()]
        browser.open(path, theme=theme, scripts=False, width=400)
        assert browser.run("document.querySelectorAll('.still svg').length") == 2
        assert browser.run("document.documentElement.scrollWidth") == 400
