"""The page of a visit: what is wired, what is wrong, and the vital signs."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from addnorm.doctor.report import Report
from addnorm.report.charts.run import plot_over_depth
from addnorm.report.diagram.doctor import doctor_diagram
from addnorm.report.html.page import (
    CollapsibleText,
    Facts,
    Figure,
    Note,
    Part,
    Section,
    Table,
    render_page,
    write_page,
)

METRIC_TITLES = {
    "stream_variance": ("Variance of the stream", "variance"),
    "dependency": ("Residual dependency", "share of the branch"),
    "gradient_norm": ("Gradient at the add", "norm of the gradient"),
    "token_similarity": ("Likeness of tokens", "mean cosine"),
}
MAX_STREAMS = 12
"""Streams that a chart shows."""
METRIC_COLUMNS = ("shortcut_variance", "branch_variance", "dependency", "gradient_norm")


def write_doctor_page(report: Report, path: str | Path) -> Path:
    """Write the page of a report and return its path."""
    return write_page(Path(path), render_doctor_page(report))


def render_doctor_page(report: Report) -> str:
    """The page as text."""
    counts = {
        level: sum(f.severity == level for f in report.findings) for level in ("error", "warning")
    }
    return render_page(
        f"A visit to {report.model}",
        about="; ".join(report.stacks) or "No residual adds were found.",
        figures={
            "residual adds": str(len(report.blocks)),
            "norms": str(len(report.norms)),
            "errors": str(counts["error"]),
            "warnings": str(counts["warning"]),
        },
        warnings=[
            f"{f.rule}{f' at {f.path}' if f.path else ''}: {f.message}"
            for f in report.findings
            if f.severity == "error"
        ],
        sections=list(_sections(report)),
    )


def _sections(report: Report) -> Iterator[Section]:
    yield Section("What is wrong", [_findings(report)])
    if report.blocks:
        yield Section(
            "What is wired",
            [
                Figure(
                    "A typical layer of each stream",
                    doctor_diagram(report, theme="light"),
                    doctor_diagram(report, theme="dark"),
                ),
                Facts("The arrangement", _facts(report)),
            ],
            about="Drawn from the recorded forward: what was computed, whatever it is called.",
        )
        yield Section("Residual adds", [_blocks(report)])
        signs = [
            *(_metric_chart(report, name) for name in METRIC_TITLES),
            _roles(report),
            _saturation(report),
        ]
        signs.append(_stream_metrics_table(report))
        yield Section(
            "Vital signs",
            [part for part in signs if part is not None],
            about="They explain; they do not convict. Whether it trains, the stress run says.",
        )
    if report.stress:
        yield Section("The stress run", list(_stress(report)), about="What really happened.")
    if report.norms:
        yield Section("Norms", [_norms(report)])
    yield Section("All numbers", [CollapsibleText("The report as JSON", report.to_json())])


def _facts(report: Report) -> Mapping[str, Any]:
    facts: dict[str, Any] = {"closest arrangement": report.closest()}
    for number, line in enumerate(report.stacks):
        facts[f"stream {number}"] = line
    for number, line in enumerate(report.odd):
        facts[f"odd {number + 1}"] = line
    for number, line in enumerate(report.notes):
        facts[f"not seen {number + 1}"] = line
    return facts


def _findings(report: Report) -> Part:
    if not report.findings:
        return Note("Nothing was found.")
    rows = [
        (f.severity, f.rule, f.path or "-", f.message, f.evidence_text()) for f in report.findings
    ]
    return Table(
        "Findings", ("severity", "rule", "where", "what", "evidence"), rows, wide=True, stacked=True
    )


def _blocks(report: Report) -> Table:
    head = (
        "block",
        "add",
        "branch",
        "kind",
        "wiring",
        "tags",
        *(c.replace("_", " ") for c in METRIC_COLUMNS),
    )
    rows = [
        (
            str(b.index), b.path or "-", b.branch or "-", b.kind, b.wiring, " ".join(b.tags),
            *(_format_number(b.measurements.get(name)) for name in METRIC_COLUMNS),
        )
        for b in report.blocks
    ]  # fmt: skip
    return Table(
        "Every residual add, from the first to the last", head, rows, wide=True, stacked=True
    )


def _format_number(value: float | None) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.3g}"


def _norms(report: Report) -> Table:
    rows = [
        (n.path or "-", n.kind, n.place, "" if n.eps is None else f"{n.eps:g}",
         "by hand" if n.by_hand else "", "" if n.block is None else str(n.block))
        for n in report.norms
    ]  # fmt: skip
    head = ("where", "kind", "place", "eps", "written", "add")
    return Table("Every use of a norm", head, rows, wide=True, stacked=True)


def _stress(report: Report) -> Iterator[Part]:
    yield Table("Short runs", *report.stress_table(), wide=True, stacked=True)
    yield from (Note(f"{line[0].upper()}{line[1:]}.") for line in report.sensitivities())


def _roles(report: Report) -> Part | None:
    """Gradients by what weights do: in all blocks, in the first and in the last that has them."""
    rows: dict[str, list[float]] = {}
    whole: dict[str, float] = {}
    for row in report.rows:
        if row["measure"] == "role_gradient_norm":
            if "site" in row:
                rows.setdefault(row["role"], []).append(row["value"])
            else:
                whole[row["role"]] = row["value"]
    cells = [
        (role, _format_number(whole[role]), _format_number(values[0]), _format_number(values[-1]))
        for role, values in rows.items()
    ]
    head = ("weights", "all blocks", "first", "last")
    return Table("Norm of the gradient by what weights do", head, cells) if cells else None


def _saturation(report: Report) -> Part | None:
    rows = [
        (row["path"] or "-", f"{100 * row['value']:.1f} %")
        for row in report.rows
        if row["measure"] == "saturation"
    ]
    title = "Share of values where a squashing norm has less than a tenth of its slope"
    return Table(title, ("where", "share"), rows) if rows else None


def _stream_metrics_table(report: Report) -> Part | None:
    rows = [
        (where, name, _format_number(value)) for where, name, value in report.stream_statistics()
    ]
    title = "Streams and attentions"
    return Table(title, ("where", "sign", "value"), rows, wide=True) if rows else None


def _metric_chart(report: Report, name: str) -> Part | None:
    title, unit = METRIC_TITLES[name]
    rows = [
        {"measure": name, "site": b.index, "stream": b.stream, "kind": b.kind,
         "value": b.measurements[name]}
        for b in report.blocks
        if name in b.measurements
    ]  # fmt: skip
    return (
        plot_over_depth(rows, title=title, y=unit, line_field="stream", max_lines=MAX_STREAMS)
        if rows
        else None
    )
