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

from addnorm.core.interrupts import check
from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node, Operand
from addnorm.doctor.graph.ops import ADDS, DROPOUT, SUMS, canonical, kept, spelling
from addnorm.doctor.residual.add_patterns import Stacked, joined, mixture, stacked
from addnorm.doctor.residual.residual_adds import Join, find
from addnorm.doctor.trace import opaque_modules
from addnorm.doctor.trace.call import Call, mean_of, plain_arguments, without_dropout
from addnorm.doctor.trace.causal_masks import begins
from addnorm.doctor.trace.fused_ops import spelt
from addnorm.doctor.trace.state_guard import Guard
from addnorm.doctor.trace.statistics import FLAT, Signs
from addnorm.doctor.trace.tensors import tensors

STEPS: dict[str, Callable[..., Any]] = {"mul": torch.mul, "div": torch.div, "sub": torch.sub}


class Recorder(TorchFunctionMode):
    """Files what happens while it is active.

    Tensors are known by identity, in-place writes by their version counter. Operations that
    functions do not show, such as kernels, are filled in by module (see hidden.py).
    """

    def __init__(self, model: nn.Module, guard: Guard, *, still: bool) -> None:
        super().__init__()
        self.model, self.guard, self.still = model, guard, still
        self.graph = Graph()
        self.joins: dict[int, Join] = {}
        self.signs = Signs()
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.calls: dict[str, int] = {}
        """How often each module was called."""
        self.unrecorded: set[str] = set()
        """Weights used while autograd was off, as inside a reentrant checkpoint."""
        self._known: Any = WeakIdKeyDictionary()
        self._modules = {id(module): name for name, module in model.named_modules()}
        self._weights = {id(weight): name for name, weight in model.named_parameters()}
        self._mixtures: set[int] = set()
        """Weighted sums of streams."""
        self._stack = [""]

    # the forward

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the model and file what it does."""
        for tensor in tensors((args, kwargs)):
            floating = tensor.is_floating_point()
            node = self.graph.add(
                "input", (), tuple(tensor.shape), floating=floating, source=floating,
                path="", dtype=tensor.dtype,
            )  # fmt: skip
            self._known[tensor] = node.index
            self.inputs.append(node.index)
        with self._following(), self:
            out = self.model(*args, **kwargs)
        for tensor in tensors(out):
            index = self._known.get(tensor)
            if index is not None and self.graph[index].active:
                self.outputs.append(index)
        return out

    @contextlib.contextmanager
    def _following(self) -> Iterator[None]:
        """Keep the path of the module that is at work."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, with_kwargs=True)
        try:
            with warnings.catch_warnings():  # of hooks on compiled parts, which are looked through
                warnings.filterwarnings("ignore", message="Using `torch.compile")
                yield
        finally:
            before.remove()
            after.remove()
            # torch 2.13 forgets this one, and then warns whoever compiles a module later.
            _global_forward_hooks_with_kwargs.pop(after.id, None)

    def _enter(self, module: nn.Module, args: Any) -> None:
        path = self._modules.get(id(module), self._stack[-1])
        self._stack.append(path)
        self.calls[path] = self.calls.get(path, 0) + 1

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        path = self._stack.pop() if len(self._stack) > 1 else ""
        given = [t for t in tensors((args, kwargs)) if self._active(t)]
        if not given:
            return
        for tensor in tensors(out):
            if not tensor.is_floating_point() or not tensor.requires_grad or self._active(tensor):
                continue
            if not opaque_modules.linked(tensor, given):
                continue
            kind = opaque_modules.norm_kind(module, args, kwargs, tensor)
            operands = tuple(Operand("node", self._known[t]) for t in given)
            self._file(f"hidden_{kind}" if kind else "opaque", operands, tensor=tensor, path=path)

    def node_of(self, tensor: Tensor) -> int | None:
        """The node that made a tensor."""
        return self._known.get(tensor)

    def _active(self, tensor: Tensor) -> bool:
        index = self._known.get(tensor)
        return index is not None and self.graph[index].active

    # one operation

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        check()
        kwargs = kwargs or {}
        raw = spelling(func)
        given = list(tensors((args, kwargs)))
        self.guard.before(raw, args, kwargs)
        if not given:
            return func(*args, **kwargs)
        if raw == "__setitem__":
            func(*args, **kwargs)
            self._written(args)
            return None
        op = canonical(raw)
        if self.still:
            args, kwargs = without_dropout(op, args, kwargs)
        return self._followed(func, Call(raw, op, args, kwargs, given))

    def _followed(self, func: Callable[..., Any], call: Call) -> Any:
        """Carry a call out, and file what it did."""
        op, operands, given = self._plain(call)
        detail = kept(op, call.args, call.kwargs)
        join = self._join(op, operands, given=given) if op in ADDS else None
        streams = stacked(self.graph, op, operands=operands, detail=detail) if op in SUMS else None
        self._observe(call)
        versions = call.versions()
        out = func(*call.args, **call.kwargs)
        made = [out] if isinstance(out, Tensor) else list(tensors(out))
        inplace = call.in_place(out, versions)
        idle = len(made) == 1 and not inplace and any(made[0] is t for t in given)
        nothing = not any(o.kind in ("node", "weight") for o in operands)
        if not made or nothing or (idle and op not in DROPOUT):
            return out  # nothing flows; or a cast that had nothing to do
        if streams is not None and not streams.weighted:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._sum(op, streams, given=given, out=made[0])
            return out
        if streams is not None:
            join = mixture(self.graph, self.joins, found=streams, known=self._mixtures)
        self._file_all(op, operands, made=made, inplace=inplace, detail=detail)
        if streams is not None:
            self._mixtures.add(self._known[made[0]])
        if join is not None:
            self._joined(join, op, out=made[0])
        return out

    def _plain(self, call: Call) -> tuple[str, tuple[Operand, ...], list[Tensor]]:
        """A call as an operation, its operands and its tensors; of a fused sum the last step."""
        with torch._C.DisableTorchFunction():
            sides = spelt(call.op, call.args, call.kwargs, do=self._step)
        if sides is None:
            values = list(plain_arguments(call.args, call.kwargs))
            return call.op, tuple(map(self._operand, values)), call.given
        op = call.op if call.op in ("add", "sub") else "add"
        given = [side for side in sides if isinstance(side, Tensor)]
        return op, tuple(map(self._operand, sides)), given

    def _step(self, op: str, *values: Any) -> Any:
        """One step of a fused sum, carried out beside it and filed."""
        operands = tuple(map(self._operand, values))
        out = STEPS[op](*values)
        if any(o.kind in ("node", "weight") for o in operands):
            self._file(op, operands, tensor=out)
        return out

    def _observe(self, call: Call) -> None:
        """Take the signs of an operation that is about to run."""
        self.signs.attention(call, graph=self.graph, known=self._known, path=self._stack[-1])
        if call.op in FLAT:
            self.signs.squashed(call.op, call.given[0], len(self.graph))

    def _file_all(
        self,
        op: str,
        operands: tuple[Operand, ...],
        *,
        made: list[Tensor],
        inplace: bool,
        detail: dict[str, Any],
    ) -> None:
        node: Node | None = None
        for tensor in made:
            if node is None or node.shape != tuple(tensor.shape):
                node = self._file(op, operands, tensor=tensor, detail=detail)
            else:
                self._known[tensor] = node.index
            if inplace and tensor._is_view() and tensor._base is not None:
                base = tensor._base
                if base in self._known:
                    both = (Operand("node", self._known[base]), Operand("node", node.index))
                    self._file("setitem", both, tensor=base)

    def _file(
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
            floating=tensor.is_floating_point() or tensor.is_complex(),
            path=self._stack[-1] if path is None else path,
            dtype=tensor.dtype,
            detail=detail or {},
            grad=tensor.requires_grad,
        )
        if not node.active and node.op != "embedding":
            node.value = mean_of(tensor)
            node.ahead = 0 if node.learned else begins(tensor)
        self._known[tensor] = node.index
        return node

    def _written(self, args: tuple[Any, ...]) -> None:
        target = args[0]
        places = [t for t in tensors(args[1:2]) if t.dtype == torch.bool]
        operands = [self._operand(t) for t in (target, *places, *tensors(args[2:]))]
        self._file("setitem", tuple(operands), tensor=target)

    def _operand(self, value: Any) -> Operand:
        if not isinstance(value, Tensor):
            return Operand("number", value=float(value))
        index = self._known.get(value)
        if index is not None:
            return Operand("node", index, shape=tuple(value.shape))
        name = self._weights.get(id(value))
        if name is not None and not torch.is_grad_enabled():
            self.unrecorded.add(name)
        if name is not None or isinstance(value, nn.Parameter):
            return Operand(
                "weight", value=mean_of(value), shape=tuple(value.shape), name=name or ""
            )
        shape = tuple(value.shape)
        return Operand("constant", value=mean_of(value), shape=shape, ahead=begins(value))

    # joins

    def _join(self, op: str, operands: tuple[Operand, ...], *, given: list[Tensor]) -> Join | None:
        join = joined(self.graph, self.joins, op=op, operands=operands)
        if join is not None and op not in ("addmm", "baddbmm"):
            self._weigh(join, {self._known[t]: t for t in given if self._active(t)})
        return join

    def _weigh(self, join: Join, values: dict[int, Tensor]) -> None:
        """Take the signs of both sides of a join."""
        one, other = list(values.values())[:2]
        shortcut = values.get(join.shortcut, one)
        branch = values.get(join.branch, other if shortcut is one else one)
        self.signs.operands(join, shortcut, branch=branch, graph=self.graph)

    def _sum(self, op: str, found: Stacked, *, given: list[Tensor], out: Tensor) -> None:
        """A sum over stacked streams, filed as the additions that it is."""
        whole = next(t for t in given if self._known.get(t) is not None and t.dim() > found.axis)
        values = dict(zip(found.parts, whole.unbind(found.axis), strict=True))
        index, total = found.parts[0], values[found.parts[0]]
        for part in found.parts[1:]:
            join = find(self.graph, self.joins, one=index, other=part)
            if join is not None:
                self._weigh(join, {index: total, part: values[part]})
            total = total + values[part]
            last = op != "mean" and part == found.parts[-1]
            index = self._file(
                "add", (_node(index), _node(part)), tensor=out if last else total
            ).index
            if join is not None:
                self._joined(join, "add", out=out if last else total)
        if op == "mean":
            self._file("mul", (_node(index), Operand("number", value=1 / len(values))), tensor=out)

    def _joined(self, join: Join, op: str, *, out: Tensor) -> None:
        index = self._known[out]
        join.node, join.op, join.module = index, op, self._stack[-1]
        self.joins[index] = join
        self.signs.total(join, out, graph=self.graph)


def _node(index: int) -> Operand:
    return Operand("node", index)
