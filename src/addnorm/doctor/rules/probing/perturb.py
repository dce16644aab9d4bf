"""Perturbation probe: the outputs before and after one token of the input changes.

The probe changes the last token of the first example and runs the model twice. In the outputs,
with the examples moved to the first axis, the leak rules then read two things: whether other
examples changed (`batch_leak`), and whether earlier tokens changed (`future_leak`).

For example, with two examples of three tokens (`x`: changed, `.`: unchanged):

    input     output of a     causal model    bidirectional    model with a leak
    ..x                       ..x             xxx              ..x
    ...                       ...             ...              x..      batch_leak

    >>> before = torch.ones(2, 3, 1)
    >>> after = before.clone()
    >>> after[0, 2] = after[1, 0] = 2.0  # the last column of the table
    >>> Probe(before, after, length=3).has_batch_leak
    True

The axes of the inputs are not known. Inputs of shape (L, B) or (L) would look like a leak between
examples. If the first probe shows a leak, the probe therefore tests these layouts too.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.report import join_paths
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.probing.batch_axis import has_position_table, is_single_example
from addnorm.doctor.rules.probing.input_masks import find_input_node, is_mask
from addnorm.doctor.rules.probing.model_runs import (
    LONG_TOKENS,
    get_inputs,
    is_image,
    main_output,
    named_inputs,
    replace_inputs,
    run_model,
    shorten,
    tensors_by_name,
)
from addnorm.doctor.rules.probing.open_gates import inactive_branches, zero_gates
from addnorm.doctor.rules.probing.output_layout import (
    drop_last_token,
    find_layout_by_rolling,
    find_unique_layout,
)

NOTICEABLE_CHANGE = 1e-4
"""Smallest change of an output, relative to its mean magnitude, that counts."""


@dataclass(frozen=True)
class Probe:
    """Outputs before and after a change of the last token of the first example."""

    before: Tensor
    """(B, ...) output for the original input."""
    after: Tensor
    """(B, ...) output for the changed input."""
    length: int
    """Number of tokens of the input; 0 if it has none."""
    is_single_example: bool = False
    """Whether the inputs are one example without a batch axis."""

    @property
    def other_examples_change(self) -> float:
        """Relative change of the examples after the first."""
        return relative_change(self.before[1:], self.after[1:])

    @property
    def has_batch_leak(self) -> bool:
        """Whether the examples after the first changed."""
        return self.other_examples_change > NOTICEABLE_CHANGE

    @property
    def is_unchanged(self) -> bool:
        """Whether no output changed, so that the probe shows nothing."""
        return not relative_change(self.before, self.after)


def perturb_last_token(context: RuleContext) -> Probe | None:
    """Return the probe of a traced model; None if it cannot be made. The result is cached."""
    if "probe" not in context.cache:
        context.cache["probe"] = _run_probe(context)
    return context.cache["probe"]


def leaks_through_mask(context: RuleContext) -> bool:
    """Return whether an example changes others by its padding only, not by its first token.

    The last token of the first example must be the padding id that occurs in other rows.
    """
    experiment = _prepare_experiment(context)
    if experiment is None or experiment.tensor.dim() != 2 or experiment.tensor.is_floating_point():
        return False
    probe = experiment.probe_change(0, 0, axis=0, length=0)
    return probe is not None and not probe.is_unchanged and not probe.has_batch_leak


def reads_ahead(context: RuleContext) -> bool | None:
    """Return whether a later token changes earlier outputs; None unless a rule has probed it."""
    probe: Probe | None = context.cache.get("probe")
    if probe is None or probe.length < 2 or probe.length not in probe.before.shape[1:-1]:
        return None
    if probe.is_unchanged or not bool(probe.before.isfinite().all()):
        return None
    before, after = (drop_last_token(t[0], probe.length) for t in (probe.before, probe.after))
    return relative_change(before, after) > NOTICEABLE_CHANGE


def reads_probed_input(context: RuleContext, node: int) -> bool:
    """Return whether a node depends on the input that the probe changes."""
    names = named_inputs(context)
    target = find_stream_input(context, names)
    index = None if target is None else find_input_node(context, names[target])
    return index is not None and index in context.graph.data_ancestors(node)


@dataclass(frozen=True)
class _Experiment:
    """A model, an example that it runs on, and the input to change."""

    context: RuleContext
    example: Any
    target: str
    """Name of the input that the residual stream starts from."""
    before: Tensor
    """Output for the unchanged example."""

    @property
    def tensor(self) -> Tensor:
        return tensors_by_name(self.example)[self.target]

    def probe_change(self, *position: int | slice, axis: int, length: int) -> Probe | None:
        """Change one position of the input and return the probe.

        Args:
            *position: index of the changed values
            axis: batch axis of the input
            length: number of tokens to record in the probe

        Returns:
            The probe, or None if the model fails or the batch axis of the output is unknown.
        """
        changed = self.tensor.clone()
        changed[position] = perturbed_values(changed[position])
        after = run_model(self.context, replace_inputs(self.example, {self.target: changed}))
        if after is None or after.shape != self.before.shape:
            return None
        batch = changed.shape[axis]
        layout = find_unique_layout(tuple(after.shape), batch, axis=axis)
        if (
            layout is None
            or Probe(
                layout.move_batch_first(self.before), layout.move_batch_first(after), 0
            ).has_batch_leak
        ):
            # The sizes are ambiguous, or the examples are on another axis than assumed.
            rolled = find_layout_by_rolling(
                self.before,
                batch=batch,
                axis=axis,
                example=self.example,
                run=partial(run_model, self.context),
            )
            layout = rolled or layout
        if layout is None:
            return None
        return Probe(layout.move_batch_first(self.before), layout.move_batch_first(after), length)

    def probe_last_token(self) -> Probe | None:
        """Change the last position of the first axis, which holds the tokens of one example."""
        changed = self.tensor.clone()
        changed[-1] = perturbed_values(changed[-1])
        after = run_model(self.context, replace_inputs(self.example, {self.target: changed}))
        if after is None or after.shape != self.before.shape:
            return None
        return Probe(self.before[None], after[None], changed.shape[0], is_single_example=True)


def _run_probe(context: RuleContext) -> Probe | None:
    """Probe the layouts (B, L), (L) and (L, B) of the input until one shows no leak."""
    experiment = _prepare_experiment(context)
    if experiment is None:
        return None
    tensor = experiment.tensor
    has_tokens = tensor.dim() > 1 and tensor.shape[1] > 1 and not is_image(tensor)
    if not has_tokens:
        probe = experiment.probe_change(0, axis=0, length=0)
    else:
        probe = experiment.probe_change(0, -1, axis=0, length=tensor.shape[1])
        if probe is not None and probe.is_unchanged:  # perhaps a mask hides the token
            probe = experiment.probe_change(0, axis=0, length=0)
    if probe is not None and not probe.has_batch_leak:
        return probe
    if is_single_example(context, tensor, out=experiment.before):
        return experiment.probe_last_token()
    if not has_tokens or tensor.shape[0] < 2 or experiment.before.dim() < 3:
        return probe
    column = experiment.probe_change(slice(None), 0, axis=1, length=0)
    if (
        column is None
        or column.has_batch_leak
        or has_position_table(context, tuple(tensor.shape[:2]))
    ):
        return probe
    context.notes.append(
        "leaks between examples: the first axis of the inputs was taken as tokens, because "
        "positions of the second axis are independent; if the first axis holds examples, they leak"
    )
    return experiment.probe_change(-1, 0, axis=1, length=tensor.shape[0])


def _prepare_experiment(context: RuleContext) -> _Experiment | None:
    """Choose the example and the input to change; None without a suitable input or output."""
    names = named_inputs(context)
    target = find_stream_input(context, names)
    if target is None or not names[target].dim():
        return None
    tensor, example = names[target], get_inputs(context)
    before = None
    if tensor.dim() >= 2 and tensor.shape[1] >= LONG_TOKENS and not is_image(tensor):
        short = shorten(example, tensor.shape[1])  # two short runs are faster than a long one
        before = run_model(context, short)
        example = example if before is None else short
    before = _reference_output(context, example) if before is None else before
    if zero_gates(context) and (before is None or not bool(before.isfinite().all())):
        context.cache["closed"] = []  # the model fails with filled weights, so keep them
        before = _reference_output(context, example)
    inactive = inactive_branches(context, example)
    if inactive:
        context.notes.append(
            f"leaks through the branches at {join_paths(inactive)} were not checked: these "
            "branches add almost nothing, and no trainable weight was found that opens them"
        )
    if before is None or not before.dim():
        return None
    return _Experiment(context, example, target, before)


def find_stream_input(context: RuleContext, names: dict[str, Tensor]) -> str | None:
    """Return the name of the input that the residual stream of the output starts from."""
    order = list(names)
    if context.blocks:
        first = next(r for r in context.blocks if r.stream == context.blocks[-1].stream)
        ancestors = context.graph.data_ancestors(first.link.start)
        for name in order:
            is_source = find_input_node(context, names[name]) in ancestors
            if is_source and names[name].dim() >= 1 and not is_mask(context, names[name]):
                return name
    candidates = [n for n in order if names[n].dim() >= 2 and not is_mask(context, names[n])]
    return candidates[0] if candidates else None


def _reference_output(context: RuleContext, example: Any) -> Tensor | None:
    """Return the output of the trace if it ran in eval mode with open gates, else of a new run."""
    has_batch_norm = any(n.kind == "batch" for n in context.norms.values())
    if not has_batch_norm and not context.trace.training and not zero_gates(context):
        return main_output(context, context.trace.output)
    return run_model(context, example)


def perturbed_values(values: Tensor) -> Tensor:
    """Return different values of the same dtype; ids stay within the vocabulary."""
    if values.is_floating_point():
        return values.flip(-1) * 1.5 + 0.5 if values.dim() else values + 1
    if values.dtype == torch.bool:
        return ~values
    return torch.where(values > 0, values - 1, values + 1)


def relative_change(before: Tensor, after: Tensor) -> float:
    """Return the largest change relative to the mean magnitude."""
    if not before.numel():
        return 0.0
    change = float(_abs_change(before, after).max())
    return change / (_mean_magnitude(before) + 1e-12)


def first_changed_index(before: Tensor, after: Tensor, *, axis: int) -> int:
    """Return the first index of an axis at which the output changed."""
    gap = _abs_change(before, after).movedim(axis, 0).flatten(1).amax(1)
    return int((gap > NOTICEABLE_CHANGE * _mean_magnitude(before)).nonzero()[0])


def _abs_change(before: Tensor, after: Tensor) -> Tensor:
    """Return absolute changes; entries that were not finite before count as unchanged."""
    gap = (before.float() - after.float()).abs().nan_to_num(nan=math.inf)
    return gap.masked_fill(~before.isfinite(), 0.0)


def _mean_magnitude(values: Tensor) -> float:
    values = values.float()
    finite = values[values.isfinite()]
    return float(finite.abs().mean()) if finite.numel() else 0.0
