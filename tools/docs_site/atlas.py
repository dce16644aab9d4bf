"""The atlas: all wirings in one picture by year and kind, with filters, and as a table.

Picture and table are plain HTML, which can be read without scripts; docs/_static/atlas.js adds the
filters and the panel of details.
"""

import html
from collections import defaultdict
from dataclasses import dataclass

from addnorm.cli.registries import get_registry
from addnorm.core.cards import Card, sort_by_group
from tools.pages.measurements import find_measurement, has_trained, read_measurements

YEAR_WIDTH, ROW_HEIGHT, LANE_PADDING = 88, 21, 9
LEFT, TOP = 104, 34
COST_LIMITS = {"0.01": "at most 1 %", "0.1": "at most 10 %", "0.5": "at most 50 %"}
INTRODUCTION = """# Atlas of wirings

All {count} wirings in one picture. Each stands at the year of its paper, in the row of its kind.
Point at a name for its formula and what it folds to; click for its page. The filters act on the
picture and on the table.

- **Trains at depth** (filled circle; empty if not): whether {depth} layers of width {dim} train in
  {steps} steps without warm-up at a learning rate of {lr:g}. The task is to copy the input; one
  seed. It says whether signal and gradient pass, not how good a model gets.
- **Cost**: stored activations of a training step of GPT-2, compared with Pre-LN. The area of the
  circle grows with it.
- **Folds to**: the plain wiring that computes the same outputs with changed weights, for
  [export](guides/export.md#fold).
"""


@dataclass(frozen=True)
class Entry:
    """What the atlas shows about one wiring."""

    card: Card
    trains: str
    """yes, no, or unknown if it was not measured."""
    loss: str
    cost: float
    """Stored activations relative to Pre-LN's."""

    @property
    def attributes(self) -> str:
        """Attributes that the filters read."""
        values = {
            "name": self.card.name,
            "title": self.card.title,
            "kind": self.card.group,
            "year": str(self.card.year),
            "trains": self.trains,
            "loss": self.loss,
            "cost": f"{self.cost - 1:.4f}",
            "folds": self.card.folds_to or "nothing",
            "formula": self.card.formula,
            "summary": self.card.summary,
        }
        return " ".join(f'data-{key}="{html.escape(value)}"' for key, value in values.items())

    @property
    def link(self) -> str:
        return f"catalogue/wirings/{self.card.name}.html"


def atlas_page() -> str:
    """Return the page as Markdown with embedded HTML."""
    entries = collect_entries()
    settings = read_measurements()["settings"]
    introduction = INTRODUCTION.format(count=len(entries), **settings)
    body = [
        '<div class="atlas">',
        render_filters(entries),
        f'<div class="atlas-picture">{render_picture(entries)}</div>',
        '<div class="atlas-details" aria-live="polite">Point at a wiring.</div>',
        render_table(entries),
        "</div>",
        '<script src="_static/atlas.js"></script>',
    ]
    return introduction + "\n" + "\n".join(body) + "\n"


def collect_entries() -> list[Entry]:
    """Return all wirings in the order of their kinds and years."""
    entries = []
    for card in sort_by_group(list(get_registry("wirings").cards())):
        found = find_measurement("wirings", card.name)
        if found is None:
            entries.append(Entry(card, "unknown", "", 1.0))
            continue
        loss = "not finite" if found["loss"] is None else f"{found['loss']:.2g}"
        trains = "yes" if has_trained(found) else "no"
        entries.append(Entry(card, trains, loss, found["cost"]["activations"]))
    return entries


