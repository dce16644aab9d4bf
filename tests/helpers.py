"""Small stacks with known sub-layers, shared by the tests."""

import torch
from torch import Tensor, nn

from addnorm import Stack

PAIR = {"kinds": ("self", "ffn"), "role": "encoder_only", "other_depth": None}
TRIPLE = {"kinds": ("self", "cross", "ffn"), "role": "decoder", "other_depth": 5}


class ZeroBranch(nn.Module):
    """Branch that returns zeros."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class Constant(nn.Module):
    """Branch that ignores its input and returns a constant."""

    def __init__(self, dim: int, seed: int = 0) -> None:
        super().__init__()
        self.value = torch.randn(dim, generator=torch.Generator().manual_seed(seed))

    def forward(self, x: Tensor) -> Tensor:
        return self.value.to(x).expand_as(x)


def tanh_sublayers(count: int, dim: int, dtype: torch.dtype = torch.float32) -> list[nn.Module]:
    """Build token-wise sub-layers with different weights."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return [nn.Sequential(nn.Linear(dim, dim), nn.Tanh()).to(dtype) for _ in range(count)]


def perturb(module: nn.Module, seed: int = 2) -> nn.Module:
    """Add noise to every parameter in place, so that no test depends on initial values."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.2 * noise.to(parameter.dtype))
    return module


def toy_stack(
    wiring: str,
    *,
    dim: int = 10,
    depth: int = 4,
    layer: dict = PAIR,
    norm: str = "layer",
    dtype: torch.dtype = torch.float32,
) -> Stack:
    """Build a stack of token-wise sub-layers with initial weights."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        sublayers = tanh_sublayers(depth * len(layer["kinds"]), dim, dtype)
        return Stack(sublayers, dim=dim, wiring=wiring, norm=norm, **layer).to(dtype)


def tokens(*shape: int, seed: int = 4, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random tokens, (3, 7, 10) by default."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(*(shape or (3, 7, 10)), generator=generator, dtype=torch.float64)
    return x.to(dtype)


def gradients(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a weighted sum of y; zeros for inputs that y does not depend on."""
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype, device=y.device).view_as(y)
    grads = torch.autograd.grad((y * weights).sum(), inputs, retain_graph=True, allow_unused=True)
    pairs = zip(grads, inputs, strict=True)
    return [torch.zeros_like(x) if grad is None else grad for grad, x in pairs]
