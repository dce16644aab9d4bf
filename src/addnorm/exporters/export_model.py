"""Export of a model or run: prepare, write, reopen, compare, then keep the folder."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import create_folder
from addnorm.core.validation import check_path
from addnorm.exporters.exported_run import ExportedRun
from addnorm.exporters.inputs import collect_inputs
from addnorm.exporters.report import ExportReport, Proof
from addnorm.exporters.source import ExportSource, open_source
from addnorm.exporters.targets import get_target
from addnorm.exporters.targets.base import ExportOptions, ExportTarget, PreparedExport
from addnorm.exporters.verify import measure_scores, verify_engine, verify_table
from addnorm.models import Model
from addnorm.train.environment import collect_versions

MIN_FREE_BYTES = 1 << 20
"""Free space below which a failed write counts as a full disk."""


def export(
    what: Any,
    *,
    to: str,
    out: str | Path,
    quantize: str | None = None,
    family: str | None = None,
    tolerance: float | None = None,
) -> ExportReport:
    """Export a model for an inference engine, and prove that it computes the same.

    The files are written to a temporary folder, opened again by the engine, and compared with the
    original on held-out inputs: the validation data of the run, or random inputs without any. Only
    then the folder is moved to `out`.

    Args:
        what: a model, a fitted estimator, or the folder of a run, of a saved model or of a fit
        to: name of the target, such as "onnx"; see `addnorm export --help`
        out: new or empty folder
        quantize: number format of the weights, such as "int8", for targets that have one
        family: class of model to write, such as "llama", for targets with several
        tolerance: largest accepted difference of logits; that of the target if None

    Raises:
        ExportRefusedError: the target cannot express the model
        ExportMismatchError: the exported model differs by more than the tolerance
        UserError: unknown target or option, missing package, or a folder that is not empty
    """
    check_path("out", out)
    target, folder = get_target(to), Path(out)
    _check_folder(folder)
    options = ExportOptions(quantize=quantize, family=family, tolerance=tolerance)
    source = open_source(what)
    target.check(source, options)
    prepared = target.prepare(source, options)
    with create_folder(folder) as temporary:
        with _disk_errors(temporary):
            target.write(prepared, source, temporary)
            if source.tokenizer is not None:
                source.tokenizer.save(temporary / target.tokenizer_file)
        report = _describe(target, prepared, source)
        report = replace(report, proof=_prove(target, prepared, source, report, temporary))
        report.write(temporary)
    return replace(report, folder=folder)


def _describe(target: ExportTarget, prepared: PreparedExport, source: ExportSource) -> ExportReport:
    """Return the report of an export that was not compared yet."""
    run = source.run
    return ExportReport(
        target=target.name,
        grade=prepared.grade,
        form=prepared.form,
        arrangement=source.wiring,
        kind=source.kind,
        notes=(*source.notes, *prepared.notes),
        proof=Proof(inputs="", sequences=0, max_error=0.0, tolerance=0.0),
        task=None if run is None else run.task,
        labels=() if run is None else run.labels,
        recipe={}
        if run is None
        else {
            "data": run.recipe.data,
            "max_length": run.recipe.max_length,
            "batch_tokens": run.recipe.batch_tokens,
            "task_options": run.recipe.task_options,
        },
        config=source.model.config.model_dump(exclude_defaults=True),
        settings=prepared.settings,
        versions=collect_versions() | target.versions(),
    )


def _prove(
    target: ExportTarget,
    prepared: PreparedExport,
    source: ExportSource,
    report: ExportReport,
    folder: Path,
) -> Proof:
    if not isinstance(source.model, Model):
        return verify_table(target, prepared, source, target.open_table(folder, report), folder)
    engine = target.open(folder, report)
    proof = verify_engine(target, prepared, engine, source.model, collect_inputs(source))
    if prepared.grade == "approximate" and source.run is not None:
        exported = ExportedRun(folder, report, engine, source.run.tokenizer)
        proof = replace(proof, scores=measure_scores(source.run, exported))
    return proof


def _check_folder(folder: Path) -> None:
    """Raise `UserError` unless a folder is new or empty."""
    if folder.is_dir():
        if any(folder.iterdir()):
            raise UserError(
                f"-o: expected a new or empty folder, got {folder}, which contains files; choose "
                "another name"
            )
    elif folder.exists() or folder.is_symlink():
        raise UserError(f"-o: expected a folder, got {folder}, which is a file")


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    """Turn errors of libraries that hide a full disk into `OSError`, and name the folder."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(folder.parent)) from None
    except Exception:
        if shutil.disk_usage(folder).free < MIN_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder.parent)) from None
        raise
