"""Runs of the traced model on other inputs.

An example is a pair of positional and keyword inputs, as recorded in the trace. Every run restores
the weights and buffers afterwards, and returns None if the model rejects the inputs: the code of
the user may raise anything.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from addnorm.core.interrupts import raise_if_interrupted
from addnorm.doctor.analysis.classify import classify
from addnorm.doctor.graph.ops import DROPOUT, PRODUCT
from addnorm.doctor.model_trace import SEED, set_train_mode
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.probing.open_gates import open_gates
from addnorm.doctor.trace.recorder import GraphRecorder
from addnorm.doctor.trace.tensors import iter_tensors, map_tensors, to_plain

LONG_TOKENS, SHORT_TOKENS = 64, 16
"""Inputs with at least LONG_TOKENS tokens are first tried with SHORT_TOKENS, which is faster."""


def run_model(
    context: RuleContext,
    example: Any,
    *,
    batch_statistics: bool = False,
    weights: Mapping[str, Tensor] | None = None,
) -> Tensor | None:
    """Return the main output for an example with closed gates opened; None if the model fails.

    Args:
        context: the traced model
        example: positional and keyword inputs
        batch_statistics: let batch norms use the statistics of the batch, as in training
        weights: other values of weights, by name
    """
    raise_if_interrupted()
    model = context.trace.model
    model.eval()
    if batch_statistics:
        set_train_mode(model, False)
    if context.trace.guard is not None:
        context.trace.guard.restore()
    try:
        open_gates(context)
        for name, values in (weights or {}).items():
            if context.trace.guard is None:
                return None
            context.trace.guard.save(context.weights[name])
            context.weights[name].data.copy_(values)
        torch.manual_seed(SEED)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the trace has already shown them
            return main_output(context, model(*example[0], **example[1]))
    except Exception:  # user code: a probe that cannot run shows nothing
        return None
    finally:
        if context.trace.guard is not None:
            context.trace.guard.restore()


def main_output(context: RuleContext, out: Any) -> Tensor | None:
    """Return the first floating-point output, preferring one with two or more axes.

    Outputs that compare examples with each other are skipped.
    """
    if "comparing" not in context.cache:
        context.cache["comparing"] = set(_find_comparing_outputs(context))
    candidates = [
        to_plain(tensor)
        for number, tensor in enumerate(iter_tensors(out))
        if tensor.is_floating_point()
        and tensor.dim() >= 1
        and number not in context.cache["comparing"]
    ]
    large = [t for t in candidates if t.dim() >= 2]
    return (large or candidates)[0].detach() if candidates else None


def _find_comparing_outputs(context: RuleContext) -> Iterator[int]:
    """Yield the outputs that multiply every example with every other, as contrastive models do."""
    graph = context.graph
    for number, tensor in enumerate(iter_tensors(context.trace.output)):
        index = context.trace.recording.find_node(tensor)
        while index is not None and tensor.dim() == 2:
            node = graph[graph.trace_back(index)[-1][0]]
            has_bias = node.op in ("add", "sub") and len(node.inputs) == 1
            index = node.inputs[0] if has_bias else None
            if node.op in PRODUCT and len(node.inputs) == 2:
                yield number


def trace_in_train_mode(context: RuleContext) -> RuleContext | None:
    """Trace the model in train mode without dropping anything.

    Returns:
        The context of the new trace; None if the model does not run in train mode, or calls
        dropout as often as in eval mode. The result is cached.
    """
    if "train mode" not in context.cache:
        context.cache["train mode"] = _trace_in_train_mode(context)
    return context.cache["train mode"]


def _trace_in_train_mode(context: RuleContext) -> RuleContext | None:
    trace, guard = context.trace, context.trace.guard
    if guard is None:
        return None
    tensors = [t for t in named_inputs(context).values() if t.dim() >= 2 and not is_image(t)]
    length = max((t.shape[1] for t in tensors), default=0)
    for example in iter_examples(context, length):
        set_train_mode(trace.model, True)
        try:
            with torch.no_grad():
                recorder = GraphRecorder(trace.model, guard, skip_dropout=True)
                recording = recorder.run(*example)
        except Exception:  # user code: the inputs are too short, or the model cannot be trained
            continue
        finally:
            set_train_mode(trace.model, trace.training)
            guard.restore()
        context.cache["train attentions"] = recording.stats.attentions
        counts = [sum(n.op in DROPOUT for n in g) for g in (context.graph, recording.graph)]
        if counts[0] == counts[1]:
            return None
        analysis = classify(recording.graph, recording.residual_adds)
        return RuleContext(
            replace(trace, recording=recording, analysis=analysis, output=recording.output)
        )
    return None


# Inputs


def get_inputs(context: RuleContext) -> Any:
    """Return the positional and keyword inputs of the trace."""
    return context.trace.args, context.trace.kwargs


def named_inputs(context: RuleContext) -> dict[str, Tensor]:
    """Return the tensor inputs of the trace; positional ones are named `#0`, `#1`, ...

    Sparse ones, such as the edges of a graph, are left out: single values cannot be changed.
    """
    tensors = tensors_by_name(get_inputs(context))
    return {name: t for name, t in tensors.items() if t.layout == torch.strided}


def tensors_by_name(example: Any) -> dict[str, Tensor]:
    """Return the tensors of an example; positional ones are named `#0`, `#1`, ..."""
    tensors = {f"#{i}": t for i, t in enumerate(example[0]) if isinstance(t, Tensor)}
    return tensors | {n: t for n, t in example[1].items() if isinstance(t, Tensor)}


def iter_examples(context: RuleContext, length: int) -> Iterator[Any]:
    """Iterate over the inputs to try: shortened ones first if they are long, then all of them."""
    if length >= LONG_TOKENS:
        yield shorten(get_inputs(context), length)
    yield get_inputs(context)


def replace_inputs(example: Any, replacements: dict[str, Tensor]) -> Any:
    """Return an example with some tensors replaced."""
    args, kwargs = example
    return (
        tuple(replacements.get(f"#{i}", a) for i, a in enumerate(args)),
        {name: replacements.get(name, value) for name, value in kwargs.items()},
    )


def shorten(example: Any, length: int) -> Any:
    """Return an example with every axis of `length` tokens cut to SHORT_TOKENS."""

    def cut(tensor: Tensor) -> Tensor:
        is_long = tensor.dim() >= 2 and tensor.shape[1] == length
        return tensor[:, :SHORT_TOKENS] if is_long else tensor

    return map_tensors(example, cut)


def is_image(tensor: Tensor) -> bool:
    """Return whether a tensor has the axes of a batch of images."""
    return tensor.dim() == 4 and tensor.is_floating_point()
