"""The page of a monitored training loop: diagnosis, losses, metrics of its sites, the model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from addnorm.monitor.diagnosis.diagnose import diagnose_findings, diagnose_rows
from addnorm.monitor.diagnosis.sentence import Sentence
from addnorm.monitor.watch_folder import read_facts, read_findings, read_watched_rows
from addnorm.report.html.page import Facts, Note, Part, Section, Table, render_page, write_page
from addnorm.report.metric_sections import METRIC_SECTIONS
from addnorm.report.run_history import History
from addnorm.report.run_page import (
    PAGE_FILE,
    build_loss_section,
    build_metric_section,
    build_other_sections,
    build_source_section,
    build_speed_section,
    list_warnings,
    summarize_numbers,
)

SITE_COLUMNS = ("site", "path", "kind", "wiring", "layer", "stream")


def write_watch_report(folder: Path) -> Path:
    """Write `report.html` into a folder with the rows of an `addnorm.Monitor`."""
    folder = Path(folder)
    facts = read_facts(folder)
    history = History.from_rows(read_watched_rows(folder))
    sentences = diagnose_findings(read_findings(facts))
    sentences += diagnose_rows(history.rows, notes=facts.get("notes", ()))
    return write_page(folder / PAGE_FILE, render_watch_page(folder, facts, sentences, history))


def render_watch_page(
    folder: Path, facts: Mapping[str, Any], sentences: Sequence[Sentence], history: History
) -> str:
    """Return the page of a monitored training loop as HTML.

    Args:
        folder: folder of the rows, which the page names
        facts: content of `monitor.json`; empty if there is none
        sentences: the diagnosis
        history: the rows
    """
    events = history.events()
    metrics = (build_metric_section(section, history, events) for section in METRIC_SECTIONS)
    return render_page(
        f"{facts.get('model') or 'Model'}, monitored",
        about=f"Folder: {folder.resolve()}",
        key_numbers=summarize_numbers(history, events),
        warnings=list(list_warnings({}, history, events)),
        sections=[
            build_diagnosis_section(sentences),
            build_loss_section({}, history, events),
            *([build_speed_section(history)] if history.points("lr") else []),
            *(section for section in metrics if section.parts),
            *build_other_sections(history),
            build_watch_section(facts),
            build_source_section({}, {}, history),
        ],
    )


def build_watch_section(facts: Mapping[str, Any]) -> Section:
    """Return the section on the model that was monitored, from `monitor.json`."""
    if not facts:
        return Section("Model", [Note("The folder has rows and no monitor.json.")])
    values = {
        "model": facts.get("model"),
        "parameters": f"{facts.get('parameters', 0):,}",
        "trained parameters": f"{facts.get('trained', 0):,}",
        "sites": len(facts.get("sites", ())),
    }
    rows = [
        (
            site.get("site"),
            str(site.get("label", "")).partition(": ")[0] or site.get("path") or "the model itself",
            site.get("kind"),
            " ".join([str(site.get("wiring")), *site.get("tags", ())]),
            site.get("layer"),
            str(site.get("stack", "")).removeprefix("stream "),
        )
        for site in facts.get("sites", ())
    ]
    parts: list[Part] = [Facts("Model", values)]
    parts += [Note(f"Not measured: {note}.") for note in facts.get("notes", ())]
    if rows:
        parts.append(Table("Residual sites", SITE_COLUMNS, rows, tall=len(rows) > 12))
    return Section("Model", parts)


def build_diagnosis_section(sentences: Sequence[Sentence]) -> Section:
    """Return the section with the sentences of the diagnosis."""
    note = (
        "Facts, changes against the run's own past, and published associations whose condition "
        "holds. None of them is a prediction or a cause."
    )
    if not sentences:
        return Section("Diagnosis", [Note("Nothing was found.")])
    rows = [
        ("" if each.step is None else f"{each.step:,}", each.kind, str(each)) for each in sentences
    ]
    return Section(
        "Diagnosis", [Table("Sentences", ("step", "kind", "sentence"), rows, wide=True)], note
    )
