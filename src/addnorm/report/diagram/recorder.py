"""Recording a forward of a real stack: every operation on tensors, norms and sub-layers whole."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from addnorm.norms.base import Norm
from addnorm.stacks.stack import Stack
from addnorm.wirings.base import Branch, State, Wiring

OPEN, CLOSE = -1, -2
"""Numbers of the two places outside of every layer."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor as it was at one moment of the forward."""

    shape: tuple[int, ...]
    name: str = ""
    """Name of a parameter or buffer of the stack."""
    learned: bool = False
    """Whether it is a parameter."""
    number: float | None = None
    """What a constant of one element holds."""


@dataclass(frozen=True, eq=False)
class Op:
    """One thing that happened: a function, a norm, a sub-layer, or a state handed on."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    """Arguments as they were given, every tensor replaced by its value."""
    kwargs: dict[str, Any]
    outs: tuple[Value, ...]
    layer: int
    """Layer in which it happened, or OPEN, or CLOSE."""
    phase: str
    """Verb and site; sub-layers stand between two phases."""

    @property
    def ins(self) -> tuple[Value, ...]:
        """The values among its arguments."""
        return tuple(leaf for leaf in tree_leaves((self.args, self.kwargs)) if _is_value(leaf))


@dataclass(frozen=True)
class Record:
    """What happened between the embeddings and the head."""

    source: Value
    ops: tuple[Op, ...]
    states: tuple[tuple[Value, ...], ...]
    """The state as it enters each layer, and at last the head."""
    verb_states: tuple[tuple[Value, ...], ...]
    """The state after each read and each write."""
    result: Value
    context: dict[str, Value] = field(default_factory=dict)
    """What else the stack was called with."""
    constants: dict[Value, Tensor] = field(default_factory=dict, repr=False)
    """Tensors that no recorded operation made."""

    def replay(self, x: Tensor) -> Tensor:
        """The recorded operations on another input: the stack's own answer if none was missed."""
        made: dict[Value, Any] = dict(self.constants)
        made[self.source] = x
        for op in self.ops:
            args, kwargs = tree_map(
                lambda leaf: made[leaf] if _is_value(leaf) else leaf, (op.args, op.kwargs)
            )
            outs = [leaf for leaf in tree_leaves(op.func(*args, **kwargs)) if _is_tensor(leaf)]
            made.update(zip(op.outs, outs, strict=True))
        return made[self.result]


def record(stack: Stack, x: Tensor, **context: Tensor) -> Record:
    """Run the stack on `x` through the four verbs of its wiring, and write down what happens."""
    recorder = StackRecorder(stack)
    source = recorder.add_constant(x, name="x")
    given = {name: recorder.add_constant(tensor, name=name) for name, tensor in context.items()}
    with torch.no_grad(), recorder.module_hooks(stack), recorder:
        y = stack._run_sites(x, None, None, dict(context), recorder.step)
    return Record(
        source,
        tuple(recorder.ops),
        tuple(recorder.states),
        tuple(recorder.verb_states),
        recorder.get_value(y),
        given,
        recorder.constants,
    )


class StackRecorder(TorchFunctionMode):
    """Follows tensors by identity; keeps each of them alive, so that no identity is used twice."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.states: list[tuple[Value, ...]] = []
        self.verb_states: list[tuple[Value, ...]] = []
        self.constants: dict[Value, Tensor] = {}
        self.layer, self.phase = OPEN, "open"
        self._depth = 0  # how deep inside norms and sub-layers
        self._values_by_id: dict[int, tuple[Tensor, Value]] = {}
        for name, parameter in stack.named_parameters():
            self.add_constant(parameter, name=name.removeprefix("wiring."), learned=True)
        for name, buffer in stack.named_buffers():
            self.add_constant(buffer, name=name.removeprefix("wiring."))

    def add_constant(self, tensor: Tensor, *, name: str = "", learned: bool = False) -> Value:
        """A tensor that was there before, or that nobody saw being made."""
        value = Value(tuple(tensor.shape), name, learned, _scalar_value(tensor))
        self._values_by_id[id(tensor)] = (tensor, value)
        self.constants[value] = tensor
        return value

    def get_value(self, tensor: Tensor) -> Value:
        """The value a tensor holds now."""
        seen = self._values_by_id.get(id(tensor))
        return seen[1] if seen else self.add_constant(tensor)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self._depth:
            return func(*args, **(kwargs or {}))
        self._depth += 1
        try:
            out = func(*args, **(kwargs or {}))
        finally:
            self._depth -= 1
        self._record_op(func, args, kwargs or {}, out)
        return out

    def step(self, wiring: Wiring, state: State, site: Any, branch: Branch) -> State:
        """The step of every wiring by its verbs; a fused one must give the same."""
        if site.index == 0:
            state = self._copy_state(state)
        self.layer, self.phase = site.layer, f"read {site.index}"
        h, state = wiring.read(state, site)
        self.verb_states.append(tuple(self.get_value(leaf) for leaf in state))
        returned = branch(h)
        self.phase = f"write {site.index}"
        state = wiring.write(state, site, returned)
        self.verb_states.append(tuple(self.get_value(leaf) for leaf in state))
        if site.last:
            state = self._copy_state(state)
        if site.index == len(wiring.plan.sites) - 1:
            self.layer, self.phase = CLOSE, "close"
        return state

    @contextmanager
    def module_hooks(self, stack: Stack) -> Iterator[None]:
        """Norms of the wiring and sub-layers of the stack are taken whole."""
        whole: list[nn.Module] = [m for m in stack.wiring.modules() if isinstance(m, Norm)]
        with ExitStack() as hooks:
            for module in (*whole, *stack.sublayers):
                for handle in (
                    module.register_forward_pre_hook(self._enter_module),
                    module.register_forward_hook(self._leave_module, with_kwargs=True),
                ):
                    hooks.callback(handle.remove)
            yield

    def _enter_module(self, module: nn.Module, args: Any) -> None:
        self._depth += 1

    def _leave_module(self, module: nn.Module, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._record_op(module, args, kwargs, out)

    def _copy_state(self, state: State) -> State:
        """The state under fresh identities: two entries that are one tensor are two from here."""
        carried = tuple(leaf.view_as(leaf) for leaf in state)
        self.states.append(tuple(self.get_value(leaf) for leaf in carried))
        return carried

    def _record_op(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        outs = [leaf for leaf in tree_leaves(out) if _is_tensor(leaf)]
        given = [leaf for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)]
        same = all(any(leaf is other for other in given) for leaf in outs)
        if same and not _is_in_place(func):  # nothing came out, or what went in
            return
        held = tree_map(
            lambda leaf: self.get_value(leaf) if _is_tensor(leaf) else leaf, (args, kwargs)
        )
        made = []
        for leaf in outs:
            made.append(Value(tuple(leaf.shape), number=_scalar_value(leaf)))
            self._values_by_id[id(leaf)] = (leaf, made[-1])
        self.ops.append(Op(func, held[0], held[1], tuple(made), self.layer, self.phase))


def _is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def _scalar_value(tensor: Tensor) -> float | None:
    return float(tensor.detach()) if tensor.numel() == 1 else None


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, Tensor)


def _is_value(leaf: object) -> bool:
    return isinstance(leaf, Value)
