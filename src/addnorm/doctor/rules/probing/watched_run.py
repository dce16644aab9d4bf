"""Runs of the model in which single calls are captured, or attentions copy one token.

A node of the graph carries the key of its function call, and another run of the model makes the
same calls. `capture_calls` returns their results by node. With `copies`, each attention is replaced
by one that copies a known token, so that what reaches a token can be told from the outside:

    weights of an attention, copies=True      the token before each token; of other tokens, another
"""

import warnings
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import multi_head_attention_forward
from torch.overrides import TorchFunctionMode

from addnorm.core.interrupts import raise_if_interrupted
from addnorm.doctor.graph.nodes import CallKey
from addnorm.doctor.graph.ops import canonical_op, op_name
from addnorm.doctor.model_trace import SEED
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.probing.open_gates import open_gates
from addnorm.doctor.trace.module_stack import ModuleStack
from addnorm.doctor.trace.tensors import map_tensors


def copied_token(query: int, *, queries: int, keys: int) -> int:
    """Return the key that a query copies: the one before it, as causal masks permit.

    >>> [copied_token(i, queries=4, keys=4) for i in range(4)]
    [0, 0, 1, 2]
    >>> [copied_token(i, queries=3, keys=2) for i in range(3)]
    [1, 0, 1]
    """
    return max(query - 1, 0) if queries == keys else (query + 1) % keys


class _WatchedRun(TorchFunctionMode):
    """Function mode that keeps the results of some calls and replaces attentions."""

    def __init__(
        self, context: RuleContext, nodes: Iterable[int], *, copying: Iterable[int]
    ) -> None:
        super().__init__()
        self.modules = ModuleStack(context.trace.model)
        self.results: dict[int, Tensor] = {}
        self.copied: set[int] = set()
        """Attentions that were replaced."""
        graph = context.graph
        self._nodes = {graph[i].call: i for i in nodes if graph[i].call is not None}
        self._copying = {graph[i].call: i for i in copying if graph[i].call is not None}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        raise_if_interrupted()
        kwargs = kwargs or {}
        op = canonical_op(op_name(func))
        key: CallKey = self.modules.count_call(op)
        out = None
        if key in self._copying:
            out = _copy_tokens(op, func, args, kwargs)
            if out is not None:
                self.copied.add(self._copying[key])
        if out is None:
            out = func(*args, **kwargs)
        if key in self._nodes and isinstance(out, Tensor) and out.is_floating_point():
            self.results[self._nodes[key]] = out
            return out.clone()  # the model may go on in place
        return out


def _copy_tokens(op: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the result of an attention call that copies one token; None if it is not known."""
    if op == "softmax":
        scores = args[0] if args else kwargs["input"]
        axis = args[1] if len(args) > 1 else kwargs.get("dim", -1)
        if axis not in (-1, scores.dim() - 1):
            return None
        weights = _copying_weights(*scores.shape[-2:]).to(scores.device)
        dtype = kwargs.get("dtype") or scores.dtype
        return weights.to(dtype).expand(scores.shape).clone()
    if op == "scaled_dot_product_attention":
        names = ("query", "key", "value")
        given = dict(zip(names, args, strict=False)) | kwargs
        query, value = given["query"], given["value"]
        if value.dim() > 2 and value.shape[-3] != query.shape[-3]:
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
        return _copying_weights(query.shape[-2], value.shape[-2]).to(value) @ value
    if op == "multi_head_attention_forward":
        given = dict(signature(multi_head_attention_forward).bind(*args, **kwargs).arguments)
        if given.get("bias_k") is not None or given.get("add_zero_attn"):
            return None
        weights = _copying_weights(given["query"].shape[0], given["key"].shape[0])
        given |= {
            "attn_mask": ~weights.bool().to(given["query"].device),
            "key_padding_mask": None,
            "is_causal": False,
        }
        return func(**given)
    return None


def _copying_weights(queries: int, keys: int) -> Tensor:
    weights = torch.zeros(queries, keys)
    for query in range(queries):
        weights[query, copied_token(query, queries=queries, keys=keys)] = 1
    return weights


def capture_calls(
    context: RuleContext,
    nodes: Iterable[int],
    *,
    example: Any = None,
    copying: Iterable[int] = (),
) -> dict[int, Tensor]:
    """Run the model with closed gates opened and return the results of the calls of some nodes.

    Args:
        context: the traced model
        nodes: nodes of the graph; those whose call does not occur again are missing in the result
        example: positional and keyword inputs; those of the trace by default
        copying: nodes of attentions that copy one token each

    Returns:
        The results by node, with autograd; empty if the model fails, or an attention of `copying`
        could not be replaced.
    """
    model, guard = context.trace.model, context.trace.guard
    args, kwargs = (context.trace.args, context.trace.kwargs) if example is None else example
    nodes, copying = set(nodes), set(copying)
    run = _WatchedRun(context, nodes, copying=copying)
    (args, kwargs), inputs = _track_inputs(context, (args, kwargs), nodes)
    model.eval()
    if guard is not None:
        guard.restore()
    try:
        open_gates(context)
        torch.manual_seed(SEED)
        with torch.enable_grad(), warnings.catch_warnings(), run.modules.track(), run:
            warnings.simplefilter("ignore")  # the trace has already shown them
            model(*args, **kwargs)
    except Exception:  # user code: a probe that cannot run shows nothing
        return {}
    finally:
        if guard is not None:
            guard.restore()
    return run.results | inputs if copying <= run.copied else {}


def _track_inputs(
    context: RuleContext, example: Any, nodes: set[int]
) -> tuple[Any, dict[int, Tensor]]:
    """Return inputs of which those among the nodes require a gradient, and these by node."""
    tracked: dict[int, Tensor] = {}
    indices = iter(context.trace.recording.inputs)

    def track(tensor: Tensor) -> Tensor:
        index = next(indices, -1)
        if index not in nodes or not tensor.is_floating_point():
            return tensor
        tracked[index] = tensor.detach().clone().requires_grad_()
        return tracked[index]

    return map_tensors(example, track), tracked
