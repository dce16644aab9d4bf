"""The documentation site: its pages, links and resources."""

import json
import re
import subprocess
import sys

import pytest

from tests.source_tree import ROOT
from tools.docs_site.navigation import SECTIONS, render_toctrees
from tools.docs_site.sphinx_docstrings import convert_docstring, escape
from tools.docs_site.stage import adapt_links, collect_pages

FOREIGN = re.compile(
    r"""(?:<(?:script|img|iframe|source|link)[^>]*?(?:src|href|srcset)=|@import\s|url\()["']?"""
    r"""(?:https?:)?//""",
)


@pytest.fixture(scope="module")
def pages():
    return collect_pages()


def test_every_page_is_in_the_navigation_once(pages):
    listed = re.findall(r"^(\S+\.md)$", render_toctrees(SECTIONS, pages), flags=re.MULTILINE)
    members = {name for name in pages if re.match(r"catalogue/(wirings|norms)/", name)}
    assert sorted(listed) == sorted(set(pages) - members - {"index.md"})
    index = pages["catalogue/index.md"]
    assert all(name.removeprefix("catalogue/") in index for name in members)


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


def test_docstrings_become_restructured_text():
    lines = ["Scale *x* by `g * 2`.", "", "y = g * x", "", "g: (dim), starts", "    at 1"]
    assert convert_docstring(lines) == [
        *(r"Scale \*x\* by ``g * 2``.", "", "::", "", "    y = g * x", ""),
        *("- ``g``: (dim), starts", "  at 1"),
    ]
    assert escape("a_ |b| c_d") == r"a\_ \|b\| c_d"


@pytest.mark.slow
def test_site_is_built_without_warnings_and_needs_no_network(tmp_path):
    """Sphinx treats warnings as errors; no page loads a script, style or picture from elsewhere."""
    out = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "tools.docs_site", str(out)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for path in out.rglob("*"):
        if path.suffix in {".html", ".css"}:
            found = FOREIGN.search(path.read_text(encoding="utf-8"))
            assert found is None, f"{path}: {found[0]}"
    index = (out / "searchindex.js").read_text(encoding="utf-8")
    terms = json.loads(index.removeprefix("Search.setIndex(").rstrip(")"))["terms"]
    assert "rezero" in terms
