"""What a layer costs in a deep stack, beside what it costs in a shallow one.

A stack of 96 layers does the work of sixteen of 6. Where it takes as long, and keeps as much for
the backward, cost is linear in depth. Wirings that look back at all earlier layers cannot be:

DLCL, DenseFormer, AttnRes: layer l reads l tensors of the stream; in all D^2 / 2 for D layers
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
QUADRATIC = {"dlcl", "denseformer", "attn_res"}
"""Have no goal: their law is another one."""
LINEAR_GOAL = 1 / 1.1
"""A layer costs at most a tenth more."""


def benches() -> Iterator[Benchmark]:
    """Time and memory of every wiring."""
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
    """A forward and backward of as many layers; kept: the bytes that wait for the backward."""
    deep, shallow = (_build_stack(wiring, depth) for depth in (DEEP, SHALLOW))
    x = torch.randn(*TOKENS, DIM)
    if memory:
        return {
            OURS: lambda: saved_bytes(deep, x),
            PEER: lambda: DEEP // SHALLOW * saved_bytes(shallow, x),
        }

    def many() -> None:
        for _ in range(DEEP // SHALLOW):
            _forward_backward(shallow, x)

    return {OURS: partial(_forward_backward, deep, x), PEER: many}


def saved_bytes(stack: Encoder, x: Tensor) -> int:
    """Bytes of the storages that a forward keeps for the backward, but for weights and input."""
    known = {each.untyped_storage().data_ptr() for each in (x, *stack.parameters())}
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = stack(x)  # alive until all is counted, so that no address is used twice
    total = sum(size for place, size in found.items() if place not in known)
    del out
    return total


def _build_stack(wiring: str, depth: int) -> Encoder:
    stack = Encoder(dim=DIM, depth=depth, heads=4, wiring=wiring)
    stack.calibrate(torch.randn(*TOKENS, DIM))
    return stack


def _forward_backward(stack: Encoder, x: Tensor) -> None:
    stack(x).square().mean().backward()
    stack.zero_grad(set_to_none=True)
