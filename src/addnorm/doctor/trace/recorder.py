"""Recorder: turns one forward pass into a graph, and measures every residual add on the way.

The recorder is a `TorchFunctionMode`: PyTorch passes it every function call on tensors. For each
call it appends a node, with the operands, the shape, and the module that made the call.

    model code (Block.forward)       nodes                           residual adds
    h = self.norm(x)                 2 layer_norm(1, w, b)
    x = x + self.mlp(h)              3 linear(2), 4 gelu, 5 linear
                                     6 add(1, 5)                     {6: ResidualAdd(fork=1,
                                                                         shortcut=1, branch=5, ...)}

How a call is recorded:

1. A fused addition (`addcmul`, `lerp`, `add(alpha=...)`) is decomposed into plain steps.
2. If the operation can add, it is matched against the residual pattern *before* it runs. An
   in-place addition overwrites the shortcut, so its variance is measured here too.
3. The call runs, and its outputs become nodes. Tensors are identified by object, in a dictionary
   with weak keys. A write in place is known by the name of the function or by the version counter
   of the tensor; it makes a new node for the same tensor, and for the base of a view.
4. A match becomes a `ResidualAdd` with the node of the sum. The variance of the sum is measured,
   and a hook on it collects the gradient of the backward pass.

Operations inside a custom kernel are invisible to a function mode. When a module returns a tensor
that is not in the graph although autograd connects it to the module's inputs, the module becomes
one node (`opaque_modules.py`).

`run` returns all of it as a frozen `Recording`. Conclusions that need the whole graph are drawn by
`residual/refine.py` and the analysis.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from addnorm.core.interrupts import raise_if_interrupted
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import CallKey, Node, Operand
from addnorm.doctor.graph.ops import ADDS, DROPOUT, SUMS, canonical_op, op_name, relevant_arguments
from addnorm.doctor.residual.add_patterns import (
    StackedSum,
    find_add_in_call,
    find_stacked_sum,
    find_weighted_add,
    start_learned_streams,
)
from addnorm.doctor.residual.residual_adds import AddMatch, ResidualAdd, find_residual_add
from addnorm.doctor.trace import opaque_modules
from addnorm.doctor.trace.call_arguments import (
    Call,
    disable_dropout,
    has_memory,
    iter_plain_arguments,
    small_tensor_mean,
)
from addnorm.doctor.trace.causal_masks import causal_offset, grows_with_distance
from addnorm.doctor.trace.fused_ops import decompose_fused_add
from addnorm.doctor.trace.module_stack import ModuleStack
from addnorm.doctor.trace.recording import Recording
from addnorm.doctor.trace.state_guard import StateGuard
from addnorm.doctor.trace.statistics import SATURATION_THRESHOLDS, StatsCollector
from addnorm.doctor.trace.tensors import iter_tensors

STEP_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mul": torch.mul,
    "div": torch.div,
    "sub": torch.sub,
}


class GraphRecorder(TorchFunctionMode):
    """Recorder of one forward pass of a model.

    Args:
        model: model to run
        guard: guard that saves whatever an operation is about to overwrite
        skip_dropout: whether to disable dropout, for models that run in train mode only
    """

    def __init__(self, model: nn.Module, guard: StateGuard, *, skip_dropout: bool) -> None:
        super().__init__()
        self.model, self.guard, self.skip_dropout = model, guard, skip_dropout
        self.graph = Graph()
        self.residual_adds: dict[int, ResidualAdd] = {}
        """Residual adds by the node of their sum."""
        self.collector = StatsCollector()
        self.no_grad_weights: set[str] = set()
        """Weights that were used while autograd was off, as inside a reentrant checkpoint."""
        self._modules = ModuleStack(model, on_exit=self._record_opaque_module)
        self._call_key: CallKey | None = None
        """Key of the function call that is running."""
        self._tensor_nodes: Any = WeakIdKeyDictionary()
        self._weight_names = {id(weight): name for name, weight in model.named_parameters()}
        self._mixtures: set[int] = set()
        """Nodes of weighted sums of streams."""

    # the forward pass

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording:
        """Call the model once and return what it did."""
        inputs: list[int] = []
        for tensor in iter_tensors((args, kwargs)):
            floating = tensor.is_floating_point()
            node = self.graph.add(
                "input", (), tuple(tensor.shape), is_floating=floating, is_source=floating,
                path="", dtype=tensor.dtype,
            )  # fmt: skip
            self._tensor_nodes[tensor] = node.index
            inputs.append(node.index)
        with self._modules.track(), self:
            output = self.model(*args, **kwargs)
        return Recording(
            output=output,
            graph=self.graph,
            residual_adds=self.residual_adds,
            stats=self.collector.finish(),
            inputs=tuple(inputs),
            outputs=tuple(
                self._tensor_nodes[t] for t in iter_tensors(output) if self._is_active(t)
            ),
            call_counts=self._modules.call_counts,
            no_grad_weights=frozenset(self.no_grad_weights),
            tensor_nodes=self._tensor_nodes,
        )

    def _record_opaque_module(
        self, module: nn.Module, args: Any, kwargs: Any, output: Any, path: str
    ) -> None:
        """Record a module as one node if its operations did not show."""
        inputs = [t for t in iter_tensors((args, kwargs)) if self._is_active(t)]
        if not inputs:
            return
        for tensor in iter_tensors(output):
            if (
                not tensor.is_floating_point()
                or not tensor.requires_grad
                or self._is_active(tensor)
                or not opaque_modules.is_linked(tensor, inputs)
            ):
                continue
            kind = opaque_modules.detect_norm_kind(module, args, kwargs, tensor)
            operands = tuple(Operand("node", self._tensor_nodes[t]) for t in inputs)
            self._call_key = None  # the last call is inside the module
            self._add_node(
                f"hidden_{kind}" if kind else "opaque", operands, tensor=tensor, path=path
            )

    def _is_active(self, tensor: Tensor) -> bool:
        index = self._tensor_nodes.get(tensor)
        return index is not None and self.graph[index].active

    # one operation

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        raise_if_interrupted()
        kwargs = kwargs or {}
        function_name = op_name(func)
        op = canonical_op(function_name)
        self._call_key = self._modules.count_call(op)
        tensors = list(iter_tensors((args, kwargs)))
        self.guard.before_operation(function_name, args, kwargs)
        if not tensors or not self._have_memory(tensors):
            return func(*args, **kwargs)
        if function_name == "__setitem__":
            func(*args, **kwargs)
            self._record_setitem(args)
            return None
        if self.skip_dropout:
            args, kwargs = disable_dropout(op, args, kwargs)
        return self._call_and_record(func, Call(function_name, op, args, kwargs, tensors))

    def _have_memory(self, tensors: list[Tensor]) -> bool:
        with torch._C.DisableTorchFunction():
            return all(map(has_memory, tensors))

    def _call_and_record(self, func: Callable[..., Any], call: Call) -> Any:
        op, operands, tensors = self._normalize_call(call)
        detail = relevant_arguments(op, call.args, call.kwargs)
        match = self._match_add(op, operands) if op in ADDS else None
        operand_stats: Mapping[str, float] = {}
        if match is not None and op not in ("addmm", "baddbmm"):
            active = {self._tensor_nodes[t]: t for t in tensors if self._is_active(t)}
            operand_stats = self._measure_operands(match, active)
        streams = (
            find_stacked_sum(self.graph, op, operands=operands, detail=detail)
            if op in SUMS
            else None
        )
        self._observe(call)
        versions = call.tensor_versions()
        out = func(*call.args, **call.kwargs)
        outputs = [out] if isinstance(out, Tensor) else list(iter_tensors(out))
        inplace = call.is_in_place(out, versions)
        is_no_op = len(outputs) == 1 and not inplace and any(outputs[0] is t for t in tensors)
        reads_data = any(o.kind in ("node", "weight") for o in operands)
        if not outputs or not reads_data or (is_no_op and op not in DROPOUT):
            return out  # nothing to record, for instance a cast to the same dtype
        if streams is not None and not streams.is_weighted:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._record_stacked_sum(op, streams, inputs=tensors, out=outputs[0])
            return out
        if streams is not None:
            match = find_weighted_add(
                self.graph, self.residual_adds, stacked_sum=streams, known_mixtures=self._mixtures
            )
        self._add_nodes(op, operands, outputs=outputs, inplace=inplace, detail=detail)
        if streams is not None:
            self._mixtures.add(self._tensor_nodes[outputs[0]])
        if match is not None:
            self._record_add(match, op, out=outputs[0], operand_stats=operand_stats)
        return out

    def _normalize_call(self, call: Call) -> tuple[str, tuple[Operand, ...], list[Tensor]]:
        """Return operation, operands and tensors of a call; for a fused addition, of its sum."""
        with torch._C.DisableTorchFunction():
            addends = decompose_fused_add(call.op, call.args, call.kwargs, run_op=self._run_step)
        if addends is None:
            values = list(iter_plain_arguments(call.args, call.kwargs))
            return call.op, tuple(map(self._make_operand, values)), call.tensors
        op = call.op if call.op in ("add", "sub") else "add"
        tensors = [addend for addend in addends if isinstance(addend, Tensor)]
        return op, tuple(map(self._make_operand, addends)), tensors

    def _run_step(self, op: str, *values: Any) -> Any:
        """Compute one step of a fused addition and record it."""
        operands = tuple(map(self._make_operand, values))
        out = STEP_FUNCTIONS[op](*values)
        if any(o.kind in ("node", "weight") for o in operands):
            self._add_node(op, operands, tensor=out)
        return out

    def _observe(self, call: Call) -> None:
        """Collect the statistics of an operation that is about to run."""
        self.collector.record_attention(call, node=len(self.graph), path=self._modules.path)
        if call.op in SATURATION_THRESHOLDS:
            self.collector.record_saturation(call.op, call.tensors[0], len(self.graph))

    # nodes

    def _add_nodes(
        self,
        op: str,
        operands: tuple[Operand, ...],
        *,
        outputs: list[Tensor],
        inplace: bool,
        detail: dict[str, Any],
    ) -> None:
        """Append the nodes of a call; outputs of equal shape that depend on the input share one.

        The parts of a split stream thus stay one stream. Parts of a weight get a node each, since
        their values differ (the mixing weights of DenseFormer).
        """
        node: Node | None = None
        for tensor in outputs:
            if node is None or not node.active or node.shape != tuple(tensor.shape):
                node = self._add_node(op, operands, tensor=tensor, detail=detail)
            else:
                self._tensor_nodes[tensor] = node.index
            if inplace and tensor._is_view() and tensor._base is not None:
                base = tensor._base
                if base in self._tensor_nodes:
                    both = (Operand("node", self._tensor_nodes[base]), Operand("node", node.index))
                    self._add_node("setitem", both, tensor=base)

    def _add_node(
        self,
        op: str,
        operands: tuple[Operand, ...],
        *,
        tensor: Tensor,
        path: str | None = None,
        detail: dict[str, Any] | None = None,
    ) -> Node:
        node = self.graph.add(
            op,
            operands,
            tuple(tensor.shape),
            is_floating=tensor.is_floating_point() or tensor.is_complex(),
            path=self._modules.path if path is None else path,
            dtype=tensor.dtype,
            detail=detail or {},
            grad=tensor.requires_grad,
            call=self._call_key,
        )
        if not node.active and node.op != "embedding":
            node.value = small_tensor_mean(tensor)
            node.causal_offset = 0 if node.learned else causal_offset(tensor)
            node.favors_far = not node.learned and grows_with_distance(tensor)
        self._tensor_nodes[tensor] = node.index
        return node

    def _record_setitem(self, args: tuple[Any, ...]) -> None:
        """Record `target[mask] = value` as a new node of the target."""
        target = args[0]
        masks = [t for t in iter_tensors(args[1:2]) if t.dtype == torch.bool]
        operands = [self._make_operand(t) for t in (target, *masks, *iter_tensors(args[2:]))]
        self._add_node("setitem", tuple(operands), tensor=target)

    def _make_operand(self, value: Any) -> Operand:
        if not isinstance(value, Tensor):
            return Operand("number", value=float(value))
        shape = tuple(value.shape)
        index = self._tensor_nodes.get(value)
        if index is not None:
            return Operand("node", index, shape=shape)
        name = self._weight_names.get(id(value))
        if name is not None and not torch.is_grad_enabled():
            self.no_grad_weights.add(name)
        mean = small_tensor_mean(value)
        if name is not None or isinstance(value, nn.Parameter):
            name = name or self._modules.find_weight(value)
            frozen = not value.requires_grad
            return Operand("weight", value=mean, shape=shape, name=name, frozen=frozen)
        return Operand(
            "constant",
            value=mean,
            shape=shape,
            causal_offset=causal_offset(value),
            favors_far=grows_with_distance(value),
        )

    # residual adds

    def _match_add(self, op: str, operands: tuple[Operand, ...]) -> AddMatch | None:
        """Match a call that is about to run against the residual pattern."""
        self.residual_adds |= start_learned_streams(
            self.graph, self.residual_adds, operands=operands
        )
        return find_add_in_call(self.graph, self.residual_adds, op=op, operands=operands)

    def _measure_operands(self, match: AddMatch, tensors: dict[int, Tensor]) -> Mapping[str, float]:
        """Measure shortcut and branch; `tensors` holds the operands by node."""
        one, other = list(tensors.values())[:2]
        shortcut = tensors.get(match.shortcut, one)
        branch = tensors.get(match.branch, other if shortcut is one else one)
        return self.collector.measure_operands(match, shortcut, branch=branch, graph=self.graph)

    def _record_stacked_sum(
        self, op: str, stacked_sum: StackedSum, *, inputs: list[Tensor], out: Tensor
    ) -> None:
        """Record a sum over stacked streams as the additions that it is equal to."""
        stacked = next(
            t
            for t in inputs
            if self._tensor_nodes.get(t) is not None and t.dim() > stacked_sum.axis
        )
        values = dict(zip(stacked_sum.streams, stacked.unbind(stacked_sum.axis), strict=True))
        index, total = stacked_sum.streams[0], values[stacked_sum.streams[0]]
        for stream in stacked_sum.streams[1:]:
            match = find_residual_add(self.graph, self.residual_adds, one=index, other=stream)
            operand_stats: Mapping[str, float] = {}
            if match is not None:
                operands = {index: total, stream: values[stream]}
                operand_stats = self._measure_operands(match, operands)
            total = total + values[stream]
            is_last = op != "mean" and stream == stacked_sum.streams[-1]
            result = out if is_last else total
            both = (Operand("node", index), Operand("node", stream))
            index = self._add_node("add", both, tensor=result).index
            if match is not None:
                self._record_add(match, "add", out=result, operand_stats=operand_stats)
        if op == "mean":
            factor = Operand("number", value=1 / len(values))
            self._add_node("mul", (Operand("node", index), factor), tensor=out)

    def _record_add(
        self, match: AddMatch, op: str, *, out: Tensor, operand_stats: Mapping[str, float]
    ) -> None:
        add = ResidualAdd.from_match(
            match, node=self._tensor_nodes[out], op=op, module=self._modules.path
        )
        self.residual_adds[add.node] = add
        self.collector.record_sum(add, out, graph=self.graph, operand_stats=operand_stats)
