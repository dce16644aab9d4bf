"""The pages that Sphinx reads: docs/ with its links adapted, and pages made from the code.

Committed pages are plain Markdown, so that they can also be read in the repository. What only the
site has (navigation, drawings in two themes, the reference) is added to a copy of them.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from tools.docs_site.atlas import atlas_page
from tools.docs_site.chart_colors import chart_colors_css
from tools.docs_site.charts import add_charts
from tools.docs_site.claim_pages import claim_pages, link_claims
from tools.docs_site.drawings import add_drawings
from tools.docs_site.examples import example_pages, notebook_files
from tools.docs_site.explanation_charts import add_explanation_charts
from tools.docs_site.formulas import typeset_pages
from tools.docs_site.navigation import SECTIONS, add_member_toctrees, render_toctrees
from tools.docs_site.preset_pages import link_presets, preset_pages, preset_pictures
from tools.docs_site.reference import reference_pages
from tools.docs_site.references import add_references
from tools.docs_site.rule_pages import link_rules, rule_pages

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROJECT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "LEDGER.md")
"""Pages at the root of the repository, staged as project/NAME."""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?^```$", flags=re.DOTALL | re.MULTILINE)


def stage_pages(folder: Path) -> None:
    """Write every page of the site below `folder`; unchanged files keep their time.

    Sphinx then reads only the pages that have changed.
    """
    pages = collect_pages()
    folder.mkdir(parents=True, exist_ok=True)
    files = add_drawings(pages) | add_explanation_charts(pages)
    files |= preset_pictures() | notebook_files()
    files["_static/chart-colors.css"] = chart_colors_css().encode()
    files |= {name: path.read_bytes() for name, path in collect_assets().items()}
    files |= {name: text.encode() for name, text in pages.items()}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for name, content in files.items():
        path = folder / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def collect_pages() -> dict[str, str]:
    """Return the Markdown of every page by its path in the site."""
    sources = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*.md")}
    sources |= {f"project/{name.lower()}": ROOT / name for name in PROJECT_PAGES}
    staged = {source: name for name, source in sources.items()}
    staged |= {path: f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}
    pages = {
        name: adapt_links(path.read_text(encoding="utf-8"), path, name, staged)
        for name, path in sources.items()
    }
    pages |= example_pages() | reference_pages() | claim_pages() | preset_pages()
    pages |= rule_pages(pages["explanation/common-mistakes.md"])
    pages["atlas.md"] = atlas_page()
    for add_links in (link_rules, link_presets, link_claims):
        add_links(pages)
    typeset_pages(pages)
    add_charts(pages)
    add_references(pages)
    add_member_toctrees(pages)
    pages["index.md"] = add_site_links(pages["index.md"], pages)
    pages["index.md"] += render_toctrees(SECTIONS, pages)
    return pages


def add_site_links(index: str, pages: Mapping[str, str]) -> str:
    """Return the start page with links to the pages that only the site has.

    They replace its last paragraph, which says how to build the site.
    """
    titles = {
        name: pages[name].partition("\n")[0].removeprefix("# ")
        for name in sorted(pages)
        if name.startswith("examples/")
    }
    links = "\n".join(f"- [{title}]({name})" for name, title in titles.items())
    return (
        index[: index.index("`make docs` builds")]
        + "- [Atlas of all wirings](atlas.md) · [Python interface](reference/addnorm.md)\n\n"
        + f"## Examples\n\n{links}\n"
    )


def collect_assets() -> dict[str, Path]:
    """Return the pictures, style sheets and configuration by their path in the site."""
    kept = (".svg", ".png", ".css", ".js")
    assets = {
        path.relative_to(DOCS).as_posix(): path
        for path in DOCS.rglob("*")
        if path.suffix in kept and "claims" not in path.relative_to(DOCS).parts[:1]
    }
    return (
        assets
        | {"conf.py": DOCS / "conf.py"}
        | {"sphinx_docstrings.py": ROOT / "tools" / "docs_site" / "sphinx_docstrings.py"}
    )


def adapt_links(text: str, source: Path, name: str, staged: dict[Path, str]) -> str:
    """Point links to the staged pages; a link to a file that is no page becomes its path.

    Args:
        text: Markdown of the page
        source: its path in the repository
        name: its path in the site
        staged: path in the site of every page, by its path in the repository
    """

    def adapt(match: re.Match[str]) -> str:
        label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        path, mark, anchor = target.partition("#")
        resolved = (source.parent / path).resolve()
        if resolved in staged:
            own = os.path.relpath(staged[resolved], Path(name).parent).replace(os.sep, "/")
            return f"[{label}]({own}{mark}{anchor})"
        if resolved.is_relative_to(DOCS):
            return match[0]
        own = resolved.relative_to(ROOT).as_posix()
        return f"`{own}`" if label.strip("`") == own else f"{label} (`{own}`)"

    parts, last = [], 0
    for block in CODE.finditer(text):
        parts += [LINK.sub(adapt, text[last : block.start()]), block[0]]
        last = block.end()
    return "".join([*parts, LINK.sub(adapt, text[last:])])
