"""`--to hf`: Hugging Face folders, of a stock class of transformers where the model folds into one.

Every other arrangement is written as addnorm's own class, which needs the package to load.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from addnorm.core.errors import ExportRefusedError
from addnorm.data.tokenizer import END, START
from addnorm.decode.engine import InferenceEngine, length_limits
from addnorm.exporters.folding import fold
from addnorm.exporters.report import ExportReport, worst_grade
from addnorm.exporters.source import ExportSource
from addnorm.exporters.targets.base import (
    ExportOptions,
    ExportTarget,
    PreparedExport,
    penalty_notes,
)
from addnorm.exporters.transformers_engine import TransformersEngine, quiet_transformers
from addnorm.interop.stock.classes import MAX_LENGTH, STOCK_CLASSES, stock_kind
from addnorm.models import Config, Model
from addnorm.sublayers.positions import NoPositions, SinusoidalPositions

UNLIMITED = (NoPositions, SinusoidalPositions)
"""Positions that a stock class gets as a table of `MAX_LENGTH` rows."""
OWN_CLASS = "addnorm"
"""Value of --as for addnorm's own classes."""
AUTO_CLASSES = {
    "lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "seq2seq": "AutoModelForSeq2SeqLM",
    "classifier": "AutoModelForSequenceClassification",
    "token_classifier": "AutoModelForTokenClassification",
    "encoder": "AutoModel",
}
"""Classes that load a stock class, by the kind in `StockClass.classes`."""


@dataclass(frozen=True, kw_only=True)
class PreparedFolder(PreparedExport):
    """Model of transformers that is going to be written."""

    hf_model: Any


class HFTarget(ExportTarget):
    """Folder with `config.json`, `model.safetensors` and the files of a tokenizer."""

    name, title = "hf", "transformers"
    packages: ClassVar = ("transformers",)
    kinds: ClassVar = ("lm", "masked_lm", "seq2seq", "classifier")
    families: ClassVar = (*STOCK_CLASSES, OWN_CLASS)
    tokenizer_file = "addnorm_tokenizer.json"

    def prepare(self, source: ExportSource, options: ExportOptions) -> PreparedExport:
        from addnorm.interop.stock import to_stock  # transformers is optional
        from addnorm.interop.stock.widen import StockMismatchError

        if options.family == OWN_CLASS:
            return self._prepare_own(source, options, "")
        plain, notes = fold(source.text_model)
        try:
            stock = to_stock(
                plain,
                name=options.family,
                end=_end_token(source),
                labels=() if source.run is None else source.run.labels,
            )
        except StockMismatchError as error:
            if options.family is not None:
                raise ExportRefusedError(
                    f"--as {options.family}: {error}; leave --as out, or use --as {OWN_CLASS}"
                ) from None
            return self._prepare_own(source, options, str(error))
        folded = [note for note in notes if note.folded]
        class_name = type(stock.hf_model).__name__
        return PreparedFolder(
            model=stock.model,
            form=class_name,
            grade=worst_grade("exact", *(note.grade for note in folded)),
            notes=(*map(str, folded), *stock.notes, *penalty_notes(source, "generate")),
            settings=_settings(source, class_name, _stock_lengths(plain)),
            options=options,
            hf_model=stock.hf_model,
        )

    def _prepare_own(
        self, source: ExportSource, options: ExportOptions, reason: str
    ) -> PreparedExport:
        from addnorm.interop import run_to_hf, to_hf  # transformers is optional

        model = source.text_model
        hf_model: Any = to_hf(model) if source.run is None else run_to_hf(source.run)
        class_name = type(hf_model).__name__
        notes = [reason] if reason else []
        notes.append(f"{class_name} loads where addnorm is installed, after import addnorm.interop")
        return PreparedFolder(
            model=model,
            form=class_name,
            notes=(*notes, *penalty_notes(source, "generate")),
            settings=_settings(source, hf_model.auto_class, length_limits(model)),
            options=options,
            hf_model=hf_model.eval(),
        )

    def write(self, prepared: PreparedExport, source: ExportSource, folder: Path) -> None:
        assert isinstance(prepared, PreparedFolder)
        hf_model = prepared.hf_model
        if hf_model.config.model_type == OWN_CLASS:
            from addnorm.interop import save_hf  # transformers is optional

            with quiet_transformers():
                save_hf(source.text_model if source.run is None else source.run, folder)
            return
        # Marian leaves out its positions, which are not the ones it would compute.
        hf_model._keys_to_ignore_on_save = None
        with quiet_transformers():
            hf_model.save_pretrained(str(folder))
        if source.tokenizer is not None:
            from addnorm.interop import to_hf_tokenizer  # transformers is optional

            lengths = [length for length in prepared.settings["max_lengths"] if length is not None]
            tokenizer = to_hf_tokenizer(
                source.tokenizer, source.kind, max_length=min(lengths, default=None)
            )
            tokenizer.save_pretrained(str(folder))
        self._write_card(prepared, source, folder)

    def _write_card(self, prepared: PreparedFolder, source: ExportSource, folder: Path) -> None:
        from addnorm.interop.auto.convert import collect_facts  # transformers is optional
        from addnorm.interop.auto.folder import write_card

        model = source.text_model
        written: dict[str, Any] = {
            "class": prepared.form,
            "model_type": prepared.hf_model.config.model_type,
            "wiring": prepared.model.stacks[-1].wiring_call,
            **{f"note {number}": note for number, note in enumerate(prepared.notes, 1)},
        }
        write_card(
            model,
            folder,
            AUTO_CLASSES[stock_kind(model.config)],
            {"Written as": written} | ({} if source.run is None else collect_facts(source.run)),
            stock_class=prepared.form,
        )

    def open(self, folder: Path, report: ExportReport) -> InferenceEngine:
        settings = report.settings
        return TransformersEngine(
            folder,
            Config.from_dict(settings["config"]),
            settings["class_name"],
            settings["max_lengths"],
        )


def _settings(
    source: ExportSource, class_name: str, lengths: Sequence[int | None]
) -> dict[str, Any]:
    config = source.text_model.config.to_dict()
    return {"config": config, "class_name": class_name, "max_lengths": list(lengths)}


def _stock_lengths(plain: Model) -> list[int | None]:
    """Return the most tokens of source and target: the rows of the tables of positions."""
    lengths = [
        length or (MAX_LENGTH if isinstance(stack.positions, UNLIMITED) else None)
        for length, stack in zip(
            length_limits(plain), (plain.stacks[0], plain.stacks[-1]), strict=True
        )
    ]
    known = [length for length in lengths if length is not None]
    return [min(known, default=None)] * 2


def _end_token(source: ExportSource) -> int:
    return START if source.run is not None and source.run.task == "lm" else END
