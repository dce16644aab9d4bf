"""Comparison of an exported model with the original."""

import math
from pathlib import Path
from typing import Any

import torch

from addnorm.core.errors import ExportMismatchError
from addnorm.decode.batching import decode
from addnorm.decode.engine import InferenceEngine
from addnorm.decode.options import DecodingOptions
from addnorm.exporters.inputs import HeldOutInputs
from addnorm.exporters.report import Proof
from addnorm.exporters.source import ExportSource
from addnorm.exporters.targets.base import ExportTarget, PreparedExport
from addnorm.models import Model
from addnorm.tasks.base import RunProtocol, get_run_task
from addnorm.tasks.evaluation import evaluate

BEAM_OPTIONS = DecodingOptions(beam=5)
"""Beam search of the proof, that of `addnorm translate`."""


def verify_engine(
    target: ExportTarget,
    prepared: PreparedExport,
    engine: InferenceEngine,
    original: Model,
    inputs: HeldOutInputs,
) -> Proof:
    """Run both models on held-out inputs.

    Args:
        target: target of the export
        prepared: what was written
        engine: the exported model, opened again
        original: the model before folding
        inputs: inputs of the comparison

    Raises:
        ExportMismatchError: the outputs differ by more than the tolerance
    """
    error, largest = 0.0, 0.0
    same = total = 0
    for batch in inputs.batches:
        with torch.inference_mode():
            expected = target.outputs(original, batch).double()
            got = target.outputs(engine, batch).double()
        if got.shape != expected.shape:
            raise ExportMismatchError(
                f"{target.title}: expected outputs of shape {tuple(expected.shape)}, got "
                f"{tuple(got.shape)}; nothing was written"
            )
        # NaN must not pass a comparison of maxima.
        difference = (got - expected).abs().nan_to_num(math.inf)
        error = max(error, float(difference.max()) if difference.numel() else 0.0)
        largest = max(largest, float(expected.abs().max()) if expected.numel() else 0.0)
        if original.config.kind == "classifier" and original.config.classes:
            same += int((got.argmax(-1) == expected.argmax(-1)).sum())
            total += expected.shape[0]
    tolerance = prepared.options.tolerance
    tolerance = target.tolerance(prepared, largest) if tolerance is None else tolerance
    check_error(target, error, tolerance, inputs.description)
    greedy = count_identical(original, engine, inputs, DecodingOptions())
    beam = count_identical(original, engine, inputs, BEAM_OPTIONS)
    return Proof(
        inputs=inputs.description,
        sequences=inputs.num_sequences,
        max_error=error,
        tolerance=tolerance,
        greedy=greedy,
        beam=beam,
        labels=(same, total) if total else None,
    )


def verify_table(
    target: ExportTarget,
    prepared: PreparedExport,
    source: ExportSource,
    exported: Any,
    folder: Path,
) -> Proof:
    """Compare the outputs of an exported estimator with those of the original.

    Args:
        target: target of the export
        prepared: what was written
        source: the original
        exported: the exported estimator, opened again
        folder: the exported folder

    Raises:
        ExportMismatchError: the outputs differ by more than the tolerance
    """
    from addnorm.exporters.tables import collect_rows, compare_rows  # scikit-learn is optional

    description, cells = collect_rows(source)
    error, largest, labels = compare_rows(source, exported.module_, cells)
    error = max(error, target.compare_columns(folder, source))
    tolerance = prepared.options.tolerance
    tolerance = target.tolerance(prepared, largest) if tolerance is None else tolerance
    check_error(target, error, tolerance, description)
    return Proof(
        inputs=description,
        sequences=cells.num_rows,
        max_error=error,
        tolerance=tolerance,
        labels=labels,
    )


def measure_scores(run: RunProtocol, exported: RunProtocol) -> dict[str, tuple[float, float]]:
    """Return the metrics of two runs on the validation data, by name; none without such data."""
    task = get_run_task(run)
    if not Path(run.recipe.data).exists():
        return {}
    before, after = (
        evaluate(each, "valid", options=task.comparison_options) for each in (run, exported)
    )
    names = [task.primary_score.name, *(name for name in ("bleu",) if name in before)]
    return {name: (float(before[name]), float(after[name])) for name in names}


def check_error(target: ExportTarget, error: float, tolerance: float, description: str) -> None:
    """Raise `ExportMismatchError` if an error exceeds the tolerance or is not a number."""
    if not error <= tolerance:
        raise ExportMismatchError(
            f"{target.title}: expected outputs within {tolerance:.2g} of the original on "
            f"{description}, got a difference of {error:.2g}; nothing was written"
        )


def count_identical(
    original: Model, engine: InferenceEngine, inputs: HeldOutInputs, options: DecodingOptions
) -> tuple[int, int] | None:
    """Return how many sentences both models decode to the same tokens, of how many."""
    if not inputs.sentences:
        return None
    expected = decode(original, inputs.sentences, options, end=inputs.end)
    got = decode(engine, inputs.sentences, options, end=inputs.end)
    pairs = zip(expected, got, strict=True)
    same = sum(ours[0].tokens == theirs[0].tokens for ours, theirs in pairs)
    return same, len(inputs.sentences)
