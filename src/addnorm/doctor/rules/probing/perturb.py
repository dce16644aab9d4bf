"""Probes: the model run again with one input changed."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from addnorm.core.interrupts import raise_if_interrupted
from addnorm.doctor.analysis.classify import classify
from addnorm.doctor.graph.ops import DROPOUT, PRODUCT
from addnorm.doctor.model_trace import SEED, set_train_mode
from addnorm.doctor.report import join_paths
from addnorm.doctor.rules.base import RuleContext
from addnorm.doctor.rules.probing.batch_axis import has_position_table, is_single_example
from addnorm.doctor.rules.probing.input_masks import find_input_node, is_mask
from addnorm.doctor.rules.probing.open_gates import inactive_branches, open_gates, zero_gates
from addnorm.doctor.rules.probing.output_layout import find_layout_by_rolling, find_unique_layout
from addnorm.doctor.trace.recorder import GraphRecorder
from addnorm.doctor.trace.tensors import iter_tensors, map_tensors

LONG_TOKENS, SHORT_TOKENS = 64, 16
"""Tokens from which on probes are made with fewer, and how many."""
NOTICEABLE_CHANGE = 1e-4
"""Share of its own size by which an output must move to count."""


@dataclass(frozen=True)
class Probe:
    """The output before and after the last token of the first example was changed.

    The examples are the first axis of both.
    """

    before: Tensor
    after: Tensor
    length: int
    """Tokens of the input; 0 if it has none."""
    is_single_example: bool = False
    """Whether the inputs are one example, without an axis for examples."""

    @property
    def other_examples_change(self) -> float:
        """How far the other examples moved."""
        return relative_change(self.before[1:], self.after[1:])

    @property
    def has_batch_leak(self) -> bool:
        """Whether they moved at all."""
        return self.other_examples_change > NOTICEABLE_CHANGE

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing at all moved: then nothing can be said."""
        return not relative_change(self.before, self.after)


def perturb_last_token(context: RuleContext) -> Probe | None:
    """The model before and after a change of one token; made once a visit."""
    if "probe" not in context.cache:
        context.cache["probe"] = _run_probe(context)
    return context.cache["probe"]


@dataclass(frozen=True)
class _Trial:
    """A model that runs on an example, and the input that its stream begins with."""

    case: RuleContext
    example: Any
    target: str
    before: Tensor
    """The output as it is."""

    @property
    def tensor(self) -> Tensor:
        """The input that is changed."""
        return tensors_by_name(self.example)[self.target]

    def probe_change(self, *position: int | slice, axis: int, length: int) -> Probe | None:
        """The probe of a change at one place; None if the model refuses it, or it is not known
        where the examples stand. axis: where they stand in the input."""
        new = self.tensor.clone()
        new[position] = perturbed_values(new[position])
        after = run_model(self.case, replace_inputs(self.example, {self.target: new}))
        if after is None or after.shape != self.before.shape:
            return None
        batch = new.shape[axis]
        layout = find_unique_layout(tuple(after.shape), batch, axis=axis)
        if (
            layout is None
            or Probe(
                layout.move_batch_first(self.before), layout.move_batch_first(after), 0
            ).has_batch_leak
        ):
            again = partial(run_model, self.case)
            seen = find_layout_by_rolling(
                self.before, batch=batch, axis=axis, example=self.example, run=again
            )
            layout = seen or layout
        if layout is None:
            return None
        return Probe(layout.move_batch_first(self.before), layout.move_batch_first(after), length)

    def probe_last_token(self) -> Probe | None:
        """The probe of a change of the last token, where the first axis holds them."""
        new = self.tensor.clone()
        new[-1] = perturbed_values(new[-1])
        after = run_model(self.case, replace_inputs(self.example, {self.target: new}))
        if after is None or after.shape != self.before.shape:
            return None
        return Probe(self.before[None], after[None], new.shape[0], is_single_example=True)


