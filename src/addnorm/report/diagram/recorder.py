"""Step 1: record the forward pass of a real stack as a list of operations.

`StackRecorder` is a `TorchFunctionMode`, so it sees every call of a torch function. Norms and
sub-layers are recorded as one operation each: forward hooks hide the calls inside of them. For one
layer of Post-LN, `x = N(x + f(x))`, the record is

    layer  phase     operation             reads      makes
    0      read 0    sublayer (self)       x          v1
    0      write 0   add                   x, v1      v2
    0      write 0   norm                  v2         v3
    0      read 1    sublayer (ffn)        v3         v4
    0      write 1   add                   v3, v4     v5
    0      write 1   norm                  v5         v6

A `Value` is a tensor at one moment. The recorder identifies tensors by `id` and keeps all of them
alive, because Python may give the id of a freed tensor to a new one. An in-place operation makes a
new `Value` of the same tensor.

The recorder sees only torch functions. `Record.replay` repeats the recorded operations on another
input; `blocks.py` compares the result with that of the stack, and so detects computations that the
recorder could not see, such as those in NumPy.
"""

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
"""Values of `Op.layer` before the first layer and after the last one."""


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor at one moment of the forward pass."""

    shape: tuple[int, ...]
    name: str = ""
    """Name of a parameter, buffer or input of the stack; empty for intermediate results."""
    learned: bool = False
    """Whether it is a parameter."""
    number: float | None = None
    """The value of a tensor with one element."""


@dataclass(frozen=True, eq=False)
class Op:
    """One recorded operation: a torch function, a norm or a sub-layer."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    """Positional arguments, with every tensor replaced by its `Value`."""
    kwargs: dict[str, Any]
    outs: tuple[Value, ...]
    layer: int
    """Index of the layer, or OPEN, or CLOSE."""
    phase: str
    """Method of the wiring and site, such as "write 3"; a sub-layer has the phase of its read."""

    @property
    def ins(self) -> tuple[Value, ...]:
        """The values among the arguments."""
        return tuple(leaf for leaf in tree_leaves((self.args, self.kwargs)) if _is_value(leaf))


@dataclass(frozen=True)
class Record:
    """The operations of a stack between its input and its output."""

    source: Value
    ops: tuple[Op, ...]
    states: tuple[tuple[Value, ...], ...]
    """The wiring's state at the start of each layer, and at the end of the last one."""
    verb_states: tuple[tuple[Value, ...], ...]
    """The state after each read and each write."""
    result: Value
    context: dict[str, Value] = field(default_factory=dict)
    """Other inputs of the stack, such as the memory of a decoder, by name."""
    constants: dict[Value, Tensor] = field(default_factory=dict, repr=False)
    """Tensors that no recorded operation made: inputs, parameters, buffers, literals."""

    def replay(self, x: Tensor) -> Tensor:
        """Run the recorded operations on another input.

        The result differs from that of the stack if an operation on `x` was missed.
        """
        tensors: dict[Value, Any] = dict(self.constants)
        tensors[self.source] = x
        for op in self.ops:
            args, kwargs = tree_map(
                lambda leaf: tensors[leaf] if _is_value(leaf) else leaf, (op.args, op.kwargs)
            )
            outs = [leaf for leaf in tree_leaves(op.func(*args, **kwargs)) if _is_tensor(leaf)]
            tensors.update(zip(op.outs, outs, strict=True))
        return tensors[self.result]


def record(stack: Stack, x: Tensor, **context: Tensor) -> Record:
    """Run a stack and return the record of its operations.

    Args:
        stack: a stack in evaluation mode
        x: (B, L, D) input
        context: other inputs, such as `memory`
    """
    recorder = StackRecorder(stack)
    source = recorder.add_constant(x, name="x")
    context_values = {
        name: recorder.add_constant(tensor, name=name) for name, tensor in context.items()
    }
    with torch.no_grad(), recorder.module_hooks(stack), recorder:
        y = stack._run_sites(x, None, None, dict(context), recorder.step)
    return Record(
        source,
        tuple(recorder.ops),
        tuple(recorder.states),
        tuple(recorder.verb_states),
        recorder.get_value(y),
        context_values,
        recorder.constants,
    )


class StackRecorder(TorchFunctionMode):
    """Records torch functions, norms and sub-layers while it is active."""

    def __init__(self, stack: Stack) -> None:
        super().__init__()
        self.ops: list[Op] = []
        self.states: list[tuple[Value, ...]] = []
        self.verb_states: list[tuple[Value, ...]] = []
        self.constants: dict[Value, Tensor] = {}
        self.layer, self.phase = OPEN, "open"
        self._depth = 0  # nesting depth of calls that are recorded as one operation
        # The tensor is stored only to keep it alive, so that its id stays unique.
        self._values_by_id: dict[int, tuple[Tensor, Value]] = {}
        for name, parameter in stack.named_parameters():
            self.add_constant(parameter, name=name.removeprefix("wiring."), learned=True)
        for name, buffer in stack.named_buffers():
            self.add_constant(buffer, name=name.removeprefix("wiring."))

    def add_constant(self, tensor: Tensor, *, name: str = "", learned: bool = False) -> Value:
        """Register a tensor that no recorded operation made."""
        value = Value(tuple(tensor.shape), name, learned, _scalar_value(tensor))
        self._values_by_id[id(tensor)] = (tensor, value)
        self.constants[value] = tensor
        return value

    def get_value(self, tensor: Tensor) -> Value:
        """Return the current value of a tensor; an unknown tensor becomes a constant."""
        known = self._values_by_id.get(id(tensor))
        return known[1] if known else self.add_constant(tensor)

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
        """Run one site through `read` and `write` of the wiring, not through its fused step."""
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
        """Record norms of the wiring and sub-layers of the stack as one operation each."""
        norms: list[nn.Module] = [m for m in stack.wiring.modules() if isinstance(m, Norm)]
        with ExitStack() as hooks:
            for module in (*norms, *stack.sublayers):
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
        """Record the state at a layer boundary, with a new tensor for each entry.

        Two entries may be the same tensor (a wiring that starts with `x, x`). As views they are two
        values, so that each entry can be followed through the next layer.
        """
        views = tuple(leaf.view_as(leaf) for leaf in state)
        self.states.append(tuple(self.get_value(leaf) for leaf in views))
        return views

    def _record_op(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        outs = [leaf for leaf in tree_leaves(out) if _is_tensor(leaf)]
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if _is_tensor(leaf)]
        makes_nothing = all(any(leaf is other for other in inputs) for leaf in outs)
        if makes_nothing and not _is_in_place(func):  # such as x.size() or a no-op x.contiguous()
            return
        call_args, call_kwargs = tree_map(
            lambda leaf: self.get_value(leaf) if _is_tensor(leaf) else leaf, (args, kwargs)
        )
        values = []
        for leaf in outs:
            values.append(Value(tuple(leaf.shape), number=_scalar_value(leaf)))
            self._values_by_id[id(leaf)] = (leaf, values[-1])
        self.ops.append(Op(func, call_args, call_kwargs, tuple(values), self.layer, self.phase))


def _is_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def _scalar_value(tensor: Tensor) -> float | None:
    return float(tensor.detach()) if tensor.numel() == 1 else None


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, Tensor)


def _is_value(leaf: object) -> bool:
    return isinstance(leaf, Value)
