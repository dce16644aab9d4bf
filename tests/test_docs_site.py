"""The documentation site: its pages, links and resources."""

import re
import shutil
import subprocess
import sys

import pytest

from addnorm.cli.registries import get_registry
from addnorm.doctor.rules import RULES
from tests.report.browser import Browser, needs_browser
from tests.source_tree import ROOT
from tools.docs_site.charts import render_chart
from tools.docs_site.explanation_charts import add_explanation_charts
from tools.docs_site.formulas import to_latex
from tools.docs_site.navigation import MEMBER_FOLDERS, SECTIONS, render_toctrees
from tools.docs_site.sphinx_docstrings import convert_docstring, escape
from tools.docs_site.stage import adapt_links, collect_pages
from tools.measure_catalogue import NOT_MEASURED

FOREIGN = re.compile(
    r"""(?:<(?:script|img|iframe|source|link)[^>]*?(?:src|href|srcset)=|@import\s|url\()["']?"""
    r"""(?:https?:)?//""",
)


@pytest.fixture(scope="module")
def pages():
    return collect_pages()


def test_every_page_is_in_the_navigation_once(pages):
    listed = re.findall(r"^(\S+\.md)$", render_toctrees(SECTIONS, pages), flags=re.MULTILINE)
    members = {
        name
        for folder, parent in MEMBER_FOLDERS.items()
        for name in pages
        if name.startswith(folder) and name != parent
    }
    assert sorted(listed) == sorted(set(pages) - members - {"index.md"})
    for folder, parent in MEMBER_FOLDERS.items():
        base = parent.rpartition("/")[0] + "/"
        links = set(re.findall(r"\]\(([^)#\s]+\.md)", pages[parent]))
        own = {name.removeprefix(base) for name in members if name.startswith(folder)}
        assert own <= links, f"{parent} does not link to all of {folder}"


def test_reference_of_the_package_precedes_that_of_its_parts(pages):
    listed = re.findall(r"^(reference/\S+)$", render_toctrees(SECTIONS, pages), flags=re.MULTILINE)
    assert listed[0] == "reference/addnorm.md"


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("catalogue/wirings", get_registry("wirings")),
        ("catalogue/norms", get_registry("norms")),
        ("catalogue/presets", get_registry("presets")),
        ("catalogue/rules", RULES),
        ("claims", get_registry("claims")),
    ],
)
def test_every_member_has_a_page(folder, names, pages):
    missing = [name for name in names if f"{folder}/{name}.md" not in pages]
    assert missing == []


def test_pages_of_wirings_have_formula_charts_reference_and_claims(pages):
    for name in get_registry("wirings"):
        page = pages[f"catalogue/wirings/{name}.md"]
        assert "<math " in page, name
        assert page.count("<figure class=") == 2, f"run `python tools/measure_catalogue.py {name}`"
        for section in ("Paper", "Measured", "Claims about it", "Reference implementation"):
            assert f"## {section}" in page, (name, section)


def test_norms_without_measurement_are_those_that_the_script_names(pages):
    unmeasured = [
        name
        for name in get_registry("norms")
        if "<figure" not in pages[f"catalogue/norms/{name}.md"]
    ]
    assert unmeasured == list(NOT_MEASURED)


def test_atlas_shows_every_wiring_in_picture_and_table(pages):
    for name in get_registry("wirings"):
        assert pages["atlas.md"].count(f'data-name="{name}"') == 2, name


@needs_browser
def test_filters_of_the_atlas_act_on_picture_and_table(pages, tmp_path):
    html = pages["atlas.md"]
    html = html[html.index('<div class="atlas">') :]
    (tmp_path / "_static").mkdir()
    shutil.copy(ROOT / "docs/_static/atlas.js", tmp_path / "_static")
    (tmp_path / "atlas.html").write_text(f"<!doctype html><meta charset=utf-8>{html}", "utf-8")
    visible = (
        "[...document.querySelectorAll('tbody tr:not([hidden])')].map(row => row.dataset.name)"
    )
    plain = "[...document.querySelectorAll('a.node:not(.faded)')].map(node => node.dataset.name)"
    choose = """((name, value) => {
        const field = document.querySelector('form').elements[name];
        field.value = value;
        field.dispatchEvent(new Event('input', {bubbles: true}));
    })"""
    with Browser() as browser:
        browser.open(tmp_path / "atlas.html")
        assert set(browser.evaluate(visible)) == set(get_registry("wirings"))
        browser.evaluate(f"{choose}('trains', 'no')")
        stuck = browser.evaluate(visible)
        assert {"post_ln", "none"} <= set(stuck) and "pre_ln" not in stuck
        browser.evaluate(f"{choose}('year', '2017')")
        assert "none" not in browser.evaluate(visible)
        browser.evaluate(f"{choose}('text', 'no such wiring')")
        assert browser.evaluate(visible) == browser.evaluate(plain) == []
        browser.evaluate("document.querySelector('form').reset()")
        browser.wait_for(f"{visible}.length === {len(get_registry('wirings'))}")
        browser.evaluate(
            "document.querySelector('a.node[data-name=none]').dispatchEvent(new Event('focus'))"
        )
        details = browser.evaluate("document.querySelector('.atlas-details').textContent")
        assert "3.1 % fewer stored activations than Pre-LN" in details
        assert sorted(browser.evaluate(plain)) == sorted(get_registry("wirings"))


