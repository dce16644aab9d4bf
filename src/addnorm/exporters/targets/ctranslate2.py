"""`--to ctranslate2`: models for CTranslate2, with int8 weights on request."""

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from addnorm.core.errors import ExportRefusedError
from addnorm.data.tokenizer import END, START, Tokenizer
from addnorm.decode.engine import InferenceEngine
from addnorm.exporters.ctranslate2.engine import CTranslate2Engine
from addnorm.exporters.ctranslate2.norms import NormWriter
from addnorm.exporters.ctranslate2.spec import build_spec, count_positions
from addnorm.exporters.ctranslate2.write import FULL_INT8, QUANTIZATIONS, SAFE_INT8, write_spec
from addnorm.exporters.folding import fold
from addnorm.exporters.inputs import ModelInputs
from addnorm.exporters.report import ExportReport, Grade, worst_grade
from addnorm.exporters.source import ExportSource
from addnorm.exporters.targets.base import (
    ExportOptions,
    ExportTarget,
    PreparedExport,
    penalty_notes,
)
from addnorm.models import Config, Model

FULL_RANGE = "int8_full"
"""Value of --quantize for int8 weights that use all 8 bits."""
APPROXIMATE_TOLERANCE = {"bfloat16": 0.05, "float16": 0.01}
"""Accepted difference by number format, per unit of the largest output; 0.1 for the others."""


class CTranslate2Target(ExportTarget):
    """Folder with `model.bin`, `config.json` and the vocabulary."""

    name, title = "ctranslate2", "CTranslate2"
    packages: ClassVar = ("ctranslate2",)
    kinds: ClassVar = ("lm", "masked_lm", "seq2seq", "classifier")
    quantizations: ClassVar = (*QUANTIZATIONS, FULL_RANGE)

    def prepare(self, source: ExportSource, options: ExportOptions) -> PreparedExport:
        plain, notes = fold(source.text_model)
        try:
            build_spec(plain, _token_names(source))
        except ExportRefusedError as error:
            kept = next((note for note in notes if not note.folded), None)
            if kept is None or kept.site not in str(error):
                raise
            has = "has one" if kept.text.endswith("streams") else "cannot express it"
            raise ExportRefusedError(f"{kept}; CTranslate2 {has}; use --to onnx") from None
        has_stand_ins = NormWriter.from_model(plain).has_stand_ins
        grades: list[Grade] = [note.grade for note in notes if note.folded]
        grades += ["rounding"] if has_stand_ins else []
        remarks = [str(note) for note in notes if note.folded]
        if has_stand_ins:
            remarks.append("sites without a norm have stand-ins, equal up to float32 rounding")
        if options.quantize not in (None, "float32"):
            grades.append("approximate")
        lengths = count_positions(plain)
        longest = [length for length in lengths if length is not None]
        remarks += penalty_notes(source, "CTranslate2")
        if longest:
            remarks.append(f"positions are stored up to a length of {min(longest)}")
        return PreparedExport(
            model=plain,
            form=str(plain.stacks[-1].wiring_call),
            grade=worst_grade("exact", *grades),
            notes=tuple(remarks),
            settings={
                "config": plain.config.to_dict(),
                "max_lengths": lengths,
                "stored_type": _stored_type(options),
            },
            options=options,
        )

    def write(self, prepared: PreparedExport, source: ExportSource, folder: Path) -> None:
        assert isinstance(prepared.model, Model)
        spec = build_spec(
            prepared.model,
            _token_names(source),
            add_source_end=source.run is not None,
            end=START if source.run is not None and source.run.task == "lm" else END,
        )
        is_full = prepared.options.quantize == FULL_RANGE
        write_spec(
            spec,
            prepared.model,
            folder,
            quantize=_stored_type(prepared.options),
            int8_range=FULL_INT8 if is_full else SAFE_INT8,
        )

    def open(self, folder: Path, report: ExportReport) -> InferenceEngine:
        settings = report.settings
        return CTranslate2Engine(
            folder,
            Config.from_dict(settings["config"]),
            settings["max_lengths"],
            stored_type=settings["stored_type"],
        )

    def outputs(self, model: Model | InferenceEngine, inputs: ModelInputs) -> Tensor:
        """Return logits, or log-probabilities of the target tokens of a pair."""
        if len(inputs.args) == 1:
            return super().outputs(model, inputs)
        source, target = inputs.args
        source_mask, target_mask = (_mask(inputs, name) for name in ("source", "target"))
        rows = [row[valid].tolist() for row, valid in zip(target, target_mask, strict=True)]
        # The engine starts with START itself, and scores the end token, too.
        targets = [[*row[1:], END] for row in rows]
        if isinstance(model, CTranslate2Engine):
            sources = [row[valid].tolist() for row, valid in zip(source, source_mask, strict=True)]
            return torch.cat(model.score_targets(sources, targets))
        target = torch.cat((torch.full_like(target[:, :1], START), target[:, 1:]), 1)
        logits: Any = model(source, target, source_mask=source_mask, target_mask=target_mask)
        scores = logits.log_softmax(-1)
        return torch.cat(
            [
                scores[index, : len(row)].gather(-1, torch.tensor(row)[:, None])[:, 0]
                for index, row in enumerate(targets)
            ]
        )

    def tolerance(self, prepared: PreparedExport, largest: float) -> float:
        if prepared.options.quantize in (None, "float32"):
            return super().tolerance(prepared, largest)
        share = APPROXIMATE_TOLERANCE.get(str(prepared.options.quantize), 0.1)
        return share * max(1.0, largest)


def _stored_type(options: ExportOptions) -> str:
    return "int8" if options.quantize == FULL_RANGE else options.quantize or "float32"


def _mask(inputs: ModelInputs, side: str) -> Tensor:
    """Return the mask of source or target, True at valid tokens."""
    mask = inputs.kwargs.get(f"{side}_mask")
    tokens = inputs.args[side == "target"]
    return torch.ones_like(tokens, dtype=torch.bool) if mask is None else mask


def _token_names(source: ExportSource) -> list[str] | None:
    tokenizer: Tokenizer | None = source.tokenizer
    if tokenizer is None:
        return None
    return [str(tokenizer.engine.id_to_token(index)) for index in range(tokenizer.vocab)]
