"""Files of a watched folder: `rows.jsonl`, and `monitor.json` with the facts about the model."""

from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from addnorm.core.errors import UserError
from addnorm.core.files import read_json, write_json
from addnorm.core.rows import Row, read_rows
from addnorm.doctor.report import Finding
from addnorm.monitor.preparation import PreparedSites
from addnorm.monitor.sinks import ROWS_FILE

FACTS_FILE = "monitor.json"


def write_facts(folder: Path, model: nn.Module, prepared: PreparedSites) -> None:
    """Write `monitor.json`: model, sites, findings of the doctor, notes."""
    sites = [
        {**site.to_fields(), "wiring": site.wiring, "tags": list(site.tags)}
        for site in prepared.plan.sites
    ]
    facts = {
        "model": type(model).__name__,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "trained": sum(weight.numel() for weight in model.parameters() if weight.requires_grad),
        "sites": sites,
        "findings": [asdict(finding) | {"evidence": finding.evidence_text()}
                     for finding in prepared.findings],
        "notes": list(prepared.plan.notes),
        "versions": {"torch": version("torch")},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FACTS_FILE, facts)


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the content of `monitor.json`; empty if there is none."""
    facts = read_json(folder / FACTS_FILE, hint="delete it, or run the training again")
    if facts is None:
        return {}
    if not isinstance(facts, dict):
        raise UserError(
            f"{folder / FACTS_FILE}: expected a JSON object, got {type(facts).__name__}"
        )
    return facts


def read_findings(facts: dict[str, Any]) -> list[Finding]:
    """Return the findings that `monitor.json` stores; their evidence is text."""
    return [
        Finding(
            str(each.get("rule", "")),
            each.get("severity", "info"),
            str(each.get("path", "")),
            str(each.get("message", "")),
        )
        for each in facts.get("findings", ())
        if isinstance(each, dict)
    ]


def is_watch_folder(folder: Path) -> bool:
    """Return whether a folder holds the rows of a monitor."""
    return (folder / ROWS_FILE).is_file()


def read_watched_rows(folder: Path) -> list[Row]:
    """Return the rows of a watched folder, in the order in which they were written."""
    return list(read_rows(folder / ROWS_FILE))
