"""What is exported: a model, the run of a text task, or a table estimator."""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from addnorm.core.errors import ExportRefusedError, UserError
from addnorm.data.tokenizer import Tokenizer
from addnorm.exporters.report import is_export
from addnorm.measure.sites import find_stacks, unwrap_model
from addnorm.models import Config, Model, load
from addnorm.models.base import CONFIG_FILE
from addnorm.models.tabular import TableModel
from addnorm.models.wrapped_folder import load_wrapped_model, read_hf_config
from addnorm.train.checkpoint import STATE_FILE
from addnorm.train.run_folder import ARRANGEMENT
from addnorm.train.trained_run import TrainedRun, load_run_model
from addnorm.wirings.admin import Admin

ESTIMATOR_FILE = "estimator.json"


@dataclass(frozen=True)
class ExportSource:
    """A model to export, in evaluation mode, in float32 or float64, on the CPU."""

    model: Model | TableModel
    run: TrainedRun | None = None
    """Run that the model comes from, with tokenizer, labels and recipe."""
    estimator: Any = None
    """Fitted estimator that a table model belongs to."""
    fit_config: Any = None
    """`FitConfig` of the estimator's run folder, if there is one."""
    notes: tuple[str, ...] = ()
    """What was changed before the export, such as the precision of the weights."""

    @property
    def text_model(self) -> Model:
        """The model, which is not one of an estimator."""
        assert isinstance(self.model, Model)
        return self.model

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of the run."""
        return None if self.run is None else self.run.tokenizer

    @property
    def kind(self) -> str:
        """Kind of the model, as in `Config`; `table` for an estimator."""
        return self.model.config.kind if isinstance(self.model, Model) else "table"

    @cached_property
    def wiring(self) -> str:
        """Wirings of the stacks as call strings, `encoder / decoder` if they differ."""
        calls = dict.fromkeys(str(stack.wiring_call) for stack in self.model.stacks)
        return " / ".join(calls)


def open_source(what: Any) -> ExportSource:
    """Return what `addnorm.export` was asked to export.

    Args:
        what: a model, a fitted estimator, or the folder of a run, of a saved model or of a fit

    Raises:
        UserError: something else, or a model without weights
        ExportRefusedError: a model that is not ready, such as one with Admin before calibration
    """
    if isinstance(what, str | Path):
        return _open_folder(Path(what))
    if isinstance(what, TrainedRun):
        return _from_run(what)
    if isinstance(getattr(what, "module_", None), nn.Module):
        return _from_estimator(what)
    model = unwrap_model(what) if isinstance(what, nn.Module) else what
    if isinstance(model, Model):
        prepared, notes = prepare_model(model)
        return ExportSource(prepared, notes=notes)
    got = type(model).__name__
    hint = (
        "export its attribute `model`"
        if isinstance(getattr(model, "model", None), Model)
        else ("build it with addnorm.build" if isinstance(model, nn.Module) else "fit it first")
    )
    raise UserError(
        f"expected a model of addnorm, a fitted estimator, or the folder of a run, got {got}; "
        f"{hint}"
    )


def _from_estimator(estimator: Any, config: Any = None) -> ExportSource:
    if not isinstance(estimator.module_, TableModel):
        raise ExportRefusedError(
            "expected an estimator with one network, got several; fit it with bagging=None to "
            "export it"
        )
    return ExportSource(prepare_model(estimator.module_)[0], None, estimator, config)


def _open_folder(folder: Path) -> ExportSource:
    if is_export(folder):
        raise UserError(
            f"{folder}: expected the folder of a run, of a saved model or of a fit, got an export; "
            "export the original again"
        )
    if (folder / ESTIMATOR_FILE).is_file():
        from addnorm.tabular.fit_run import CONFIG, open_run  # scikit-learn is optional

        if (folder / CONFIG).is_file():
            config, estimator = open_run(folder)
            return _from_estimator(estimator, config)
        from addnorm.tabular import load as load_estimator

        return open_source(load_estimator(folder))
    if (folder / ARRANGEMENT).is_file():
        return _from_run(TrainedRun.open(folder, device="cpu"))
    if (folder / STATE_FILE).is_file():
        return _from_run(_open_checkpoint(folder.resolve()))
    values = read_hf_config(folder)
    if values is not None and values["model_type"] == Config.model_type:
        return open_source(load_wrapped_model(folder, values))
    if values is not None:
        raise UserError(
            f"{folder}: expected a model of addnorm, got {values['model_type']!r} of transformers; "
            "load it with addnorm.load and export its attribute `model`"
        )
    if (folder / CONFIG_FILE).is_file():
        return open_source(load(folder))
    raise UserError(
        f"expected the folder of a run, of a saved model or of a fit, got {folder}"
        f"{'' if folder.is_dir() else ', which is no folder'}"
    )


def _open_checkpoint(folder: Path) -> TrainedRun:
    """Return the run of a checkpoint, `checkpoints/step-N`, with the weights of that checkpoint."""
    model = load_run_model(folder)
    run = TrainedRun.open(folder.parents[1], device="cpu")
    step = int(folder.name.removeprefix("step-"))
    return replace(run, model=model, step=step, is_best=True)


def _from_run(run: TrainedRun) -> ExportSource:
    model, notes = prepare_model(run.model)
    averaged = ("the weights are the run's moving average (ema)",) if run.recipe.ema else ()
    damaged = (
        ()
        if run.is_best
        else (f"the best checkpoint is damaged; step {run.step} is exported instead",)
    )
    return ExportSource(model, run, notes=(*damaged, *averaged, *notes))


def prepare_model(model: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a copy of a model in evaluation mode, float32 or float64, on the CPU, and notes.

    Raises:
        UserError: the model is on the meta device
        ExportRefusedError: it has weights that are not finite, or Admin before calibration
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    if any(tensor.is_meta for tensor in tensors.values()):
        raise UserError(
            "expected a model with weights to export, got one on the meta device; call "
            "to_empty(device=...) and load or initialize its weights first"
        )
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ExportRefusedError(
                f"{name}: expected finite weights, got NaN or infinity; the training diverged, "
                "export an earlier checkpoint"
            )
    for name, stack in find_stacks(model).items():
        for wiring in stack.wiring.modules():
            if isinstance(wiring, Admin) and not bool(wiring.calibrated):
                raise ExportRefusedError(
                    f"{name}: expected a calibrated Admin, got one whose omega was never set; "
                    "call model.calibrate(batch) or train the model"
                )
    prepared = copy.deepcopy(model).cpu().eval()
    dtypes = sorted({str(t.dtype).removeprefix("torch.") for t in model.parameters()})
    notes = []
    if set(dtypes) - {"float32", "float64"} or len(dtypes) > 1:
        prepared = prepared.float()
        notes.append(f"weights of {' and '.join(dtypes)} are written as float32")
    for stack in prepared.stacks:
        stack.recompute, stack.stream = False, None
    return prepared, tuple(notes)
