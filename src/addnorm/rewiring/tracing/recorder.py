"""Recorder of one forward pass as aten operations.

The doctor's recorder names the functions that a model calls; an exact rewriting of weights needs
every axis and every operand, so this one records what these functions are made of. A norm module
is one operation, whatever it computes inside.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from addnorm.rewiring.batches import Batch
from addnorm.rewiring.losses import evaluation

NORM = "norm"
"""Operation of a whole norm module."""


@dataclass(eq=False)
class Value:
    """A tensor at one moment of the forward pass."""

    tensor: Tensor
    op: "Op | None" = None
    """Operation that made it; None for weights, buffers, inputs and constants."""
    weight: str | None = None
    """Name of the parameter or buffer that it is."""
    uses: list["Op"] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.tensor.shape)


@dataclass(eq=False)
class Op:
    """Call of a torch operation, or of a norm module as a whole, with the module that made it."""

    name: str
    """Name without overload, such as add or addmm; `NORM` for a norm module."""
    args: tuple[Any, ...]
    """Arguments, tensors as `Value`."""
    kwargs: dict[str, Any]
    path: str
    """Path of the innermost module that executes it."""
    outputs: list[Value] = field(default_factory=list)

    @property
    def inputs(self) -> list[Value]:
        """Values among the arguments."""
        leaves = tree_leaves((self.args, self.kwargs), is_leaf=lambda x: isinstance(x, Value))
        return [leaf for leaf in leaves if isinstance(leaf, Value)]


class Recorder(TorchDispatchMode):
    """Records the operations of a model.

    Args:
        model: model to run, in float64, so that no kernel of this package hides operations
        norms: paths of the norm modules
    """

    def __init__(self, model: nn.Module, norms: Iterable[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model, self.norms = model, set(norms)
        self.ops: list[Op] = []
        self.outputs: set[int] = set()
        """Identities of values that the model returns."""
        self._values: dict[int, Value] = {}
        self._keep: list[Tensor] = []  # identities of tensors are reused once they are freed
        self._paths: list[str] = []
        self._norm_inputs: list[Value] = []
        named = (*model.named_parameters(), *model.named_buffers())
        for name, tensor in named:
            self._values[id(tensor)] = Value(tensor, weight=name)

    def run(self, batch: Batch) -> None:
        """Run the model once."""
        handles = []
        for path, module in self.model.named_modules():
            handles.append(
                module.register_forward_pre_hook(
                    lambda m, args, kwargs, path=path: self._enter(path, args, kwargs),
                    with_kwargs=True,
                )
            )
            handles.append(
                module.register_forward_hook(
                    lambda m, args, out, path=path: self._leave(path, out), always_call=False
                )
            )
        try:
            with evaluation(self.model), self:
                output = batch.call(self.model)
        finally:
            for handle in handles:
                handle.remove()
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and id(leaf) in self._values:
                self.outputs.add(id(self._values[id(leaf)]))

    def _enter(self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._paths.append(path)
        if path in self.norms and not self._norm_inputs:
            tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
            self._norm_inputs.append(self._value(tensors[0]))

    def _leave(self, path: str, output: Any) -> None:
        self._paths.pop()
        if path in self.norms and self._norm_inputs:
            source = self._norm_inputs.pop()
            op = Op(NORM, (source,), {}, path)
            self._add(op, [output])

    def _value(self, tensor: Tensor) -> Value:
        value = self._values.get(id(tensor))
        if value is None or value.tensor is not tensor:
            value = self._values[id(tensor)] = Value(tensor)
        return value

    def _add(self, op: Op, outputs: list[Any]) -> None:
        for value in op.inputs:
            value.uses.append(op)
        for tensor in outputs:
            if isinstance(tensor, Tensor):
                self._keep.append(tensor)
                op.outputs.append(Value(tensor, op))
                self._values[id(tensor)] = op.outputs[-1]
        self.ops.append(op)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self._norm_inputs:
            return out  # inside a norm module
        name = func.overloadpacket.__name__

        def to_value(each: Any) -> Any:
            if isinstance(each, Tensor):
                return self._value(each)
            if isinstance(each, list | tuple):
                return [to_value(part) for part in each]
            return each

        op = Op(
            name.rstrip("_") if not name.startswith("_") else name,
            tuple(to_value(each) for each in args),
            {key: to_value(each) for key, each in kwargs.items()},
            self._paths[-1] if self._paths else "",
        )
        outputs = [each for each in tree_leaves(out) if isinstance(each, Tensor)]
        written = [a for a, s in zip(args, func._schema.arguments, strict=False) if _is_written(s)]
        self._add(op, outputs)
        for tensor in written:
            self._forget_views(tensor)
        return out

    def _forget_views(self, written: Any) -> None:
        """Make other tensors of the same memory unknown after one of them was written to."""
        if not isinstance(written, Tensor) or written.numel() == 0:
            return
        storage = written.untyped_storage().data_ptr()
        for tensor in self._keep:
            same = tensor is not written and tensor.numel() > 0
            if same and tensor.untyped_storage().data_ptr() == storage:
                old = self._values[id(tensor)]
                op = Op("overwritten", (old,), {}, self._paths[-1] if self._paths else "")
                self._add_overwritten(op, tensor)

    def _add_overwritten(self, op: Op, tensor: Tensor) -> None:
        op.outputs.append(Value(tensor, op))
        self._values[id(tensor)] = op.outputs[-1]
        for value in op.inputs:
            value.uses.append(op)
        self.ops.append(op)


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and bool(argument.alias_info.is_write)


def record(model: nn.Module, batch: Batch, norms: Iterable[str]) -> Recorder:
    """Run a float64 model once and return its operations."""
    recorder = Recorder(model, norms)
    recorder.run(batch)
    return recorder


def live_ops(recorder: Recorder) -> set[int]:
    """Return the identities of operations whose results reach an output of the model."""
    live: set[int] = set()
    for op in reversed(recorder.ops):
        needed = any(
            id(value) in recorder.outputs or any(id(use) in live for use in value.uses)
            for value in op.outputs
        )
        if needed:
            live.add(id(op))
    return live


def is_float(value: Value) -> bool:
    """Return whether a value is floating point."""
    return value.tensor.is_floating_point() or value.tensor.is_complex()


def number_of(argument: Any) -> float | None:
    """Return a plain number, or that of a tensor without axes; None otherwise."""
    if isinstance(argument, bool):
        return None
    if isinstance(argument, int | float):
        return float(argument)
    if isinstance(argument, Value) and argument.op is None and argument.tensor.ndim == 0:
        return float(argument.tensor) if not argument.tensor.is_meta else None
    return None
