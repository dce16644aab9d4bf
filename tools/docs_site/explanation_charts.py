"""Pictures of the explanations, made from the measurements of the catalogue and the claims.

A page names a picture in a comment, which the repository does not show:

<!-- chart: gradient of post_ln, pre_ln; step 1 -->   a metric of wirings over their sub-layers
<!-- chart of claim: one_update -->                   the chart of a claim
<!-- drawing: post_ln pre_ln -->                      one layer of each wiring
<!-- table of starts: post_ln, pre_ln -->             what untrained models keep of their input
"""

import re

from addnorm.claims import registry
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.svg import render_svg
from tools.docs_site.charts import METRICS, render_chart
from tools.docs_site.claim_pages import render_claim_chart
from tools.pages.markdown import markdown_table
from tools.pages.measurements import find_measurement, read_measurements
from tools.pages.member_pages import read_results_once

MEASURED = re.compile(r"<!-- chart: (\w+) of ([\w, ]+); step (\d+) -->")
CLAIM = re.compile(r"<!-- chart of claim: (\w+) -->")
STARTS = re.compile(r"<!-- table of starts: ([\w, ]+) -->")
DRAWING = re.compile(r"<!-- drawing: ([\w ]+) -->")


def add_explanation_charts(pages: dict[str, str]) -> dict[str, bytes]:
    """Replace the comments in the explanations by pictures; return the drawings by their path."""
    drawings: dict[str, bytes] = {}
    for name, text in pages.items():
        if not name.startswith("explanation/"):
            continue
        text = MEASURED.sub(lambda found: measured_chart(*found.groups()), text)
        text = CLAIM.sub(lambda found: claim_chart(found[1]), text)
        text = STARTS.sub(lambda found: start_table(found[1].split(", ")), text)
        for found in DRAWING.finditer(text):
            drawings |= draw_wirings(found[1].split())
        pages[name] = DRAWING.sub(lambda found: drawing_links(found[1].split()), text)
    return drawings


def measured_chart(metric: str, names: str, step: str) -> str:
    """Return the chart of a metric of several wirings at one step of training."""
    settings = read_measurements()["settings"]
    lines = {}
    for name in names.split(", "):
        measurement = find_measurement("wirings", name)
        assert measurement is not None, name
        lines[name] = measurement[metric][step]
    when = "Before training" if step == "1" else f"After {step} steps"
    caption = f"{when}; {settings['depth']} layers of width {settings['dim']}, one seed"
    return f'<div class="charts">{render_chart(METRICS[metric], lines, caption=caption)}</div>'


def start_table(names: list[str]) -> str:
    """Return what the outputs of untrained models have in common with their inputs."""
    rows = []
    for name in names:
        measurement = find_measurement("wirings", name)
        assert measurement is not None, name
        start = measurement["start"]
        values = (f"{start[key]:.2f}" for key in ("input_cosine", "token_cosine"))
        rows.append((f"[`{name}`](../catalogue/wirings/{name}.md)", *values))
    return markdown_table(("wiring", "cosine with the input", "cosine between tokens"), rows)


def claim_chart(name: str) -> str:
    """Return the chart of a claim, with a link to its page below."""
    svg, note = render_claim_chart(registry.member(name)(), read_results_once()[name])
    source = f"From claim [`{name}`](../claims/{name}.md)."
    return f'<div class="claim-chart">{svg}</div>\n\n{note} {source}'


def drawing_file(names: list[str], theme: str) -> str:
    return f"explanation/{'-'.join(names)}-{theme}.svg"


def draw_wirings(names: list[str]) -> dict[str, bytes]:
    """Return one layer of each wiring side by side, for light and dark pages."""
    layouts = [compute_layout(build_block_diagram(name, depth=6)) for name in names]
    return {
        drawing_file(names, theme): render_svg(layouts, theme=theme).encode()
        for theme in ("light", "dark")
    }


def drawing_links(names: list[str]) -> str:
    label = f"One layer of {', '.join(names)}"
    return "\n".join(
        f"![{label}](/{drawing_file(names, theme)}){{.only-{theme}}}" for theme in ("light", "dark")
    )
