"""Checks that need a GPU: what the tests of this project can only imitate on a CPU.

Each function also runs on a CPU, where it says what it leaves out.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from addnorm.kernels import liger, norm
from addnorm.kernels.add_norm.ops import add_norm_with_sum
from addnorm.kernels.add_norm.reference import NormParams
from addnorm.kernels.attention.varlen import SequenceOffsets, can_use_varlen, varlen_attention
from addnorm.kernels.cross_entropy import linear_cross_entropy
from addnorm.kernels.host_copies import to_device
from addnorm.models import build
from addnorm.selftest.checks import (
    BFLOAT16_BOUND,
    FLOAT32_BOUND,
    VOCAB,
    CheckFailure,
    relative_difference,
    require_bound,
)
from addnorm.tasks import Objective, get_task
from addnorm.train.optimizers.base import make_optimizer
from addnorm.wirings import registry as wirings

CPU = torch.device("cpu")
COMPILED_WIRINGS = ("post_ln", "pre_ln", "hyper")
"""Wirings that are compiled; each takes seconds."""


def check_attention(device: torch.device) -> str:
    """Compare attention over packed sequences with float64 on the CPU, with gradients."""
    expected, done = _attend(CPU, torch.float64), []
    for dtype, bound in ((torch.float32, FLOAT32_BOUND), (torch.bfloat16, BFLOAT16_BOUND)):
        name = str(dtype).removeprefix("torch.")
        if not can_use_varlen(*[torch.empty(1, 1, 32, dtype=dtype, device=device)] * 2):
            done.append(f"{name} is padded here")
            continue
        difference = relative_difference(_attend(device, dtype), expected)
        require_bound(difference, bound, name)
        done.append(f"{name} {difference:.1e}")
    return ", ".join(done)


def check_fused(device: torch.device) -> str:
    """Compare fused norms and losses with float64 on the CPU, with gradients."""
    worst = 0.0
    for name, run in _FUSED.items():
        expected, found = run(CPU, torch.float64), run(device, torch.float32)
        difference = relative_difference(found, expected)
        require_bound(difference, FLOAT32_BOUND, name)
        worst = max(worst, difference)
    used = liger.can_use_liger(torch.ones(1, 4, device=device))
    source = "Liger-Kernel" if used else "plain torch, Liger-Kernel is not used"
    return f"{', '.join(_FUSED)}: largest relative difference {worst:.1e} ({source})"


def check_host_sync(device: torch.device) -> str:
    """Train every wiring for some steps in which the host may not wait for the device."""
    if device.type != "cuda":
        return "only on cuda: torch reports waiting for no other device"
    for name in wirings:
        objective, optimizer = _make_step(device, wiring=name)
        batch = _make_batch(device)
        _train(objective, optimizer, batch)  # the first step may set up kernels
        try:
            with _forbid_waiting():
                _train(objective, optimizer, batch)
        except RuntimeError as error:
            raise CheckFailure(f"{name}: {str(error).partition(chr(10))[0]}") from None
    return f"{len(list(wirings))} wirings, none waits"


def check_compile(device: torch.device) -> str:
    """Compare compiled steps, in one graph for two lengths, with eager ones."""
    if device.type != "cuda":
        return "only on cuda: on a CPU a compiler of C++ may be missing"
    worst = 0.0
    for name in COMPILED_WIRINGS:
        torch._dynamo.reset()
        objective, _ = _make_step(device, wiring=name)
        weights = [each for each in objective.parameters() if each.requires_grad]
        compiled = torch.compile(objective, dynamic=True, fullgraph=True)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for length in (12, 15):
                batch = _make_batch(device, length)
                found, expected = (
                    [*torch.autograd.grad(run(*batch)[0], weights)] for run in (compiled, objective)
                )
                difference = relative_difference(found, expected)
                require_bound(difference, FLOAT32_BOUND, name)
                worst = max(worst, difference)
    return f"{', '.join(COMPILED_WIRINGS)}: largest relative difference {worst:.1e}"


def check_bfloat16(device: torch.device) -> str:
    """Train under autocast with float32 weights, and with bfloat16 weights."""
    done = []
    for weights in (torch.float32, torch.bfloat16):
        objective, optimizer = _make_step(device, wiring="pre_ln")
        objective.to(weights)
        batch = _make_batch(device)
        losses = []
        for _ in range(30):
            with torch.autocast(device.type, torch.bfloat16, enabled=weights == torch.float32):
                losses.append(_train(objective, optimizer, batch))
        first, last = losses[0].item(), losses[-1].item()
        if not last < 0.8 * first:
            raise CheckFailure(f"{weights} weights: loss {first:.3f} to {last:.3f} in 30 steps")
        name = str(weights).removeprefix("torch.")
        done.append(f"{name} weights: loss {first:.2f} to {last:.2f}")
    return ", ".join(done)


GPU_CHECKS: dict[str, Callable[[torch.device], str]] = {
    "attention": check_attention,
    "fused": check_fused,
    "host_sync": check_host_sync,
    "compile": check_compile,
    "bfloat16": check_bfloat16,
}


@contextmanager
def _forbid_waiting() -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _make_step(device: torch.device, **options: Any) -> tuple[Objective, Any]:
    torch.manual_seed(0)
    settings = {"vocab": VOCAB, "dim": 32, "depth": 2, "heads": 2} | options
    model = build(kind="lm", **settings).to(device)
    for stack in model.stacks:
        stack.packed = True
    return Objective(model, get_task("lm")), make_optimizer("adamw", model, lr=3e-3)


def _make_batch(device: torch.device, length: int = 12) -> tuple[Tensor, Tensor]:
    """Return inputs and targets with padding, known to the host as those of the trainer are."""
    inputs = 4 + (torch.arange(6)[:, None] + torch.arange(length)) % (VOCAB - 4)
    targets = 4 + (inputs - 3) % (VOCAB - 4)
    inputs[0, -5:], targets[0, -5:] = 0, -100
    return to_device(inputs, device), to_device(targets, device)


def _train(objective: Objective, optimizer: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    loss, _ = objective(*batch)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def _random(*shape: int, seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype).requires_grad_()


def _attend(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    lengths = [5, 1, 17, 9]
    count = sum(lengths)
    q, k, v = (
        _random(heads, count, 32, seed=seed, device=device, dtype=dtype)
        for seed, heads in enumerate((4, 2, 2))
    )
    offsets = SequenceOffsets.from_lengths(lengths, device)
    out = varlen_attention(q, k, v, offsets, offsets, causal=True, scale=0.2)
    return _with_gradients(out, q, k, v)


def _with_gradients(out: Tensor, *inputs: Tensor) -> list[Tensor]:
    slope = torch.linspace(-1, 1, out.numel(), device=out.device, dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad(out, inputs, slope)]


def _run_norm(name: str, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    x, f = (_random(7, 48, seed=seed, device=device, dtype=dtype) for seed in (0, 1))
    weight, bias = (_random(48, seed=seed, device=device, dtype=dtype) for seed in (2, 3))
    if name == "layer_norm":
        return _with_gradients(norm.layer_norm(x, weight, bias, 1e-5), x, weight, bias)
    if name == "rms_norm":
        return _with_gradients(norm.rms_norm(x, weight, 1e-6), x, weight)
    if name == "dyt":
        alpha = torch.tensor(0.7, device=device, dtype=dtype, requires_grad=True)
        return _with_gradients(norm.dyt(x, alpha, weight, bias), x, alpha, weight, bias)
    s, y = add_norm_with_sum(x, f, NormParams(True, weight, None, 1e-6))
    return [s.detach(), *_with_gradients(y + s, x, f, weight)]


def _run_loss(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    h = _random(9, 16, seed=0, device=device, dtype=dtype)
    table = _random(30, 16, seed=1, device=device, dtype=dtype)
    targets = torch.arange(9, device=device) * 3
    targets[::4] = -100
    loss = linear_cross_entropy(h, table, targets, smoothing=0.1).loss
    return _with_gradients(loss, h, table)


def _bind_norm(name: str) -> Callable[[torch.device, torch.dtype], list[Tensor]]:
    return lambda device, dtype: _run_norm(name, device, dtype)


_FUSED = {name: _bind_norm(name) for name in ("rms_norm", "layer_norm", "add_rms_norm", "dyt")} | {
    "cross_entropy": _run_loss
}
