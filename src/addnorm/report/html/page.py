"""Self-contained HTML pages made of parts.

A page has a title, key numbers and sections; a section is a grid of parts. A part is a frozen
dataclass with a `kind`. The template `parts.html.j2` renders each kind and alone decides how it
looks. A page loads nothing from the network and supports light and dark themes, small screens and
print.

>>> facts = Facts("The run", {"task": "translate", "steps": "8,000"})
>>> text = render_page("A run", sections=[Section("Model", (facts,))])
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

from addnorm.report.output import write_bytes
from addnorm.report.theme import FONT_FAMILY, OUTCOME_SYMBOLS, build_css_variables

STATIC_WIDTH_PIXELS = 600
"""Width at which the static image of a chart is rendered; CSS scales it to its container."""
HOVER_ONLY_STYLE = "hover-only"
"""Mark style of layers that react to the pointer and are invisible otherwise."""


class Part(Protocol):
    """Anything that a section can contain."""

    @property
    def kind(self) -> str:
        """The name by which the template selects how to render the part."""


@dataclass(frozen=True)
class Facts:
    """A table of names and values."""

    title: str
    values: Mapping[str, Any]
    kind: str = field(default="facts", init=False)


@dataclass(frozen=True)
class Table:
    """A table with a header row; a cell is text or an object with an `__html__` method."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    wide: bool = False
    """Whether the table spans the full width of the page."""
    stacked: bool = False
    """Whether small screens show each row as a card."""
    tall: bool = False
    """Whether the table scrolls vertically inside a box of limited height."""
    kind: str = field(default="table", init=False)


@dataclass(frozen=True)
class Note:
    """A paragraph, for example in place of a chart that has no data."""

    text: str
    kind: str = field(default="note", init=False)


@dataclass(frozen=True)
class CollapsibleText:
    """Preformatted text that is collapsed at first."""

    title: str
    text: str
    kind: str = field(default="collapsible_text", init=False)


@dataclass(frozen=True)
class Collapsible:
    """Parts that are collapsed at first."""

    title: str
    parts: Sequence[Part]
    kind: str = field(default="collapsible", init=False)


@dataclass(frozen=True)
class Headline:
    """Sentences in large type, followed by a list of smaller ones."""

    large: Sequence[str]
    small: Sequence[str] = ()
    kind: str = field(default="headline", init=False)


@dataclass(frozen=True)
class Figure:
    """A diagram as SVG, once for each theme."""

    title: str
    light: str
    dark: str
    kind: str = field(default="figure", init=False)


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite chart whose colors are CSS variables of the page."""

    title: str
    spec: Mapping[str, Any]
    """The Vega-Lite specification; see `addnorm.report.charts.base`."""
    note: str = ""
    """How to read the chart, and which values it omits."""
    wide: bool = False
    """Whether the chart spans the full width of the page."""
    log: bool = False
    """Whether the log switch of a `ChartGroup` applies to the chart."""
    kind: str = field(default="chart", init=False)

    @property
    def static_svg(self) -> Markup:
        """The chart as SVG, shown before scripts have run, without scripts, and in print."""
        import vl_convert  # large, and needed only here

        layers = self.spec.get("layer")
        spec = {**self.spec, "width": STATIC_WIDTH_PIXELS * (1 + self.wide)}
        if layers:
            spec["layer"] = [
                layer for layer in layers if layer["mark"].get("style") != HOVER_ONLY_STYLE
            ]
        spec["params"] = [each for each in spec.get("params", ()) if "select" not in each]
        return inline_svg(vl_convert.vegalite_to_svg(spec, vl_version=vega_lite_version()))


@dataclass(frozen=True)
class Column:
    """Parts stacked vertically in the place of one part."""

    parts: Sequence[Part]
    kind: str = field(default="column", init=False)


@dataclass(frozen=True)
class Section:
    """A heading, an introduction and a grid of parts."""

    title: str
    parts: Sequence[Part]
    about: str = ""
    narrow: bool = False
    """Whether the grid has narrow columns."""


def render_page(
    title: str,
    *,
    sections: Sequence[Section],
    about: str = "",
    key_numbers: Mapping[str, str] | None = None,
    warnings: Sequence[str] = (),
) -> str:
    """Return a page as HTML.

    Args:
        title: heading of the page
        sections: the content; with more than three sections the page gets a table of contents
        about: introduction below the title
        key_numbers: the few most important numbers by name, shown in large type
        warnings: sentences shown before the key numbers
    """
    kinds = {part.kind for section in sections for part in section.parts}
    return render(
        "page.html.j2",
        title=title,
        about=about,
        key_numbers=key_numbers or {},
        warnings=warnings,
        sections=sections,
        kinds=kinds,
        vega=Markup(_vega_script()) if kinds & {"chart", "chart_group"} else "",
    )


def render(template: str, **values: Any) -> str:
    """Render a template of this package; every value that is not `Markup` is escaped."""
    return (
        _template_environment()
        .get_template(template)
        .render(**values, variables=Markup(build_css_variables()), family=Markup(FONT_FAMILY))
    )


def write_page(path: Path, text: str) -> Path:
    """Write a page atomically and return its path.

    Raises:
        UserError: if the file cannot be written
    """
    # Text of users may contain lone surrogates, which UTF-8 cannot encode.
    return write_bytes(path, text.encode("utf-8", errors="replace"))


def inline_svg(svg: str, prefix: str = "") -> Markup:
    """Return an SVG for use inside a page, with `prefix` added to its ids to keep them unique."""
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
def _template_environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("addnorm.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["inline_svg"] = inline_svg
    environment.globals["outcome_symbols"] = OUTCOME_SYMBOLS
    return environment


def vega_lite_version() -> str:
    """Return altair's Vega-Lite version in the format of vl-convert, such as "5.20"."""
    from altair import SCHEMA_VERSION

    return ".".join(SCHEMA_VERSION.lstrip("v").split(".")[:2])


@functools.cache
def _vega_script() -> str:
    """Return Vega, Vega-Lite and vega-embed bundled into one script of 0.9 MB."""
    import vl_convert

    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vega_lite_version())
    # A literal "</script" inside the bundle would end the page's script element.
    return re.sub(r"</(?=script)", r"<\\/", script, flags=re.IGNORECASE)