def _run_probe(context: RuleContext) -> Probe | None:
    """Change the last token of the first example; where tokens come first, find that out."""
    trial = _prepare_trial(context)
    if trial is None:
        return None
    tensor = trial.tensor
    tokens = tensor.dim() > 1 and tensor.shape[1] > 1 and not _is_image(tensor)
    if not tokens:
        probe = trial.probe_change(0, axis=0, length=0)
    else:
        probe = trial.probe_change(0, -1, axis=0, length=tensor.shape[1])
        if probe is not None and probe.is_unchanged:  # a token that a mask hides, perhaps
            probe = trial.probe_change(0, axis=0, length=0)
    if probe is not None and not probe.has_batch_leak:
        return probe
    if is_single_example(context, tensor, out=trial.before):
        return trial.probe_last_token()
    if not tokens or tensor.shape[0] < 2 or trial.before.dim() < 3:
        return probe
    column = trial.probe_change(slice(None), 0, axis=1, length=0)
    if (
        column is None
        or column.has_batch_leak
        or has_position_table(context, tuple(tensor.shape[:2]))
    ):
        return probe
    context.trace.notes.append(
        "leaks between examples on the first axis of the inputs: it was taken for the tokens, as "
        "what stands on the second one is independent; if it holds examples, these see one another"
    )
    return trial.probe_change(-1, 0, axis=1, length=tensor.shape[0])


def _prepare_trial(context: RuleContext) -> _Trial | None:
    """The inputs of the visit, or fewer tokens of them; None without an input or an output."""
    names = named_inputs(context)
    target = _find_stream_input(context, names)
    if target is None or not names[target].dim():
        return None
    tensor, example = names[target], get_inputs(context)
    before = None
    if tensor.dim() >= 2 and tensor.shape[1] >= LONG_TOKENS and not _is_image(tensor):
        short = _shorten(example, tensor.shape[1])  # two short runs cost less than a long one
        before = run_model(context, short)
        example = example if before is None else short
    before = _reference_output(context, example) if before is None else before
    if zero_gates(context) and (before is None or not bool(before.isfinite().all())):
        context.cache["closed"] = []  # it does not bear to be filled
        before = _reference_output(context, example)
    blind = inactive_branches(context, example)
    if blind:
        context.trace.notes.append(
            f"leaks through the branches at {join_paths(blind)}: they add next to nothing, and no weight "
            "that learns could be filled to see through them"
        )
    if before is None or not before.dim():
        return None
    return _Trial(context, example, target, before)


def _find_stream_input(context: RuleContext, names: dict[str, Tensor]) -> str | None:
    """The input that the stream which reaches the output begins with."""
    graph = context.graph
    order = list(names)
    if context.blocks:
        first = next(r for r in context.blocks if r.stream == context.blocks[-1].stream)
        behind = _data_ancestors(graph, first.link.start)
        for name in order:
            known = find_input_node(context, names[name]) in behind
            if known and names[name].dim() >= 1 and not is_mask(context, names[name]):
                return name
    candidates = [n for n in order if names[n].dim() >= 2 and not is_mask(context, names[n])]
    return candidates[0] if candidates else None


def _data_ancestors(graph: Any, index: int) -> set[int]:
    seen, waiting = {index}, [index]
    while waiting:
        for operand in graph[waiting.pop()].operands:
            if operand.kind == "node" and operand.node not in seen:
                seen.add(operand.node)
                waiting.append(operand.node)
    return seen


def _reference_output(context: RuleContext, example: Any) -> Tensor | None:
    """The output of the visit itself where it ran in eval mode, as it is; else of another run."""
    norms = any(n.kind == "batch" for n in context.norms.values())
    if not norms and not context.trace.training and not zero_gates(context):
        return _main_output(context, context.trace.output)
    return run_model(context, example)


def trace_in_train_mode(context: RuleContext) -> RuleContext | None:
    """The same model in train mode with nothing dropped, read anew; None if dropout stands at no
    other places than in eval mode."""
    visit, guard = context.trace, context.trace.guard
    if guard is None:
        return None
    given = [t for t in named_inputs(context).values() if t.dim() >= 2 and not _is_image(t)]
    length = max((t.shape[1] for t in given), default=0)
    for example in iter_examples(context, length):
        set_train_mode(visit.model, True)
        recorder = GraphRecorder(visit.model, guard, skip_dropout=True)
        try:
            with torch.no_grad():
                out = recorder.run(*example)
        except Exception:  # too short, or not made to be trained
            continue
        finally:
            set_train_mode(visit.model, visit.training)
            guard.restore()
        counts = [sum(n.op in DROPOUT for n in g) for g in (context.graph, recorder.graph)]
        if counts[0] == counts[1]:
            return None
        anatomy = classify(recorder.graph, recorder.residual_adds)
        return RuleContext(replace(visit, recorder=recorder, analysis=anatomy, output=out))
    return None


