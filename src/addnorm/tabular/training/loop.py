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
from addnorm.models.base import Wired
from addnorm.models.tabular import Cells, TableConfig, TableModel, build_table_model
from addnorm.tabular.training.pretraining import Pretrained
from addnorm.tabular.training.targets import Target
from addnorm.train.ema import Average
from addnorm.train.optimizers.base import make_optimizer
from addnorm.train.schedules.base import make_schedule

P = ParamSpec("P")
R = TypeVar("R")
FIRST = 256
"""Rows that a wiring measures at the start."""
CLIP = 1.0
"""Norm of the gradient at most."""
AT_ONCE = 1024
"""Rows that are answered at once, at most."""
CELLS_AT_ONCE = 1 << 15
"""Cells of those at most, so that wide tables need no more memory than narrow ones."""


@dataclass(frozen=True, kw_only=True)
class Training:
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


class Sample(NamedTuple):
    """Rows, what is asked of them, and their weights."""

    cells: Cells
    asked: Tensor
    weights: Tensor

    def rows(self, index: Tensor) -> "Sample":
        """Some of the rows."""
        return Sample(self.cells.rows(index), self.asked[index], self.weights[index])

    def some(self, many: int) -> "Sample":
        """So many of the rows at most, spread over all: equal ones stand side by side."""
        rows = len(self.weights)
        return self.rows(torch.arange(min(many, rows)) * rows // min(many, rows))

    def to(self, device: torch.device) -> "Sample":
        """On a device, in float32."""
        return Sample(self.cells.to(device), self.asked.to(device), self.weights.float().to(device))


Curve = list[dict[str, float]]
"""A row for each epoch: epoch, train, valid, lr, seconds."""
Watch = Callable[[int, int, dict[str, float]], None]
"""Told the epoch, how many there will be, and the row of the epoch."""


def begun(
    config: TableConfig,
    rows: Sample,
    *,
    target: Target | None,
    seed: int,
    device: torch.device,
    before: Pretrained | None = None,
) -> TableModel:
    """A model that is yet to learn, but knows its rows: bins of numbers, the bias of the head, what
    its wiring measures.

    target: None where none is learnt. before: what was learnt without one
    """
    model = build_table_model(config, seed=derive_seed(seed, "start"))
    model.tokens.learn(rows.cells, rows.weights)
    if target is not None:
        with torch.no_grad():
            model.head.bias.copy_(target.start(rows.asked, rows.weights))
    if before is not None:
        before.give(model)
    model.to(device).start_from(rows.some(FIRST).cells.to(device))
    return model


def fit_model(
    model: TableModel,
    train: Sample,
    held: Sample | None,
    *,
    target: Target,
    how: Training,
    reference: Cells,
    watch: Watch | None = None,
) -> Curve:
    """Train the model in place; it ends with the averaged weights of its best epoch on what is held
    out, or of the last where nothing is.
    """

    def loss_of(part: Sample) -> tuple[Tensor, Tensor]:
        losses = target.loss(model(part.cells), part.asked)
        return (losses * part.weights).sum(), part.weights.sum()

    def judge() -> float:
        assert held is not None
        outputs = answers(model, held.cells, reference, precision=how.precision)
        losses = target.loss(outputs, held.asked)
        return float((losses * held.weights).sum() / held.weights.sum())

    return descend(
        model, train, loss_of=loss_of, judge=None if held is None else judge, how=how, watch=watch
    )


def descend(
    model: Wired,
    train: Sample,
    *,
    loss_of: Callable[[Sample], tuple[Tensor, Tensor]],
    judge: Callable[[], float] | None,
    how: Training,
    watch: Watch | None = None,
) -> Curve:
    """Minimise a loss over weighted rows.

    loss_of: the weighted sum of the losses of some rows, and the sum of their weights
    judge: how bad the model is, at the end of an epoch
    """
    rows = len(train.weights)
    batches = max(1, math.ceil(rows / how.batch_size))
    steps = batches * how.max_epochs
    mean = float(train.weights.mean())
    optimizer = make_optimizer(how.optimizer, model, lr=how.lr, weight_decay=how.weight_decay)
    schedule, average = make_schedule(how.schedule), Average(model, how.average)
    started, step, waited = time.monotonic(), 0, 0
    best, kept = math.inf, _copy(model)
    curve: Curve = []
    model.train()
    for epoch in range(1, how.max_epochs + 1):
        chance = torch.Generator().manual_seed(derive_seed(how.seed, "order", epoch))
        order = torch.randperm(rows, generator=chance).to(train.weights.device)
        total = torch.zeros(2, dtype=torch.float64, device=order.device)  # losses, weights
        for at in order.tensor_split(batches):
            step += 1
            spent = time.monotonic() - started
            share = 0.0 if how.max_seconds is None else min(1.0, spent / how.max_seconds)
            optimizer.set_lr(schedule.factor(max(step, math.ceil(share * steps)), steps))
            with _autocast(how.precision, order.device):
                loss, weight = loss_of(train.rows(at))
            torch.autograd.backward(loss / (mean * len(at)))
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
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
                    f"the loss is not a finite number in epoch {epoch} at lr={how.lr}; the "
                    f"{'best' if judge else 'last'} epoch before it is kept",
                    RuntimeWarning,
                    stacklevel=2,
                )
            break
        with average.applied():
            if judge is not None:
                model.eval()
                row["valid"] = judge()
                model.train()
            if judge is None or row["valid"] < best:
                best, kept, waited = row.get("valid", 0.0), _copy(model), 0
            else:
                waited += 1
        curve.append(row | {"lr": optimizer.parts[0].param_groups[0]["lr"], "seconds": spent})
        if watch is not None:
            watch(epoch, how.max_epochs, curve[-1])
        late = how.max_seconds is not None and spent >= how.max_seconds
        if late or (judge is not None and waited >= how.patience):
            break
    if not curve:
        raise UserError(
            f"the loss is not a finite number in the first epoch at lr={how.lr}; try a tenth of it"
        )
    model.load_state_dict(kept)
    model.eval()
    return curve


@torch.no_grad()
def answers(
    model: TableModel,
    cells: Cells,
    reference: Cells,
    *,
    precision: str = "float32",
    embeddings: bool = False,
) -> Tensor:
    """What the model says of rows, a few at a time; no row's answer depends on another row."""
    weight = model.head.weight
    many = max(1, min(AT_ONCE, CELLS_AT_ONCE // (1 + model.config.features)))
    said = []
    with evaluating(model), _autocast(precision, weight.device):
        memory = model.remember(reference.to(weight.device, weight.dtype))
        for start in range(0, cells.height, many):
            part = cells.rows(slice(start, start + many)).to(weight.device, weight.dtype)
            said.append(model.embed(part, memory) if embeddings else model(part, memory))
    return torch.cat(said)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def whole(method: Callable[P, R]) -> Callable[P, R]:
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
def settled(
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


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