def test_pictures_are_markdown(pages):
    """Sphinx does not copy the file of an HTML picture, so that it would be missing in the site."""
    for name, text in pages.items():
        assert not re.search(r"^\s*<img", text, flags=re.MULTILINE), name


def test_no_mark_of_a_picture_is_left(pages):
    """A misspelled mark would be a comment, which nobody sees."""
    pages = dict(pages)
    add_explanation_charts(pages)
    for name, text in pages.items():
        assert not re.search(r"<!-- (chart|table|drawing)", text), name


def test_every_explanation_has_a_picture_of_a_measurement(pages):
    pages = dict(pages)
    add_explanation_charts(pages)
    for name, text in pages.items():
        if name.startswith("explanation/"):
            assert "<svg" in text, name


def test_chart_of_values_that_an_axis_cannot_show_has_gaps():
    chart = render_chart("t", {"a": [1.0, None, 100.0, 0.0, 10.0]})
    assert chart.count("<polyline") == 3
    assert "nan" not in chart and "inf" not in chart


def test_messages_of_rules_are_read_from_their_code(pages):
    page = pages["catalogue/rules/missing_final_norm.md"]
    assert "Severity of its findings" in page
    assert "## What it reports" in page


def test_links_between_staged_pages_exist(pages):
    for name, text in pages.items():
        prose = re.sub(r"```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"\]\(([^)#\s]+\.md)", prose):
            if not target.startswith("http"):
                path = (ROOT / "site" / name).parent.joinpath(target).resolve()
                assert path.relative_to(ROOT / "site").as_posix() in pages, f"{name}: {target}"


def test_links_that_leave_the_docs_become_pages_or_paths():
    source = ROOT / "docs" / "guides" / "text.md"
    staged = {ROOT / "LEDGER.md": "project/ledger.md"}
    text = "[the ledger](../../LEDGER.md#speed) and [the file](../../setup.py), not ``[a](b)``"
    assert adapt_links(text, source, "guides/text.md", staged).startswith(
        "[the ledger](../project/ledger.md#speed) and the file (`setup.py`)"
    )
    assert adapt_links("[setup.py](../../setup.py)", source, "guides/text.md", {}) == "`setup.py`"


def test_sources_of_a_claim_are_all_links(pages):
    page = pages["claims/deep_post_ln_fails.md"]
    assert page.count("](https://arxiv.org/abs/") == 2
    assert ".." not in page.partition("**Verdict")[0]


def test_symbol_behind_prose_is_typeset():
    assert to_latex("at the last one x <- N(x)") == r"\text{at the last one }x\leftarrow N(x)"


def test_docstrings_become_restructured_text():
    lines = ["Scale *x* by `g * 2`.", "", "y = g * x", "", "g: (dim), starts", "    at 1"]
    assert convert_docstring(lines) == [
        *(r"Scale \*x\* by ``g * 2``.", "", "::", "", "    y = g * x", ""),
        *("- ``g``: (dim), starts", "  at 1"),
    ]
    estimator = ["Classifier.", "", "Parameters", "----------", "dim : int", "    Width of `x`."]
    assert convert_docstring(estimator) == [*estimator[:-1], "    Width of ``x``."]
    assert escape("a_ |b| c_d") == r"a\_ \|b\| c_d"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. Sphinx treats warnings as errors."""
    out = tmp_path_factory.mktemp("docs") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs_site", str(out)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.slow
def test_no_page_of_the_site_loads_anything_from_elsewhere(site):
    for path in site.rglob("*"):
        if path.suffix in {".html", ".css"}:
            found = FOREIGN.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{path}: {found[0]}"


@pytest.mark.slow
def test_links_of_the_site_exist(site):
    """Also those inside of HTML, which Sphinx does not check."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for target in re.findall(r'<(?:a|img|script|link)[^>]*? (?:href|src)="([^"#?]+)', text):
            if not re.match(r"[a-z]+:", target):
                assert (path.parent / target).exists(), f"{path.relative_to(site)}: {target}"


@pytest.mark.slow
def test_search_works_from_disk_and_without_network(site):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("needs chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=20000"]
    page = subprocess.run(
        [
            *(browser, *options, "--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom"),
            f"file://{site}/search.html?q=rezero",
        ],
        capture_output=True,
        text=True,
    ).stdout
    assert 'href="catalogue/wirings/rezero.html' in page
