"""The loop that fits a model to rows."""

import math
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.models.base import WiredModule
from addnorm.models.tabular import TableBatch, TableConfig, TableModel, build_table_model
from addnorm.tabular.training.pretraining import Pretrained
from addnorm.tabular.training.targets import Target
from addnorm.train.callbacks import TrainCallback
from addnorm.train.ema import EMA
from addnorm.train.optimizers.base import make_optimizer
from addnorm.train.schedules.base import make_schedule

P = ParamSpec("P")
R = TypeVar("R")
CALIBRATION_ROWS = 256
"""Rows that a wiring measures at the start."""
MAX_GRADIENT_NORM = 1.0
"""Norm of the gradient at most."""
MAX_BATCH_ROWS = 1024
"""Rows that are answered at once, at most."""
MAX_BATCH_CELLS = 1 << 15
"""Cells of those at most, so that wide tables need no more memory than narrow ones."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How a fit goes."""

    optimizer: str
    lr: float
    weight_decay: float
    schedule: str
    batch_size: int
    max_epochs: int
    patience: int
    average: float
    max_seconds: float | None
    precision: str
    seed: int


class WeightedBatch(NamedTuple):
    """Rows, what is asked of them, and their weights."""

    cells: TableBatch
    targets: Tensor
    weights: Tensor

    def rows(self, index: Tensor) -> "WeightedBatch":
        """Some of the rows."""
        return WeightedBatch(
            self.cells.select_rows(index), self.targets[index], self.weights[index]
        )

    def subsample(self, max_rows: int) -> "WeightedBatch":
        """So many of the rows at most, spread over all: equal ones stand side by side."""
        rows = len(self.weights)
        return self.rows(torch.arange(min(max_rows, rows)) * rows // min(max_rows, rows))

    def to(self, device: torch.device) -> "WeightedBatch":
        """On a device, in float32."""
        return WeightedBatch(
            self.cells.to(device), self.targets.to(device), self.weights.float().to(device)
        )


History = list[dict[str, float]]
"""A row for each epoch: epoch, train, valid, lr, seconds."""


def build_model(
    config: TableConfig,
    rows: WeightedBatch,
    *,
    target: Target | None,
    seed: int,
    device: torch.device,
    pretrained: Pretrained | None = None,
) -> TableModel:
    """A model that is yet to learn, but knows its rows: bins of numbers, the bias of the head, what
    its wiring measures.

    target: None where none is learnt. before: what was learnt without one
    """
    model = build_table_model(config, seed=derive_seed(seed, "start"))
    model.tokens.fit_bins(rows.cells, rows.weights)
    if target is not None:
        with torch.no_grad():
            model.head.bias.copy_(target.initial_bias(rows.targets, rows.weights))
    if pretrained is not None:
        pretrained.load_into(model)
    model.to(device).calibrate_on(rows.subsample(CALIBRATION_ROWS).cells.to(device))
    return model


def fit_model(
    model: TableModel,
    train: WeightedBatch,
    valid: WeightedBatch | None,
    *,
    target: Target,
    config: TrainingConfig,
    reference: TableBatch,
    callback: TrainCallback | None = None,
) -> History:
    """Train the model in place; it ends with the averaged weights of its best epoch on what is held
    out, or of the last where nothing is.
    """

    def loss_of(part: WeightedBatch) -> tuple[Tensor, Tensor]:
        losses = target.loss(model(part.cells), part.targets)
        return (losses * part.weights).sum(), part.weights.sum()

    def judge() -> float:
        assert valid is not None
        outputs = predict(model, valid.cells, reference, precision=config.precision)
        losses = target.loss(outputs, valid.targets)
        return float((losses * valid.weights).sum() / valid.weights.sum())

    return train_epochs(
        model,
        train,
        compute_loss=loss_of,
        validate=None if valid is None else judge,
        config=config,
        callback=callback,
    )


def train_epochs(
    model: WiredModule,
    train: WeightedBatch,
    *,
    compute_loss: Callable[[WeightedBatch], tuple[Tensor, Tensor]],
    validate: Callable[[], float] | None,
    config: TrainingConfig,
    callback: TrainCallback | None = None,
) -> History:
    """Minimise a loss over weighted rows.

    loss_of: the weighted sum of the losses of some rows, and the sum of their weights
    judge: how bad the model is, at the end of an epoch
    """
    rows = len(train.weights)
    batches = max(1, math.ceil(rows / config.batch_size))
    steps = batches * config.max_epochs
    mean = float(train.weights.mean())
    optimizer = make_optimizer(
        config.optimizer, model, lr=config.lr, weight_decay=config.weight_decay
    )
    schedule, average = make_schedule(config.schedule), EMA(model, config.average)
    started, step, waited = time.monotonic(), 0, 0
    best, kept = math.inf, _clone_state(model)
    curve: History = []
    model.train()
    for epoch in range(1, config.max_epochs + 1):
        chance = torch.Generator().manual_seed(derive_seed(config.seed, "order", epoch))
        order = torch.randperm(rows, generator=chance).to(train.weights.device)
        total = torch.zeros(2, dtype=torch.float64, device=order.device)  # losses, weights
        for at in order.tensor_split(batches):
            step += 1
            spent = time.monotonic() - started
            share = 0.0 if config.max_seconds is None else min(1.0, spent / config.max_seconds)
            optimizer.set_lr(schedule.factor(max(step, math.ceil(share * steps)), steps))
            with _autocast(config.precision, order.device):
                loss, weight = compute_loss(train.rows(at))
            torch.autograd.backward(loss / (mean * len(at)))
            nn.utils.clip_grad_norm_(model.parameters(), MAX_GRADIENT_NORM)
            optimizer.step()
            optimizer.zero_grad()
            model.after_step()
            average.update(step)
            total += torch.stack((loss.detach(), weight)).double()
            if share >= 1:
                break
        spent = time.monotonic() - started
        row = {"epoch": epoch, "train": float(total[0] / total[1])}
        if not math.isfinite(row["train"]):
            if curve:
                warnings.warn(
                    f"the loss is not a finite number in epoch {epoch} at lr={config.lr}; the "
                    f"{'best' if validate else 'last'} epoch before it is kept",
                    RuntimeWarning,
                    stacklevel=2,
                )
            break
        with average.swapped_in():
            if validate is not None:
                model.eval()
                row["valid"] = validate()
                model.train()
            if validate is None or row["valid"] < best:
                best, kept, waited = row.get("valid", 0.0), _clone_state(model), 0
            else:
                waited += 1
        curve.append(row | {"lr": optimizer.optimizers[0].param_groups[0]["lr"], "seconds": spent})
        if callback is not None:
            callback.on_epoch_end(epoch, config.max_epochs, curve[-1])
        late = config.max_seconds is not None and spent >= config.max_seconds
        if late or (validate is not None and waited >= config.patience):
            break
    if not curve:
        raise UserError(
            f"the loss is not a finite number in the first epoch at lr={config.lr}; try a tenth of it"
        )
    model.load_state_dict(kept)
    model.eval()
    return curve


@torch.no_grad()
def predict(
    model: TableModel,
    cells: TableBatch,
    reference: TableBatch,
    *,
    precision: str = "float32",
    embeddings: bool = False,
) -> Tensor:
    """What the model says of rows, a few at a time; no row's answer depends on another row."""
    weight = model.head.weight
    many = max(1, min(MAX_BATCH_ROWS, MAX_BATCH_CELLS // (1 + model.config.features)))
    said = []
    with eval_mode(model), _autocast(precision, weight.device):
        memory = model.encode_reference(reference.to(weight.device, weight.dtype))
        for start in range(0, cells.num_rows, many):
            part = cells.select_rows(slice(start, start + many)).to(weight.device, weight.dtype)
            said.append(model.embed(part, memory) if embeddings else model(part, memory))
    return torch.cat(said)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def rollback_on_error(method: Callable[P, R]) -> Callable[P, R]:
    """A method that happens whole: if it fails or is interrupted, its object is as it was."""

    @wraps(method)
    def made(*args: P.args, **named: P.kwargs) -> R:
        own = args[0].__dict__
        before = dict(own)
        try:
            return method(*args, **named)
        except BaseException:
            own.clear()
            own.update(before)
            raise

    return made


@contextmanager
def torch_context(
    *, threads: int | None, seed: int | None = None, device: torch.device | None = None
) -> Iterator[None]:
    """So many threads, and the generators of the CPU and of the device seeded; all are afterwards
    as they were.
    """
    before = torch.get_num_threads()
    cuda = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # manual_seed would seed every device
            for each in cuda:
                with torch.cuda.device(each):
                    torch.cuda.manual_seed(seed)
        try:
            if threads is not None:
                torch.set_num_threads(threads)
            yield
        finally:
            torch.set_num_threads(before)


def _autocast(precision: str, device: torch.device) -> Any:
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")


def _clone_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