def render_picture(entries: list[Entry]) -> str:
    """Return the picture as SVG; wirings of one kind and year stand below each other."""
    columns = {year: number for number, year in enumerate(list_years(entries))}
    lanes: dict[str, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for entry in entries:
        lanes[entry.card.group][entry.card.year or 0].append(entry)
    width = LEFT + len(columns) * YEAR_WIDTH
    parts, top = [], float(TOP)
    for number, (kind, by_year) in enumerate(lanes.items()):
        rows = max(map(len, by_year.values()))
        height = rows * ROW_HEIGHT + 2 * LANE_PADDING
        parts.append(
            f'<rect class="lane lane{number % 2}" x="0" y="{top:.0f}" width="{width}" '
            f'height="{height}"/><text class="kind" x="8" y="{top + height / 2 + 4:.0f}">'
            f"{kind}</text>"
        )
        for year, group in by_year.items():
            for row, entry in enumerate(group):
                x = LEFT + columns[year] * YEAR_WIDTH + 8
                parts.append(render_node(entry, x, top + LANE_PADDING + (row + 0.5) * ROW_HEIGHT))
        top += height
    for year, column in columns.items():
        x = LEFT + column * YEAR_WIDTH
        parts.append(f'<text class="year" x="{x}" y="20">{year}</text>')
    label = "Wirings by year and kind"
    return (
        f'<svg viewBox="0 0 {width} {top:.0f}" width="{width}" role="group" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )


def list_years(entries: list[Entry]) -> list[int]:
    """Return the years in which a wiring was published."""
    return sorted({entry.card.year or 0 for entry in entries})


def render_node(entry: Entry, x: float, y: float) -> str:
    """Return a circle and a name, as a link to the page of the wiring."""
    radius = 4.0 * min(max(entry.cost, 0.5), 4.0) ** 0.5
    return (
        f'<a class="node trains-{entry.trains}" href="{entry.link}" {entry.attributes}>'
        f'<circle cx="{x:.0f}" cy="{y:.1f}" r="{radius:.1f}"/>'
        f'<text x="{x + radius + 4:.0f}" y="{y + 4:.1f}">{entry.card.name}</text></a>'
    )


def render_filters(entries: list[Entry]) -> str:
    """Return the form of filters."""
    kinds = list(dict.fromkeys(entry.card.group for entry in entries))
    targets = sorted({entry.card.folds_to for entry in entries if entry.card.folds_to})
    years = list_years(entries)
    trains = {"yes": "yes", "no": "no"}
    fields = [
        '<label>Name <input type="search" name="text" placeholder="norm, scale, ..."></label>',
        select("Kind", "kind", {kind: kind for kind in kinds}),
        select("From year", "year", {str(year): str(year) for year in years}),
        select("Trains at depth without warm-up", "trains", trains),
        select("Extra cost", "cost", COST_LIMITS),
        select("Folds to", "folds", {each: each for each in [*targets, "nothing"]}),
        '<button type="reset">Show all</button><output></output>',
    ]
    return f'<form class="atlas-filters">{"".join(fields)}</form>'


def select(label: str, name: str, choices: dict[str, str]) -> str:
    """Return a labelled list of choices that starts with `all`."""
    options = "".join(f'<option value="{key}">{text}</option>' for key, text in choices.items())
    options = f'<option value="">all</option>{options}'
    return f'<label>{label} <select name="{name}">{options}</select></label>'


def format_extra(cost: float) -> str:
    """Return what a cost adds to that of Pre-LN.

    >>> format_extra(1.0), format_extra(1.0301)
    ('0 %', '+3.0 %')
    """
    return f"{100 * (cost - 1):+.1f} %" if cost != 1 else "0 %"


def render_table(entries: list[Entry]) -> str:
    """Return the same facts as a table."""
    head = ("wiring", "year", "kind", "trains at depth", "loss", "extra activations", "folds to")
    rows = []
    for entry in entries:
        card = entry.card
        name = f'<a href="{entry.link}">{html.escape(card.title)}</a> <code>{card.name}</code>'
        extra = format_extra(entry.cost) if entry.loss else ""
        cells = (name, card.year, card.group, entry.trains, entry.loss, extra, card.folds_to)
        line = "".join(f"<td>{cell}</td>" for cell in cells)
        rows.append(f'<tr class="trains-{entry.trains}" {entry.attributes}>{line}</tr>')
    header = "".join(f"<th>{each}</th>" for each in head)
    body = "\n".join(rows)
    return (
        '<div class="table-wrapper"><table class="docutils"><thead><tr>'
        f"{header}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )
