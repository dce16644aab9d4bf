"""One HTML page from parts: nothing is fetched, light and dark, for a wide screen, a phone, paper.

A page is a title, a few figures and sections; a section is a row of parts. Every part is plain data
and the template alone knows how it looks.

>>> facts = Facts("The run", {"task": "translate", "steps": "8,000"})
>>> text = page("A run", sections=[Section("What was trained", (facts,))])
>>> "<th>task</th><td>translate</td>" in text
True
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import jinja2
from markupsafe import Markup

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write
from addnorm.report.diagram.svg import FONT_FAMILY, THEMES
from addnorm.report.theme import OUTCOME_SYMBOLS, arm_and_outcome_colors

PALETTE = {  # Okabe and Ito's colours, which the colour-blind tell apart; lighter on dark paper
    "light": {"blue": "#0072b2", "orange": "#d55e00", "green": "#00805d", "purple": "#a3477f"},
    "dark": {"blue": "#56b4e9", "orange": "#f0952b", "green": "#2bc49a", "purple": "#d98cb8"},
}
STATIC_WIDTH_PIXELS = 600
"""Width of the still picture of a chart; it is scaled to the room there is."""


HOVER_ONLY_STYLE = "unseen"
"""Style of marks that only answer the pointer."""


class Part(Protocol):
    """Whatever the template knows how to show."""

    @property
    def kind(self) -> str:
        """By which the template tells it."""


@dataclass(frozen=True)
class Facts:
    """A table of names and values."""

    title: str
    values: Mapping[str, Any]
    kind: str = field(default="facts", init=False)


@dataclass(frozen=True)
class Table:
    """A table with a head; cells are text, or know themselves how they look (`__html__`)."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    wide: bool = False
    """Whether it takes the whole row."""
    stacked: bool = False
    """Whether a phone shows each row as a card."""
    tall: bool = False
    """Whether it scrolls within a window of its own."""
    kind: str = field(default="table", init=False)


@dataclass(frozen=True)
class Note:
    """A line of text; what was not measured is said so."""

    text: str
    kind: str = field(default="note", init=False)


@dataclass(frozen=True)
class CollapsibleText:
    """A long text that opens on a click."""

    title: str
    text: str
    kind: str = field(default="fold", init=False)


@dataclass(frozen=True)
class Collapsible:
    """Parts that open on a click."""

    title: str
    parts: Sequence[Part]
    kind: str = field(default="folded", init=False)


@dataclass(frozen=True)
class Headline:
    """Sentences: the first large, the others below."""

    large: Sequence[str]
    small: Sequence[str] = ()
    kind: str = field(default="lead", init=False)


@dataclass(frozen=True)
class Figure:
    """A drawing as SVG, one for each theme."""

    title: str
    light: str
    dark: str
    kind: str = field(default="picture", init=False)


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite chart. Its colours are the page's CSS variables, so it follows the theme."""

    title: str
    """What is seen, in a few words."""
    spec: Mapping[str, Any]
    """Vega-Lite; see charts.py."""
    note: str = ""
    """How to read it, what was left out."""
    wide: bool = False
    """Whether it takes the whole row."""
    log: bool = False
    """Whether a board may put its values on a log scale."""
    kind: str = field(default="chart", init=False)

    @property
    def static_svg(self) -> Markup:
        """The picture for the first paint, for browsers without scripts and for paper."""
        import vl_convert  # a big library, wanted only here

        layers = self.spec.get("layer")
        spec = {**self.spec, "width": STATIC_WIDTH_PIXELS * (1 + self.wide)}
        if layers:  # what only answers the pointer is not to be seen
            spec["layer"] = [
                layer for layer in layers if layer["mark"].get("style") != HOVER_ONLY_STYLE
            ]
        spec["params"] = [each for each in spec.get("params", ()) if "select" not in each]
        return _inline(vl_convert.vegalite_to_svg(spec, vl_version=vega_lite_version()))


@dataclass(frozen=True)
class Column:
    """Parts below one another, in the room of one."""

    parts: Sequence[Part]
    kind: str = field(default="column", init=False)


@dataclass(frozen=True)
class Section:
    """A heading, a sentence and parts, side by side where there is room."""

    title: str
    parts: Sequence[Part]
    about: str = ""
    narrow: bool = False
    """Whether its parts need little room each."""


def render_page(
    title: str,
    *,
    sections: Sequence[Section],
    about: str = "",
    figures: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
) -> str:
    """The page as text. figures: the few numbers that matter, large. warnings: before all else."""
    kinds = {part.kind for section in sections for part in section.parts}
    return render(
        "page.html.j2",
        title=title,
        about=about,
        figures=figures or {},
        warnings=warnings,
        sections=sections,
        kinds=kinds,
        vega=Markup(_vega()) if kinds & {"chart", "board"} else "",
    )


def render(template: str, **values: Any) -> str:
    """A template of this package, filled; all text is escaped."""
    return (
        _templates()
        .get_template(template)
        .render(**values, variables=Markup(build_css_variables()), family=Markup(FONT_FAMILY))
    )


def build_css_variables() -> str:
    """The themes as CSS: dark only on screens that ask for it, so that paper stays white."""
    light, dark = (_format_css_variables(name) for name in ("light", "dark"))
    return (
        f":root {{ color-scheme: light; {light} }}\n"
        "@media screen and (prefers-color-scheme: dark) "
        f"{{ :root {{ color-scheme: dark; {dark} }} }}"
    )


def write_page(path: Path, text: str) -> Path:
    """Write the page whole or not at all."""
    try:
        with atomic_write(path) as name:
            name.write_bytes(
                text.encode("utf-8", errors="replace")
            )  # lone surrogates have no bytes
    except OSError as problem:
        raise UserError(
            f"cannot write {str(path)!r}: {problem.strerror or problem}; choose another place"
        ) from None
    return path


def page_colors(theme: str) -> dict[str, str]:
    """Every colour of a page by the name of its CSS variable."""
    look = THEMES[theme]
    return {
        "paper": look.paper, "ink": look.ink, "quiet": look.quiet, "line": look.line,
        "panel": look.panel, "edge": look.panel_edge, **PALETTE[theme], **arm_and_outcome_colors(theme),
    }  # fmt: skip


def _format_css_variables(theme: str) -> str:
    return " ".join(f"--{name}: {colour};" for name, colour in page_colors(theme).items())


def _inline(svg: str, prefix: str = "") -> Markup:
    """An SVG for use inside a page: its names made unlike those of its neighbours."""
    if prefix:
        svg = re.sub(r'\bid="(\w+)"', rf'id="{prefix}-\1"', svg)
        svg = re.sub(r"url\(#(\w+)\)", rf"url(#{prefix}-\1)", svg)
        svg = re.sub(
            r'aria-labelledby="([\w ]+)"',
            lambda m: 'aria-labelledby="' + " ".join(f"{prefix}-{n}" for n in m[1].split()) + '"',
            svg,
        )
    return Markup(svg)


@functools.cache
def _templates() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("addnorm.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["inline"] = _inline
    made.globals["signs"] = OUTCOME_SYMBOLS
    return made


def vega_lite_version() -> str:
    """The Vega-Lite that altair writes, as vl-convert calls it."""
    from altair import SCHEMA_VERSION

    return ".".join(SCHEMA_VERSION.lstrip("v").split(".")[:2])


@functools.cache
def _vega() -> str:
    """Vega, Vega-Lite and vega-embed in one script, out of vl-convert; 0.9 MB."""
    import vl_convert

    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vega_lite_version())
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE)