def run_model(context: RuleContext, example: Any) -> Tensor | None:
    """The main output for another example, with closed gates opened; None if it is refused."""
    raise_if_interrupted()
    model = context.trace.model
    model.eval()
    if context.trace.guard is not None:
        context.trace.guard.restore()
    try:
        open_gates(context)
        torch.manual_seed(SEED)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the visit itself has warned already
            return _main_output(context, model(*example[0], **example[1]))
    except Exception:  # a probe that cannot run says nothing
        return None
    finally:
        if context.trace.guard is not None:
            context.trace.guard.restore()


def _main_output(context: RuleContext, out: Any) -> Tensor | None:
    """The first output of two or more axes, else the first; none that compares examples."""
    if "comparing" not in context.cache:
        context.cache["comparing"] = set(_comparing_outputs(context))
    found = [
        tensor
        for place, tensor in enumerate(iter_tensors(out))
        if tensor.is_floating_point()
        and tensor.dim() >= 1
        and place not in context.cache["comparing"]
    ]
    large = [t for t in found if t.dim() >= 2]
    return (large or found)[0].detach() if found else None


def _comparing_outputs(context: RuleContext) -> Iterator[int]:
    """Outputs that are a product of one example with every other, as contrastive models return."""
    graph = context.graph
    for place, tensor in enumerate(iter_tensors(context.trace.output)):
        index = context.trace.recorder.find_node(tensor)
        while index is not None and tensor.dim() == 2:
            node = graph[graph.trace_back(index)[-1][0]]
            biased = node.op in ("add", "sub") and len(node.inputs) == 1
            index = node.inputs[0] if biased else None
            if node.op in PRODUCT and len(node.inputs) == 2:
                yield place


def get_inputs(context: RuleContext) -> Any:
    """Positional and keyword inputs of the visit."""
    return context.trace.args, context.trace.kwargs


def named_inputs(context: RuleContext) -> dict[str, Tensor]:
    """Inputs that are tensors, by name or by place."""
    return tensors_by_name(get_inputs(context))


def tensors_by_name(example: Any) -> dict[str, Tensor]:
    """The tensors of an example, by name or by place."""
    found = {f"#{i}": t for i, t in enumerate(example[0]) if isinstance(t, Tensor)}
    return found | {n: t for n, t in example[1].items() if isinstance(t, Tensor)}


def iter_examples(context: RuleContext, length: int) -> Iterator[Any]:
    """The inputs of the visit, with fewer tokens first if they are many: that costs less."""
    if length >= LONG_TOKENS:
        yield _shorten(get_inputs(context), length)
    yield get_inputs(context)


def replace_inputs(example: Any, replacements: dict[str, Tensor]) -> Any:
    """The same inputs with some of them exchanged."""
    args, kwargs = example
    return (
        tuple(replacements.get(f"#{i}", a) for i, a in enumerate(args)),
        {name: replacements.get(name, value) for name, value in kwargs.items()},
    )


def _shorten(example: Any, length: int) -> Any:
    """The same inputs with fewer tokens."""

    def cut(tensor: Tensor) -> Tensor:
        long = tensor.dim() >= 2 and tensor.shape[1] == length
        return tensor[:, :SHORT_TOKENS] if long else tensor

    return map_tensors(example, cut)


def _is_image(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_floating_point()


def perturbed_values(values: Tensor) -> Tensor:
    """Something else of the same kind: other tokens that occur, or other numbers."""
    if values.is_floating_point():
        return values.flip(-1) * 1.5 + 0.5 if values.dim() else values + 1
    if values.dtype == torch.bool:
        return ~values
    return torch.where(values > 0, values - 1, values + 1)


def relative_change(before: Tensor, after: Tensor) -> float:
    """The largest change beside the size of what changed."""
    if not before.numel():
        return 0.0
    change = float(_abs_change(before, after).max())
    return change / (_mean_magnitude(before) + 1e-12)


def first_changed_index(before: Tensor, after: Tensor, *, axis: int) -> int:
    """The first place of an axis that moved."""
    gap = _abs_change(before, after).movedim(axis, 0).flatten(1).amax(1)
    return int((gap > NOTICEABLE_CHANGE * _mean_magnitude(before)).nonzero()[0])


def _abs_change(before: Tensor, after: Tensor) -> Tensor:
    """How far each number moved; one that was not finite has nowhere to move from."""
    gap = (before.float() - after.float()).abs().nan_to_num(nan=math.inf)
    return gap.masked_fill(~before.isfinite(), 0.0)


def _mean_magnitude(values: Tensor) -> float:
    """The mean size of what is finite."""
    values = values.float()
    finite = values[values.isfinite()]
    return float(finite.abs().mean()) if finite.numel() else 0.0
