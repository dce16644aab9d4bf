"""Training monitor: measures every N steps in a separate forward pass, so training is unchanged."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.rows import Row, thinned_interval
from addnorm.measure.gradient_norm import squared_gradient_norms
from addnorm.measure.probe import Scalars
from addnorm.measure.site_source import SiteSource, StackSites
from addnorm.measure.sites import unwrap_model
from addnorm.measure.update_ratio import clone_parameters, squared_update_norms
from addnorm.sublayers.base import check_positive_int

MAX_DENSE_STEPS = 1_000
"""Measured steps that are `every` apart; a deep model has hundreds of rows for each."""


@dataclass(frozen=True, kw_only=True)
class _PendingStep:
    """Measurements of a step before the optimizer updates the weights."""

    step: int
    parameters: list[nn.Parameter]
    weights: list[Tensor] | None
    """Copies of the parameters; None if their change is not measured."""
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
        sites: where the model is measured; the stacks of an addnorm model by default
        max_entries: copy at most this number of entries of a parameter to compute update ratios
            from; all by default
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        every: int = 50,
        sentences: int = 4,
        sites: SiteSource | None = None,
        max_entries: int | None = None,
    ) -> None:
        check_positive_int("every", every)
        check_positive_int("sentences", sentences)
        self.model, self.every, self.sentences = unwrap_model(model), every, sentences
        self.sites = StackSites(self.model) if sites is None else sites
        self.max_entries = max_entries
        self._pending: _PendingStep | None = None

    def is_due(self, step: int) -> bool:
        """Return whether a step is measured. A resumed run measures the same steps."""
        return is_due(step, self.every)

    def before_update(self, step: int, *args: Any, **kwargs: Any) -> None:
        """Measure gradients and sites after the backward pass.

        Args:
            step: number of the step, from 1
            *args, **kwargs: arguments of the model; without them there are no site metrics
        """
        self._pending = None  # a skipped step never reached after_update
        if not self.is_due(step):
            return
        inputs = first_sequences(args, kwargs, self.sentences) if args or kwargs else ((), {})
        self.measure(step, *inputs)

    def measure(
        self,
        step: int,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        gradient_scale: float | Tensor = 1.0,
        updates: bool = True,
    ) -> None:
        """Measure gradients and sites of a step, whether it is due or not.

        Args:
            step: number of the step, from 1
            args: positional arguments of the model
            kwargs: keyword arguments of the model; without any there are no site metrics
            gradient_scale: factor that the gradients were multiplied by
            updates: whether to copy the weights for the update ratios
        """
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        kwargs = kwargs or {}
        scalars = self.sites.measure(*args, **kwargs) if args or kwargs else []
        gradients = squared_gradient_norms(parameters)
        self._pending = _PendingStep(
            step=step,
            parameters=parameters,
            weights=clone_parameters(parameters, self.max_entries) if updates else None,
            gradients=gradients if gradient_scale == 1.0 else gradients / gradient_scale**2,
            scalars=scalars,
        )

    def after_update(self) -> list[Row]:
        """Return the rows of the step after the optimizer's update."""
        pending, self._pending = self._pending, None
        if pending is None:
            return []
        moves, lengths = (
            torch.zeros_like(pending.gradients).expand(2, -1)
            if pending.weights is None
            else squared_update_norms(pending.weights, pending.parameters, self.max_entries)
        )
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
        for fields, parameters in self.sites.iter_parameters():
            own = {id(parameter) for parameter in parameters}
            members = [index[each] for each in own if each in index]
            if members:
                yield fields, sorted(members)


def is_due(step: int, every: int) -> bool:
    """Return whether a step is measured: the first, and those divisible by the interval."""
    return step == 1 or step % thinned_interval(every, step, full=MAX_DENSE_STEPS) == 0


def first_sequences(
    args: Sequence[Any], kwargs: Mapping[str, Any], count: int
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
