"""Memory and FLOPs of one training step, by running it on tensors that have sizes only.

`StorageTracker` counts the bytes of all tensors that are alive, as an allocator does. What a layer
keeps for the backward is what autograd really saves: streams of hyper-connections and histories of
layers count, and recomputation shows.
"""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from addnorm.kernels.cross_entropy import chunk_rows
from addnorm.kernels.dry_run import dry_run
from addnorm.models import Config, Model, build

DEVICE = "cpu"
"""Device of the tensors without values; its fused attention saves what that of a GPU saves."""


@dataclass(frozen=True)
class StepTrace:
    """One training step of a model on one device, without optimizer and weights."""

    activation_bytes: int
    """Bytes alive after the forward pass, besides weights and inputs."""
    peak_bytes: int
    """Largest number of bytes alive besides weights, with gradients as they appear."""
    flops: int
    """FLOPs of forward and backward."""


class StorageTracker(TorchDispatchMode):
    """Bytes of all storages that operations in the block create, while they are alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.collects = False
        """Whether to free cycles of references before a peak is noted: recomputation leaves some,
        and when Python frees them is a matter of chance."""
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        inputs = {
            each.untyped_storage()._cdata
            for each in args
            if isinstance(each, Tensor) and each.layout == torch.strided
        }
        result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, lambda each: self._add(each, inputs), result)
        return result

    def _add(self, tensor: Tensor, inputs: set[int]) -> Tensor:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known and key not in inputs:
            self._known.add(key)
            self.live += size
            if self.live > self.peak and self.collects:
                gc.collect()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._free, key, size)
        return tensor

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def trace_step(
    config: Config, *, batch: int, length: int, dtype: torch.dtype, recompute: bool
) -> StepTrace:
    """Run one step of a model on tensors without values.

    Args:
        config: the model, in training mode
        batch: sequences
        length: tokens of a sequence
        dtype: of weights and activations
        recompute: whether sub-layers are recomputed in the backward
    """
    mode = FakeTensorMode()
    model = build(config, device="meta").train()
    _remove_values(model, mode, dtype)
    for stack in model.stacks:
        stack.recompute = recompute
    tracker, counter = StorageTracker(), FlopCounterMode(display=False)
    with mode, dry_run():
        inputs, targets = _make_inputs(config, batch, length, dtype)
        with counter, tracker:
            loss = _compute_loss(model, inputs, targets)
            activation_bytes = tracker.live
            tracker.collects = recompute
            with _young_objects_only() if recompute else nullcontext():
                loss.backward()
    flops = counter.get_total_flops() + _repeated_flops(config, batch * length)
    return StepTrace(activation_bytes, tracker.peak, flops)


@contextmanager
def _young_objects_only() -> Iterator[None]:
    """Let the garbage collector look at objects of the block only: the others may be millions."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _compute_loss(model: Model, inputs: tuple[Any, ...], targets: Tensor) -> Tensor:
    if model.returns_hidden_states:  # an encoder without a head, such as the preset bert
        output: Tensor = model(*inputs)
        return output.sum()
    sums = model.loss(targets, *inputs)
    return sums.loss / sums.num_targets


def _remove_values(model: nn.Module, mode: FakeTensorMode, dtype: torch.dtype) -> None:
    """Replace parameters and buffers of a model on the meta device by fake tensors."""
    known: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is None:
                    continue
                if id(tensor) not in known:
                    meta = tensor.detach()
                    meta = meta.to(dtype) if meta.is_floating_point() else meta
                    fake: Any = FakeTensor(mode, meta, torch.device(DEVICE))
                    if isinstance(tensor, nn.Parameter):
                        fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
                    known[id(tensor)] = fake
                tensors[name] = known[id(tensor)]


def _make_inputs(
    config: Config, batch: int, length: int, dtype: torch.dtype
) -> tuple[tuple[Any, ...], Tensor]:
    """Return inputs of the model and targets of its loss."""
    if config.image is not None:
        shape = (batch, config.channels, config.image, config.image)
        inputs: tuple[Any, ...] = (torch.empty(shape, dtype=dtype),)
    else:
        ids = torch.empty(batch, length, dtype=torch.int64)
        inputs = (ids, ids) if config.kind == "seq2seq" else (ids,)
        inputs = (ids, 1) if config.kind == "prefix_lm" else inputs
    if config.kind == "classifier":
        shape_of_targets = (batch, length) if config.pooling == "none" else (batch,)
        return inputs, torch.empty(shape_of_targets, dtype=torch.int64)
    return inputs, torch.empty(batch, length, dtype=torch.int64)


def _repeated_flops(config: Config, tokens: int) -> int:
    """Return the FLOPs of the chunks of the output layer that a dry run leaves out."""
    if config.kind not in ("lm", "seq2seq") or config.vocab is None:
        return 0
    rest = max(0, tokens - chunk_rows(config.vocab, DEVICE))
    return 3 * 2 * rest * config.vocab * config.dim


def count_parameters(model: Model) -> int:
    """Return the number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())
