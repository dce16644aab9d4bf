"""Pages: self-contained, escaped and written atomically."""

import re
from pathlib import Path

import pytest

from addnorm.core.errors import UserError
from addnorm.report.charts.curves import plot_curve
from addnorm.report.diagram.draw import draw
from addnorm.report.html.page import (
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
from addnorm.report.theme import PALETTE
from tests.report.browser import Browser, needs_browser

EVIL = "<script>alert('&')</script>"


@pytest.fixture
def no_vega(monkeypatch):
    """Skip the Vega bundle, which takes seconds to build; only browsers need it."""
    monkeypatch.setattr("addnorm.report.html.page._vega_script", lambda: "/* vega */")


def page_of(*parts):
    return render_page("A page", sections=[Section("A section", parts)])


def loaded_urls(text):
    """Return the URLs that a browser would load."""
    return re.findall(r"""(?:src|href)=["']?(?!#)([^"'\s>]+)|@import|url\((?!#)""", text)


def test_every_part_shows_its_content():
    text = page_of(
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


def test_text_is_escaped_everywhere():
    parts = (
        Facts(EVIL, {EVIL: EVIL}),
        Table(EVIL, (EVIL,), [(EVIL,)]),
        Note(EVIL),
        CollapsibleText(EVIL, EVIL),
    )
    section = Section(EVIL, parts, EVIL)
    text = render_page(
        EVIL, sections=[section] * 4, about=EVIL, key_numbers={EVIL: EVIL}, warnings=[EVIL]
    )
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert") > 30


def test_chart_cannot_close_its_script_element(no_vega):
    text = page_of(plot_curve([(1, 2.0), (2, 3.0)], title="t", y="</script><b>"))
    assert "</script><b>" not in text


def test_page_loads_nothing_and_forbids_it(no_vega):
    text = page_of(plot_curve([(1, 2.0), (2, 3.0)], title="t", y="y"))
    assert loaded_urls(text) == []
    assert "default-src 'none'" in text


def test_page_without_charts_is_small_and_has_no_script():
    text = page_of(Note("nothing"))
    assert len(text) < 20_000
    assert "<script" not in text


def test_chart_has_static_image_with_css_variables(no_vega):
    text = page_of(plot_curve([(1, 2.0), (2, 3.0)], title="t", y="y"))
    image = text[text.index('class="static"') : text.index("</figure>")]
    assert "<svg" in image and 'stroke="var(--blue)"' in image
    for theme in PALETTE:
        assert f"--blue: {PALETTE[theme]['blue']};" in text


def test_ids_of_figures_are_unique():
    light, dark = (draw(["pre_ln"], theme=theme) for theme in ("light", "dark"))
    figure = Figure("both", light, dark)
    text = page_of(figure, Column((figure,)))
    names = re.findall(r'\bid="([^"]+)"', text)
    assert len(names) == len(set(names))
    used = set(re.findall(r"url\(#([^)]+)\)", text))
    used |= {n for names in re.findall(r'labelledby="([^"]+)"', text) for n in names.split()}
    assert used and used <= set(names)


def test_page_is_written_atomically(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    assert write_page(path, "first \ud800") == path
    assert path.read_text(encoding="utf-8") == "first ?"

    def disk_full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", disk_full)
    with pytest.raises(UserError, match=r"cannot write '.*page.html': No space left on device; "):
        write_page(path, "second")
    assert path.read_text(encoding="utf-8") == "first ?"
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_unwritable_path_is_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .* choose another location"):
        write_page(tmp_path / "file" / "page.html", "text")


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_charts_are_interactive_with_scripts_and_static_without(tmp_path, theme):
    path = tmp_path / "page.html"
    chart = plot_curve([(step, step**0.5) for step in range(1, 50)], title="Root", y="root")
    write_page(path, page_of(chart, chart))
    with Browser() as browser:
        browser.open(path, theme=theme)
        browser.wait_for("document.querySelectorAll('.live:not(.loading) svg').length == 2")
        assert browser.evaluate("document.querySelectorAll('.static').length") == 0
        paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[theme]
        assert browser.errors == []
        assert browser.requests == [path.as_uri()]
        browser.open(path, theme=theme, scripts=False, width=400)
        assert browser.evaluate("document.querySelectorAll('.static svg').length") == 2
        assert browser.evaluate("document.documentElement.scrollWidth") == 400
