"""Cost of a layer in a deep stack relative to a shallow stack.

One stack of 96 layers does the work of sixteen stacks of 6 layers. If both take the same time and
save the same memory for the backward, the cost is linear in depth. Wirings that read all earlier
layers (DLCL, DenseFormer, AttnRes) are quadratic: layer l reads l tensors, D^2 / 2 in D layers.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from addnorm.bench.base import OURS, Benchmark, Candidates
from addnorm.stacks import Encoder
from addnorm.wirings import registry

SHALLOW, DEEP, DIM, TOKENS = 6, 96, 64, (4, 32)
PEER = f"{DEEP // SHALLOW} stacks of {SHALLOW} layers"
QUADRATIC = {"dlcl", "denseformer", "attn_res", "mudd"}
"""Wirings whose cost is quadratic in depth; they have no goal."""
LINEAR_GOAL = 1 / 1.1
"""A layer of the deep stack costs at most a tenth more."""


def make_benchmarks() -> Iterator[Benchmark]:
    """Yield a time and a memory benchmark for every wiring."""
    for name in registry:
        goals = {} if name in QUADRATIC else {PEER: LINEAR_GOAL}
        yield Benchmark(f"depth {name}, time", partial(build_candidates, name), goals, rounds=5)
        yield Benchmark(
            f"depth {name}, memory",
            partial(build_candidates, name, memory=True),
            goals,
            is_memory=True,
        )


def build_candidates(wiring: str, *, memory: bool = False) -> Candidates:
    """Build candidates that run, or measure the saved bytes of, the same number of layers."""
    deep, shallow = (_build_stack(wiring, depth) for depth in (DEEP, SHALLOW))
    x = torch.randn(*TOKENS, DIM)
    if memory:
        return {
            OURS: lambda: saved_bytes(deep, x),
            PEER: lambda: DEEP // SHALLOW * saved_bytes(shallow, x),
        }

    def run_shallow() -> None:
        for _ in range(DEEP // SHALLOW):
            _forward_backward(shallow, x)

    return {OURS: partial(_forward_backward, deep, x), PEER: run_shallow}


def saved_bytes(stack: Encoder, x: Tensor) -> int:
    """Return the bytes that a forward saves for the backward, without weights and input."""
    excluded = {each.untyped_storage().data_ptr() for each in (x, *stack.parameters())}
    sizes: dict[int, int] = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        out = stack(x)  # keep the graph alive while counting, so that no address is reused
    total = sum(size for address, size in sizes.items() if address not in excluded)
    del out
    return total


def _build_stack(wiring: str, depth: int) -> Encoder:
    stack = Encoder(dim=DIM, depth=depth, heads=4, wiring=wiring)
    stack.calibrate(torch.randn(*TOKENS, DIM))
    return stack


def _forward_backward(stack: Encoder, x: Tensor) -> None:
    stack(x).square().mean().backward()
    stack.zero_grad(set_to_none=True)
