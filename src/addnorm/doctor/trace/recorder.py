"""The recorder: every operation of one forward filed as a node, every residual join measured."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    _global_forward_hooks_with_kwargs,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from addnorm.core.interrupts import raise_if_interrupted
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node, Operand
from addnorm.doctor.graph.ops import ADDS, DROPOUT, SUMS, canonical_op, op_name, relevant_arguments
from addnorm.doctor.residual.add_patterns import (
    StackedSum,
    find_add_in_call,
    find_stacked_sum,
    find_weighted_add,
)
from addnorm.doctor.residual.residual_adds import ResidualAdd, find_residual_add
from addnorm.doctor.trace import opaque_modules
from addnorm.doctor.trace.call import Call, disable_dropout, iter_plain_arguments, small_tensor_mean
from addnorm.doctor.trace.causal_masks import causal_offset
from addnorm.doctor.trace.fused_ops import decompose_fused_add
from addnorm.doctor.trace.state_guard import StateGuard
from addnorm.doctor.trace.statistics import SATURATION_THRESHOLDS, ActivationStats
from addnorm.doctor.trace.tensors import iter_tensors

STEP_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mul": torch.mul,
    "div": torch.div,
    "sub": torch.sub,
}


class GraphRecorder(TorchFunctionMode):
    """Files what happens while it is active.

    Tensors are known by identity, in-place writes by their version counter. Operations that
    functions do not show, such as kernels, are filled in by module (see hidden.py).
    """

    def __init__(self, model: nn.Module, guard: StateGuard, *, skip_dropout: bool) -> None:
        super().__init__()
        self.model, self.guard, self.skip_dropout = model, guard, skip_dropout
        self.graph = Graph()
        self.residual_adds: dict[int, ResidualAdd] = {}
        self.stats = ActivationStats()
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.call_counts: dict[str, int] = {}
        """How often each module was called."""
        self.no_grad_weights: set[str] = set()
        """Weights used while autograd was off, as inside a reentrant checkpoint."""
        self._tensor_nodes: Any = WeakIdKeyDictionary()
        self._module_names = {id(module): name for name, module in model.named_modules()}
        self._weight_names = {id(weight): name for name, weight in model.named_parameters()}
        self._mixtures: set[int] = set()
        """Weighted sums of streams."""
        self._module_stack = [""]

    # the forward

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model and file what it does."""
        for tensor in iter_tensors((args, kwargs)):
            floating = tensor.is_floating_point()
            node = self.graph.add(
                "input", (), tuple(tensor.shape), is_floating=floating, is_source=floating,
                path="", dtype=tensor.dtype,
            )  # fmt: skip
            self._tensor_nodes[tensor] = node.index
            self.inputs.append(node.index)
        with self._track_modules(), self:
            out = self.model(*args, **kwargs)
        for tensor in iter_tensors(out):
            index = self._tensor_nodes.get(tensor)
            if index is not None and self.graph[index].active:
                self.outputs.append(index)
        return out

    @contextlib.contextmanager
    def _track_modules(self) -> Iterator[None]:
        """Keep the path of the module that is at work."""
        before = register_module_forward_pre_hook(self._enter_module)
        after = register_module_forward_hook(self._leave_module, with_kwargs=True)
        try:
            with warnings.catch_warnings():  # of hooks on compiled parts, which are looked through
                warnings.filterwarnings("ignore", message="Using `torch.compile")
                yield
        finally:
            before.remove()
            after.remove()
            # torch 2.13 forgets this one, and then warns whoever compiles a module later.
            _global_forward_hooks_with_kwargs.pop(after.id, None)

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        path = self._module_names.get(id(module), self._module_stack[-1])
        self._module_stack.append(path)
        self.call_counts[path] = self.call_counts.get(path, 0) + 1

    def _leave_module(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        path = self._module_stack.pop() if len(self._module_stack) > 1 else ""
        given = [t for t in iter_tensors((args, kwargs)) if self._is_active(t)]
        if not given:
            return
        for tensor in iter_tensors(out):
            if (
                not tensor.is_floating_point()
                or not tensor.requires_grad
                or self._is_active(tensor)
            ):
                continue
            if not opaque_modules.is_linked(tensor, given):
                continue
            kind = opaque_modules.detect_norm_kind(module, args, kwargs, tensor)
            operands = tuple(Operand("node", self._tensor_nodes[t]) for t in given)
            self._add_node(
                f"hidden_{kind}" if kind else "opaque", operands, tensor=tensor, path=path
            )

    def find_node(self, tensor: Tensor) -> int | None:
        """The node that made a tensor."""
        return self._tensor_nodes.get(tensor)

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
        raw = op_name(func)
        given = list(iter_tensors((args, kwargs)))
        self.guard.before_operation(raw, args, kwargs)
        if not given:
            return func(*args, **kwargs)
        if raw == "__setitem__":
            func(*args, **kwargs)
            self._record_setitem(args)
            return None
        op = canonical_op(raw)
        if self.skip_dropout:
            args, kwargs = disable_dropout(op, args, kwargs)
        return self._call_and_record(func, Call(raw, op, args, kwargs, given))

    def _call_and_record(self, func: Callable[..., Any], call: Call) -> Any:
        """Carry a call out, and file what it did."""
        op, operands, given = self._normalize_call(call)
        detail = relevant_arguments(op, call.args, call.kwargs)
        join = self._find_add(op, operands, inputs=given) if op in ADDS else None
        streams = (
            find_stacked_sum(self.graph, op, operands=operands, detail=detail)
            if op in SUMS
            else None
        )
        self._observe(call)
        versions = call.tensor_versions()
        out = func(*call.args, **call.kwargs)
        made = [out] if isinstance(out, Tensor) else list(iter_tensors(out))
        inplace = call.is_in_place(out, versions)
        idle = len(made) == 1 and not inplace and any(made[0] is t for t in given)
        nothing = not any(o.kind in ("node", "weight") for o in operands)
        if not made or nothing or (idle and op not in DROPOUT):
            return out  # nothing flows; or a cast that had nothing to do
        if streams is not None and not streams.is_weighted:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._record_stacked_sum(op, streams, inputs=given, out=made[0])
            return out
        if streams is not None:
            join = find_weighted_add(
                self.graph, self.residual_adds, stacked_sum=streams, known_mixtures=self._mixtures
            )
        self._add_nodes(op, operands, outputs=made, inplace=inplace, detail=detail)
        if streams is not None:
            self._mixtures.add(self._tensor_nodes[made[0]])
        if join is not None:
            self._record_add(join, op, out=made[0])
        return out

    def _normalize_call(self, call: Call) -> tuple[str, tuple[Operand, ...], list[Tensor]]:
        """A call as an operation, its operands and its tensors; of a fused sum the last step."""
        with torch._C.DisableTorchFunction():
            sides = decompose_fused_add(call.op, call.args, call.kwargs, run_op=self._run_step)
        if sides is None:
            values = list(iter_plain_arguments(call.args, call.kwargs))
            return call.op, tuple(map(self._make_operand, values)), call.tensors
        op = call.op if call.op in ("add", "sub") else "add"
        given = [side for side in sides if isinstance(side, Tensor)]
        return op, tuple(map(self._make_operand, sides)), given

    def _run_step(self, op: str, *values: Any) -> Any:
        """One step of a fused sum, carried out beside it and filed."""
        operands = tuple(map(self._make_operand, values))
        out = STEP_FUNCTIONS[op](*values)
        if any(o.kind in ("node", "weight") for o in operands):
            self._add_node(op, operands, tensor=out)
        return out

    def _observe(self, call: Call) -> None:
        """Take the signs of an operation that is about to run."""
        self.stats.record_attention(
            call, graph=self.graph, tensor_nodes=self._tensor_nodes, path=self._module_stack[-1]
        )
        if call.op in SATURATION_THRESHOLDS:
            self.stats.record_saturation(call.op, call.tensors[0], len(self.graph))

    def _add_nodes(
        self,
        op: str,
        operands: tuple[Operand, ...],
        *,
        outputs: list[Tensor],
        inplace: bool,
        detail: dict[str, Any],
    ) -> None:
        node: Node | None = None
        for tensor in outputs:
            if node is None or node.shape != tuple(tensor.shape):
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
            path=self._module_stack[-1] if path is None else path,
            dtype=tensor.dtype,
            detail=detail or {},
            grad=tensor.requires_grad,
        )
        if not node.active and node.op != "embedding":
            node.value = small_tensor_mean(tensor)
            node.causal_offset = 0 if node.learned else causal_offset(tensor)
        self._tensor_nodes[tensor] = node.index
        return node

    def _record_setitem(self, args: tuple[Any, ...]) -> None:
        target = args[0]
        places = [t for t in iter_tensors(args[1:2]) if t.dtype == torch.bool]
        operands = [self._make_operand(t) for t in (target, *places, *iter_tensors(args[2:]))]
        self._add_node("setitem", tuple(operands), tensor=target)

    def _make_operand(self, value: Any) -> Operand:
        if not isinstance(value, Tensor):
            return Operand("number", value=float(value))
        index = self._tensor_nodes.get(value)
        if index is not None:
            return Operand("node", index, shape=tuple(value.shape))
        name = self._weight_names.get(id(value))
        if name is not None and not torch.is_grad_enabled():
            self.no_grad_weights.add(name)
        if name is not None or isinstance(value, nn.Parameter):
            return Operand(
                "weight", value=small_tensor_mean(value), shape=tuple(value.shape), name=name or ""
            )
        shape = tuple(value.shape)
        return Operand(
            "constant",
            value=small_tensor_mean(value),
            shape=shape,
            causal_offset=causal_offset(value),
        )

    # joins

    def _find_add(
        self, op: str, operands: tuple[Operand, ...], *, inputs: list[Tensor]
    ) -> ResidualAdd | None:
        join = find_add_in_call(self.graph, self.residual_adds, op=op, operands=operands)
        if join is not None and op not in ("addmm", "baddbmm"):
            self._measure_operands(
                join, {self._tensor_nodes[t]: t for t in inputs if self._is_active(t)}
            )
        return join

    def _measure_operands(self, add: ResidualAdd, values: dict[int, Tensor]) -> None:
        """Take the signs of both sides of a join."""
        one, other = list(values.values())[:2]
        shortcut = values.get(add.shortcut, one)
        branch = values.get(add.branch, other if shortcut is one else one)
        self.stats.record_operands(add, shortcut, branch=branch, graph=self.graph)

    def _record_stacked_sum(
        self, op: str, stacked_sum: StackedSum, *, inputs: list[Tensor], out: Tensor
    ) -> None:
        """A sum over stacked streams, filed as the additions that it is."""
        whole = next(
            t
            for t in inputs
            if self._tensor_nodes.get(t) is not None and t.dim() > stacked_sum.axis
        )
        values = dict(zip(stacked_sum.streams, whole.unbind(stacked_sum.axis), strict=True))
        index, total = stacked_sum.streams[0], values[stacked_sum.streams[0]]
        for part in stacked_sum.streams[1:]:
            join = find_residual_add(self.graph, self.residual_adds, one=index, other=part)
            if join is not None:
                self._measure_operands(join, {index: total, part: values[part]})
            total = total + values[part]
            last = op != "mean" and part == stacked_sum.streams[-1]
            index = self._add_node(
                "add", (_node_operand(index), _node_operand(part)), tensor=out if last else total
            ).index
            if join is not None:
                self._record_add(join, "add", out=out if last else total)
        if op == "mean":
            self._add_node(
                "mul", (_node_operand(index), Operand("number", value=1 / len(values))), tensor=out
            )

    def _record_add(self, add: ResidualAdd, op: str, *, out: Tensor) -> None:
        index = self._tensor_nodes[out]
        add.node, add.op, add.module = index, op, self._module_stack[-1]
        self.residual_adds[index] = add
        self.stats.record_sum(add, out, graph=self.graph)


def _node_operand(index: int) -> Operand:
    return Operand("node", index)
