"""The page of the doctor: findings, wiring, per-block metrics and stress test of a model."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from addnorm.doctor.report import Report
from addnorm.report.charts.sites import plot_over_depth
from addnorm.report.diagram.doctor import doctor_diagram
from addnorm.report.format import format_number
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
    "stream_variance": ("Stream variance", "variance"),
    "dependency": ("Residual dependency", "Var[f] / Var[x + f]"),
    "gradient_norm": ("Gradient norm at the add", "gradient norm"),
    "token_similarity": ("Token similarity", "mean cosine similarity"),
}
"""Title of the chart and of its value axis, by metric."""
MAX_STREAMS = 12
"""Maximum number of streams in a chart."""
METRIC_COLUMNS = ("shortcut_variance", "branch_variance", "dependency", "gradient_norm")
NO_PATH = "-"
"""Table entry for the root module and for operations outside of any module."""
DIGITS = 3


def write_doctor_page(report: Report, path: str | Path) -> Path:
    """Write the page of a report and return its path."""
    return write_page(Path(path), render_doctor_page(report))


def render_doctor_page(report: Report) -> str:
    """Return the page of a report as HTML."""
    counts = {
        level: sum(f.severity == level for f in report.findings) for level in ("error", "warning")
    }
    return render_page(
        f"Diagnosis of {report.model}",
        about="; ".join(report.stacks) or "No residual adds were found.",
        key_numbers={
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
    yield Section("Findings", [_findings(report)])
    if report.blocks:
        yield Section(
            "Wiring",
            [
                Figure(
                    "Typical layer of each stream",
                    doctor_diagram(report, theme="light"),
                    doctor_diagram(report, theme="dark"),
                ),
                Facts("Arrangement", _facts(report)),
            ],
            about="Reconstructed from the recorded forward pass, independent of module names.",
        )
        yield Section("Residual adds", [_blocks(report)])
        metrics = [
            *(_metric_chart(report, name) for name in METRIC_TITLES),
            _gradients_by_role(report),
            _saturation(report),
            _stream_metrics_table(report),
        ]
        yield Section(
            "Metrics",
            [part for part in metrics if part is not None],
            about="Measured in one forward and backward pass. These values help to explain "
            "findings; only a stress test shows whether the model trains.",
        )
    if report.stress:
        yield Section(
            "Stress test",
            list(_stress(report)),
            about="Short training runs at several learning rates and warm-ups.",
        )
    if report.norms:
        yield Section("Norms", [_norms(report)])
    yield Section("Raw data", [CollapsibleText("Report as JSON", report.to_json())])


def _facts(report: Report) -> Mapping[str, Any]:
    facts: dict[str, Any] = {"closest arrangement": report.closest()}
    for number, line in enumerate(report.stacks):
        facts[f"stream {number}"] = line
    for number, line in enumerate(report.odd):
        facts[f"outlier {number + 1}"] = line
    for number, line in enumerate(report.notes):
        facts[f"limitation {number + 1}"] = line
    return facts


def _findings(report: Report) -> Part:
    if not report.findings:
        return Note("No problems were found.")
    head = ("severity", "rule", "module", "finding", "evidence")
    rows = [
        (f.severity, f.rule, f.path or NO_PATH, f.message, f.evidence_text())
        for f in report.findings
    ]
    return Table("", head, rows, wide=True, stacked=True)


def _blocks(report: Report) -> Table:
    metrics = [name.replace("_", " ") for name in METRIC_COLUMNS]
    head = ("block", "add", "branch", "kind", "wiring", "tags", *metrics)
    rows = [
        (
            str(b.index), b.path or NO_PATH, b.branch or NO_PATH, " + ".join(b.branches),
            b.wiring, " ".join(b.tags),
            *(format_number(b.measurements.get(name), digits=DIGITS) for name in METRIC_COLUMNS),
        )
        for b in report.blocks
    ]  # fmt: skip
    return Table("In the order of execution", head, rows, wide=True, stacked=True)


def _norms(report: Report) -> Table:
    rows = [
        (n.path or NO_PATH, n.kind, n.place, "" if n.eps is None else f"{n.eps:g}",
         "hand-written" if n.by_hand else "library", "" if n.block is None else str(n.block))
        for n in report.norms
    ]  # fmt: skip
    head = ("module", "kind", "position", "eps", "implementation", "block")
    return Table("In the order of execution", head, rows, wide=True, stacked=True)


def _stress(report: Report) -> Iterator[Part]:
    yield Table("Runs", *report.stress_table(), wide=True, stacked=True)
    yield from (Note(f"{line[0].upper()}{line[1:]}.") for line in report.sensitivities())


def _gradients_by_role(report: Report) -> Part | None:
    """Return gradient norms by weight role: over all blocks, of the first, and of the last one."""
    per_block: dict[str, list[float]] = {}
    overall: dict[str, float] = {}
    for row in report.rows:
        if row["measure"] == "role_gradient_norm":
            if "site" in row:
                per_block.setdefault(row["role"], []).append(row["value"])
            else:
                overall[row["role"]] = row["value"]
    rows = [
        (role, *(format_number(v, digits=DIGITS) for v in (overall[role], values[0], values[-1])))
        for role, values in per_block.items()
    ]
    head = ("role of the weight", "all blocks", "first block", "last block")
    return Table("Gradient norm by weight role", head, rows) if rows else None


def _saturation(report: Report) -> Part | None:
    rows = [
        (row["path"] or NO_PATH, f"{100 * row['value']:.1f} %")
        for row in report.rows
        if row["measure"] == "saturation"
    ]
    title = "Saturated values: slope of the squashing function below a tenth of its maximum"
    return Table(title, ("module", "fraction"), rows) if rows else None


def _stream_metrics_table(report: Report) -> Part | None:
    rows = [
        (location, name, format_number(value, digits=DIGITS))
        for location, name, value in report.stream_statistics()
    ]
    title = "Streams and attention modules"
    return Table(title, ("stream or module", "metric", "value"), rows, wide=True) if rows else None


def _metric_chart(report: Report, name: str) -> Part | None:
    title, axis_title = METRIC_TITLES[name]
    rows = [
        {"measure": name, "site": b.index, "stream": b.stream, "kind": b.kind,
         "value": b.measurements[name]}
        for b in report.blocks
        if name in b.measurements
    ]  # fmt: skip
    if not rows:
        return None
    return plot_over_depth(
        rows, title=title, y=axis_title, x="block", line_field="stream", max_lines=MAX_STREAMS
    )
