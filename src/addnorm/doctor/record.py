"""The recorder: every operation of one forward filed as a node, every residual join measured."""

import contextlib
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

from addnorm.doctor import hidden
from addnorm.doctor.adds import Stacked, joined, mixture, stacked
from addnorm.doctor.calls import mean_of, plain_arguments, without_dropout
from addnorm.doctor.graph import Graph, Node, Operand
from addnorm.doctor.guard import Guard
from addnorm.doctor.interrupt import check
from addnorm.doctor.joins import Join, find
from addnorm.doctor.leaves import tensors
from addnorm.doctor.ops import ADDS, DROPOUT, SUMS, canonical, kept
from addnorm.doctor.signs import FLAT, Signs

INPLACE = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")


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
            if not hidden.linked(tensor, given):
                continue
            kind = hidden.norm_kind(module, args, kwargs, tensor)
            operands = tuple(Operand("node", self._known[t]) for t in given)
            self._file(f"hidden_{kind}" if kind else "opaque", operands, tensor, path=path)

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
        raw = getattr(func, "__name__", str(func))
        op = canonical(raw)
        given = list(tensors((args, kwargs)))
        self.guard.before(raw, args, kwargs)
        if not given:
            return func(*args, **kwargs)
        if raw == "__setitem__":
            func(*args, **kwargs)
            self._written(args, given)
            return None
        if self.still:
            args, kwargs = without_dropout(op, args, kwargs)
        operands = tuple(self._operand(a) for a in plain_arguments(args, kwargs))
        detail = kept(op, args, kwargs)
        join = self._join(op, operands, given, kwargs.get("alpha", 1)) if op in ADDS else None
        streams = stacked(self.graph, op, operands, detail) if op in SUMS else None
        self._observe(op, args, kwargs, given)
        before = None if raw == "__get__" else [t._version for t in given if not t.is_inference()]
        out = func(*args, **kwargs)
        made = [out] if isinstance(out, Tensor) else list(tensors(out))
        inplace = _in_place(raw, out, given, before)
        idle = len(made) == 1 and not inplace and any(made[0] is t for t in given)
        nothing = not any(o.kind in ("node", "weight") for o in operands)
        if not made or nothing or (idle and op not in DROPOUT):
            return out  # nothing flows; or a cast that had nothing to do
        if streams is not None and not streams.weighted:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                self._sum(op, streams, given, made[0])
            return out
        if streams is not None:
            join = mixture(self.graph, self.joins, streams, self._mixtures)
        self._file_all(op, operands, made, inplace, detail)
        if streams is not None:
            self._mixtures.add(self._known[made[0]])
        if join is not None:
            self._joined(join, op, made[0])
        return out

    def _observe(
        self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor]
    ) -> None:
        """Take the signs of an operation that is about to run."""
        self.signs.attention(op, args, kwargs, self.graph, self._known, self._stack[-1])
        if op in FLAT:
            self.signs.squashed(op, given[0], len(self.graph))

    def _file_all(
        self,
        op: str,
        operands: tuple[Operand, ...],
        made: list[Tensor],
        inplace: bool,
        detail: dict[str, Any],
    ) -> None:
        node: Node | None = None
        for tensor in made:
            if node is None or node.shape != tuple(tensor.shape):
                node = self._file(op, operands, tensor, detail=detail)
            else:
                self._known[tensor] = node.index
            if inplace and tensor._is_view() and tensor._base is not None:
                base = tensor._base
                if base in self._known:
                    both = (Operand("node", self._known[base]), Operand("node", node.index))
                    self._file("setitem", both, base)

    def _file(
        self,
        op: str,
        operands: tuple[Operand, ...],
        tensor: Tensor,
        *,
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
        )
        if not node.active and node.op != "embedding":
            node.value = mean_of(tensor)
        self._known[tensor] = node.index
        return node

    def _written(self, args: tuple[Any, ...], given: list[Tensor]) -> None:
        target = args[0]
        operands = [self._operand(target)] + [self._operand(t) for t in tensors(args[2:])]
        self._file("setitem", tuple(operands), target)

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
        return Operand("constant", value=mean_of(value), shape=tuple(value.shape))

    # joins

    def _join(
        self, op: str, operands: tuple[Operand, ...], given: list[Tensor], alpha: float
    ) -> Join | None:
        join = joined(self.graph, self.joins, op, operands, alpha)
        if join is not None and op not in ("addmm", "baddbmm"):
            self._weigh(join, {self._known[t]: t for t in given if self._active(t)})
        return join

    def _weigh(self, join: Join, values: dict[int, Tensor]) -> None:
        """Take the signs of both sides of a join."""
        one, other = list(values.values())[:2]
        shortcut = values.get(join.shortcut, one)
        branch = values.get(join.branch, other if shortcut is one else one)
        self.signs.operands(join, shortcut, branch, self.graph)

    def _sum(self, op: str, found: Stacked, given: list[Tensor], out: Tensor) -> None:
        """A sum over stacked streams, filed as the additions that it is."""
        whole = next(t for t in given if self._known.get(t) is not None and t.dim() > found.axis)
        values = dict(zip(found.parts, whole.unbind(found.axis), strict=True))
        index, total = found.parts[0], values[found.parts[0]]
        for part in found.parts[1:]:
            join = find(self.graph, self.joins, index, part)
            if join is not None:
                self._weigh(join, {index: total, part: values[part]})
            total = total + values[part]
            last = op != "mean" and part == found.parts[-1]
            index = self._file("add", (_node(index), _node(part)), out if last else total).index
            if join is not None:
                self._joined(join, "add", out if last else total)
        if op == "mean":
            self._file("mul", (_node(index), Operand("number", value=1 / len(values))), out)

    def _joined(self, join: Join, op: str, out: Tensor) -> None:
        index = self._known[out]
        join.node, join.op, join.module = index, op, self._stack[-1]
        self.joins[index] = join
        self.signs.total(join, out, self.graph)


def _in_place(raw: str, out: Any, given: list[Tensor], before: list[int] | None) -> bool:
    """Whether an operation wrote to what it was given: by its name, or by the version counters."""
    if raw in INPLACE or (raw.endswith("_") and not raw.endswith("__")):
        return True
    if before is None or not isinstance(out, Tensor):
        return False
    now = [t._version for t in given if not t.is_inference()]
    return now != before and any(out is t for t in given)


def _node(index: int) -> Operand:
    return Operand("node", index)
