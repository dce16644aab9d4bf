"""The observer of a training: rows at every so many steps, and no influence on it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.rows import Row
from addnorm.measure.gradient_norm import squared_gradient_norms
from addnorm.measure.probe import Scalars, forward_scalars
from addnorm.measure.sites import find_stacks, site_fields, site_parameters, unwrap_model
from addnorm.measure.update_ratio import clone_parameters, squared_update_norms
from addnorm.sublayers.base import check_positive_int


@dataclass(frozen=True, kw_only=True)
class _PendingStep:
    """What is known of a step before the optimizer moves."""

    step: int
    parameters: list[nn.Parameter]
    weights: list[Tensor]
    gradients: Tensor
    scalars: Scalars


class Monitor:
    """Measures a model around steps of its optimizer.

    monitor = Monitor(model, every=50)
    loss.backward()                                   # all batches of the step
    monitor.before_update(step, *args, **kwargs)      # before gradients are clipped
    optimizer.step()
    rows = monitor.after_update()                     # [] unless the step was due

    model: an addnorm model or Stack, or any module that holds stacks; also inside
        DistributedDataParallel, cut up by `fully_shard`, or compiled
    every: due are the first step, 1, and those that it divides
    sentences: how many of the batch the probe reads
    args, kwargs: what the model is called with. Without them there are no rows of the forward.

    Rows of the forward (those of `QUESTIONS`) come from a probe: a forward of its own, of the first
    sentences in evaluation mode, with the weights from which the gradients came. So training itself
    is never hooked, and compiling, recomputation of activations and accumulation of gradients need
    no care. gradient_norm is of what stands in `.grad`, update_ratio of what the optimizer did.
    Under several processes all must call both methods; gradients and weights are those of all
    processes, the probe is each one's own.
    """

    def __init__(self, model: nn.Module, *, every: int = 50, sentences: int = 4) -> None:
        check_positive_int("every", every)
        check_positive_int("sentences", sentences)
        self.model, self.every, self.sentences = unwrap_model(model), every, sentences
        self.stacks = find_stacks(self.model)
        self._pending: _PendingStep | None = None

    def is_due(self, step: int) -> bool:
        """Whether a step is measured; depends on its number alone, so a resumed run goes on."""
        return step == 1 or step % self.every == 0

    def before_update(self, step: int, *args: Any, **kwargs: Any) -> None:
        """Measure what is there after the backward pass."""
        self._pending = None  # also of a step that was skipped
        if not self.is_due(step):
            return
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        scalars: Scalars = []
        if args or kwargs:
            inputs = first_sequences(args, kwargs, self.sentences)
            scalars = forward_scalars(self.model, *inputs[0], **inputs[1])
        self._pending = _PendingStep(
            step=step,
            parameters=parameters,
            weights=clone_parameters(parameters),
            gradients=squared_gradient_norms(parameters),
            scalars=scalars,
        )

    def after_update(self) -> list[Row]:
        """The rows of the step, the optimizer having moved."""
        half, self._pending = self._pending, None
        if half is None:
            return []
        moves, lengths = squared_update_norms(half.weights, half.parameters)
        # Until here everything stayed on its device; now it is waited for, once.
        seen = [value.to(moves.device).reshape(1) for _, value in half.scalars]
        numbers = torch.cat((half.gradients, moves, lengths, *seen)).tolist()
        count = len(half.parameters)
        gradients, changes, weights = (numbers[i * count : (i + 1) * count] for i in range(3))
        index = {id(parameter): number for number, parameter in enumerate(half.parameters)}
        rows: list[dict[str, Any]] = []
        for where, members in self._iter_groups(index):
            rows.append({"name": "gradient_norm", "value": _root_sum(gradients, members), **where})
            weight = _root_sum(weights, members)
            if weight != 0:
                ratio = _root_sum(changes, members) / weight
                rows.append({"name": "update_ratio", "value": ratio, **where})
        values = numbers[3 * count :]
        rows += [
            {**row, "value": value} for (row, _), value in zip(half.scalars, values, strict=True)
        ]
        return [{"step": half.step, **row} for row in rows]

    def _iter_groups(self, index: dict[int, int]) -> Iterable[tuple[dict[str, Any], Sequence[int]]]:
        """Parameters of the whole model, then of each site that has any, by their numbers."""
        yield {}, range(len(index))
        for name, stack in self.stacks.items():
            for site in stack.plan.sites:
                own = {id(parameter) for parameter in site_parameters(stack, site)}
                members = [index[each] for each in own if each in index]
                if members:
                    yield site_fields(name, site), sorted(members)


def first_sequences(
    args: Sequence[Any], kwargs: dict[str, Any], count: int
) -> tuple[list[Any], dict[str, Any]]:
    """The first `count` sequences of what a model is called with.

    Cut is every tensor that has as many entries as the first one, but for what the sequences of a
    batch share: a `visible` of two axes, a `position_index` of one.
    """
    everything = [*args, *kwargs.values()]
    sizes = [len(each) for each in everything if isinstance(each, Tensor) and each.ndim]
    if not sizes:
        raise UserError(
            "the monitor was given nothing to read; wanted what the model is called with, such as "
            "before_update(step, ids, mask=mask)"
        )
    shared = {"visible": 2, "position_index": 1}

    def cut(value: Any, name: str = "") -> Any:
        if not isinstance(value, Tensor) or not value.ndim or len(value) != sizes[0]:
            return value
        return value if value.ndim == shared.get(name) else value[:count]

    return [cut(each) for each in args], {name: cut(each, name) for name, each in kwargs.items()}


def _root_sum(squares: Sequence[float], members: Sequence[int]) -> float:
    return math.sqrt(math.fsum(squares[member] for member in members))
