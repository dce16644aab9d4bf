"""Diagnosis of the rows of a running or finished job, for `addnorm doctor FOLDER`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from addnorm.monitor import Sentence


def find_rows(target: str) -> Path | None:
    """Return the folder whose rows are to be diagnosed; None if the target is a model.

    It is a folder with `rows.jsonl`, or that file, without a model: the folder of a monitor, or of
    a run that has not written a checkpoint yet.
    """
    path = Path(target) if target else None
    if path is None:
        return None
    folder = path.parent if path.is_file() and path.name == "rows.jsonl" else path
    if not folder.is_dir():  # most targets; the imports below are slow
        return None
    from addnorm.monitor.watch_folder import is_watch_folder
    from addnorm.train.run_folder import has_checkpoint

    if not is_watch_folder(folder) or (path == folder and has_checkpoint(folder)):
        return None
    from addnorm.tabular.io.store import FILE

    return None if (folder / FILE).is_file() else folder


def diagnose_folder(folder: Path) -> "list[Sentence]":
    """Return the sentences about the rows of a folder and the findings stored beside them."""
    from addnorm.monitor import diagnose_findings, diagnose_rows
    from addnorm.monitor.watch_folder import read_facts, read_findings, read_watched_rows
    from addnorm.report.run_history import History

    facts = read_facts(folder)
    history = History.from_rows(read_watched_rows(folder))
    return [
        *diagnose_findings(read_findings(facts)),
        *diagnose_rows(history.rows, notes=facts.get("notes", ())),
    ]


def print_sentences(sentences: "list[Sentence]", folder: Path, *, json: bool) -> str | None:
    """Print sentences as text or JSON; return their highest severity."""
    from addnorm.cli.output import write_json
    from addnorm.doctor.report import SEVERITIES

    if json:
        write_json({"folder": str(folder), "sentences": [each.to_dict() for each in sentences]})
    else:
        lines = [f"{each.severity} {each.kind}: {each}" for each in sentences] or ["no findings"]
        sys.stdout.write("\n".join(lines) + "\n")
    found = {each.severity for each in sentences}
    return next((each for each in reversed(SEVERITIES) if each in found), None)
