"""Training monitor: measures every N steps in a separate forward pass, so training is unchanged."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.rows import Row, thinned_interval
from addnorm.measure.gradient_norm import squared_gradient_norms
from addnorm.measure.probe import Scalars, forward_scalars
from addnorm.measure.sites import find_stacks, site_fields, site_parameters, unwrap_model
from addnorm.measure.update_ratio import clone_parameters, squared_update_norms
from addnorm.sublayers.base import check_positive_int

MAX_DENSE_STEPS = 1_000
"""Measured steps that are `every` apart; a deep model has hundreds of rows for each."""


@dataclass(frozen=True, kw_only=True)
class _PendingStep:
    """Measurements of a step before the optimizer updates the weights."""

    step: int
    parameters: list[nn.Parameter]
    weights: list[Tensor]
    gradients: Tensor
    scalars: Scalars


class Monitor:
    """Monitor of a training run: gradient norms, update ratios and site metrics.

    monitor = Monitor(model, every=50)
    loss.backward()                                   # all batches of the step
    monitor.before_update(step, *args, **kwargs)      # before gradients are clipped
    optimizer.step()
    rows = monitor.after_update()                     # [] unless the step is measured

    The site metrics come from a separate forward pass in evaluation mode, with the weights that the
    gradients were computed from. Training itself has no hooks, so that torch.compile, activation
    checkpointing and gradient accumulation work as usual. With several processes, all of them must
    call both methods. Gradients and weights are then those of all processes, while each process
    runs the forward pass on its own batch.

    Args:
        model: an addnorm model or Stack, or any module that holds stacks; also inside
            DistributedDataParallel, sharded by `fully_shard`, or compiled
        every: measure step 1 and every step divisible by this number; after `MAX_DENSE_STEPS`
            measurements the interval grows with the step, see `thinned_interval`
        sentences: number of sequences of the batch in the forward pass
    """

    def __init__(self, model: nn.Module, *, every: int = 50, sentences: int = 4) -> None:
        check_positive_int("every", every)
        check_positive_int("sentences", sentences)
        self.model, self.every, self.sentences = unwrap_model(model), every, sentences
        self.stacks = find_stacks(self.model)
        self._pending: _PendingStep | None = None

    def is_due(self, step: int) -> bool:
        """Return whether a step is measured. A resumed run measures the same steps."""
        return step == 1 or step % thinned_interval(self.every, step, full=MAX_DENSE_STEPS) == 0

    def before_update(self, step: int, *args: Any, **kwargs: Any) -> None:
        """Measure gradients and sites after the backward pass.

        Args:
            step: number of the step, from 1
            *args, **kwargs: arguments of the model; without them there are no site metrics
        """
        self._pending = None  # a skipped step never reached after_update
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
        """Return the rows of the step after the optimizer's update."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        moves, lengths = squared_update_norms(pending.weights, pending.parameters)
        # One transfer for all values, so that the device is waited for only once.
        scalars = [value.to(moves.device).reshape(1) for _, value in pending.scalars]
        numbers = torch.cat((pending.gradients, moves, lengths, *scalars)).tolist()
        count = len(pending.parameters)
        gradients, changes, weights = (numbers[i * count : (i + 1) * count] for i in range(3))
        index = {id(parameter): number for number, parameter in enumerate(pending.parameters)}
        rows: list[dict[str, Any]] = []
        for fields, members in self._iter_groups(index):
            rows.append({"name": "gradient_norm", "value": _root_sum(gradients, members), **fields})
            weight = _root_sum(weights, members)
            if weight != 0:
                ratio = _root_sum(changes, members) / weight
                rows.append({"name": "update_ratio", "value": ratio, **fields})
        values = numbers[3 * count :]
        rows += [
            {**row, "value": value} for (row, _), value in zip(pending.scalars, values, strict=True)
        ]
        return [{"step": pending.step, **row} for row in rows]

    def _iter_groups(self, index: dict[int, int]) -> Iterable[tuple[dict[str, Any], Sequence[int]]]:
        """Yield row fields and parameter indices: of the whole model, then of each site."""
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
    """Return the arguments of a model with the batch cut to its first `count` sequences.

    Every tensor whose first axis has the batch size is cut. Tensors that all sequences share are
    kept: a `visible` of two axes and a `position_index` of one.
    """
    values = [*args, *kwargs.values()]
    sizes = [len(each) for each in values if isinstance(each, Tensor) and each.ndim]
    if not sizes:
        raise UserError(
            "args: expected the arguments of the model, got no tensor; call "
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
