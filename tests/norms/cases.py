"""Call strings under test and helpers shared by the tests of norms."""

import torch

from addnorm.norms import Norm, make_norm, registry

VARIANTS = [
    "layer(affine=False)",
    "layer(bias=False)",
    "layer(gain=one_plus)",
    "layer(gain=one_plus, var=unbiased)",
    "layer(var=unbiased)",
    "layer(eps_mode=outside)",
    "layer(eps=1e-06, var=unbiased, eps_mode=outside)",
    "rms(affine=False)",
    "rms(bias=True)",
    "rms(gain=one_plus)",
    "rms(bias=True, gain=one_plus, share=0.5, eps_mode=outside)",
    "rms(share=0.3)",
    "rms(eps_mode=outside)",
    "fixnorm(length=3.0)",
    "ada(scale=2.0, k=0.2)",
    "ada(var=unbiased, eps_mode=outside)",
    "detach(which=mean)",
    "detach(which=std)",
    "detach(var=unbiased, eps_mode=outside)",
    "batch(momentum=0.3)",
    "batch(affine=False)",
    "instance(affine=False)",
    "group(groups=1)",
    "group(groups=2, affine=False)",
    "constant_std(center=False)",
    "power(warmup=0)",
    "power(warmup=0, decay=0.5, affine=False)",
    "dyt(alpha=0.8, bias=False)",
    "dyt(affine=False)",
    "derf(alpha=1.0, bias=False)",
    "derf(affine=False)",
    "ada_ln(cond_dim=3)",
    "seednorm(heads=2, alpha=0.5)",
    "gatednorm(rank=3)",
]
CASES = [*registry, *VARIANTS]  # new norms are tested automatically
DIM = 10
SHAPE = (3, 7, DIM)


def name_of(call: str) -> str:
    return call.partition("(")[0]


def needs(call: str, argument: str) -> bool:
    return argument in registry.card(name_of(call)).needs


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return the same random numbers in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def ragged_mask(shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    """Return a mask of sentences with decreasing lengths."""
    batch, length = shape[:2]
    lengths = torch.tensor([max(1, length - 2 * row) for row in range(batch)])
    return torch.arange(length) < lengths[:, None]


def cond_for(norm: Norm, *leading: int, seed: int = 1) -> torch.Tensor | None:
    """Return a random condition for norms that take one, else None."""
    width = getattr(norm, "cond_dim", None)
    dtype = next(norm.parameters()).dtype if width else None
    return randn(*leading, width, seed=seed, dtype=dtype) if width else None


@torch.no_grad()
def build(
    call: str, dim: int = DIM, *, dtype: torch.dtype = torch.float32, start: bool = False
) -> Norm:
    """Build a norm with perturbed parameters and buffers, or initial ones with `start`."""
    norm = make_norm(call, dim).to(dtype)
    if not start:
        generator = torch.Generator().manual_seed(7)
        for tensor in norm.state_dict().values():
            if tensor.is_floating_point():  # positive, because some are variances
                tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return norm


# Helpers for tests of closed forms, in float64.

F64 = torch.float64


def double(call, dim=DIM):
    """Build a norm in float64 with perturbed parameters."""
    return build(call, dim, dtype=F64)


def fresh(call, dim=DIM):
    """Build a norm in float64 with initial parameters."""
    return build(call, dim, dtype=F64, start=True)


def tokens(*shape, seed=0):
    return (2 * randn(*shape, seed=seed, dtype=F64) + 0.5).requires_grad_()


def jacobian(norm, x):
    return torch.autograd.functional.jacobian(norm, x)


def gradient(norm, x, g):
    return torch.autograd.grad((norm(x) * g).sum(), x)[0]


def mean(x):
    return x.mean(-1, keepdim=True)
