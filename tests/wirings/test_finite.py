"""Values and gradients stay finite on degenerate and extreme tokens, in every precision.

A stack in low precision is compared with a float64 copy of the same weights: where the exact
outputs and gradients are far inside the range of the format, the computed ones must be finite.
"""

import copy
import warnings

import pytest
import torch
from torch import Tensor

from addnorm import Encoder, UserError
from addnorm.norms import make_norm
from addnorm.norms import registry as norms
from addnorm.sublayers.qk_norm import registry as qk_norms
from addnorm.wirings import registry as wirings
from tests.helpers import gradients, tokens

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
DIM, HEADS = 6, 2
MARGIN = 64  # sums inside a layer exceed its outputs and gradients by less than this


def build(wiring: str, **options) -> Encoder:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Encoder(dim=DIM, depth=2, heads=HEADS, wiring=wiring, **options)


def degenerate() -> tuple[Tensor, Tensor]:
    """Return sentences of padding, zeros and constants, and their mask."""
    x, mask = tokens(6, 4, DIM), torch.ones(6, 4, dtype=torch.bool)
    mask[0] = False  # padding only
    mask[1], x[1] = False, 0.0  # padding only, of zeros
    mask[2, 2:] = False
    x[3] = 0.0
    x[4, 0], x[4, 1], x[4, 2:] = 0.0, 7.0, 0.5
    x[5] = x[5, 0].clone()  # the same token everywhere
    return x, mask


def extreme(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return sentences of huge, small and subnormal tokens, and their mask."""
    x, info = tokens(4, 4, DIM), torch.finfo(dtype)
    huge = info.max**0.4  # squares of these are logits of attention where no norm precedes it
    x[0] *= huge
    x[1] *= info.tiny**0.5
    x[2] *= info.smallest_normal
    x[3, 0] *= huge
    return x, torch.ones(4, 4, dtype=torch.bool)


def find_nonfinite(stack: Encoder, dtype: torch.dtype, x: Tensor, mask: Tensor) -> list[str]:
    """Return the names of non-finite results whose exact values the format can hold."""
    low = copy.deepcopy(stack).to(dtype)
    exact = copy.deepcopy(low).double()
    results = []
    for model, inputs in ((low, x.to(dtype)), (exact, x.to(dtype).double())):
        inputs.requires_grad_()
        torch.manual_seed(1)  # wirings that draw drop the same branches
        y = model(inputs, mask=mask)
        names, leaves = zip(*model.named_parameters(), strict=True)
        values = (y.detach(), *gradients(y, [inputs, *leaves]))
        results.append(dict(zip(("output", "x", *names), values, strict=True)))
    computed, reference = results
    largest = max(float(value.abs().max()) for value in reference.values() if value.numel())
    if not largest < torch.finfo(dtype).max / MARGIN:
        return []
    return [name for name, value in computed.items() if not value.isfinite().all()]


def check(wiring: str, dtypes: tuple[torch.dtype, ...] = DTYPES, **options) -> list[str]:
    """Return the failures of one stack as text."""
    try:
        stack = build(wiring, **options)
    except UserError:  # a norm without the gain that the wiring sets
        return []
    problems = []
    for dtype in dtypes:
        for inputs in (degenerate(), extreme(dtype)):
            names = find_nonfinite(stack, dtype, *inputs)
            problems += [f"{wiring} {options} {dtype}: {name}" for name in names[:1]]
    return problems


@pytest.mark.parametrize("wiring", wirings)
def test_wirings_stay_finite(wiring):
    half = (torch.float16,)
    assert check(wiring, half) + check(wiring, half, norm="none") == []


@pytest.mark.parametrize("norm", norms)
def test_norms_stay_finite(norm):
    assert check("pre_ln", norm=norm) + check("post_ln", norm=norm) == []


@pytest.mark.parametrize("norm", norms)
def test_tokens_of_zeros_get_finite_gradients(norm):
    module = make_norm(norm, DIM).half()
    x = torch.zeros(2, 3, DIM, dtype=torch.float16, requires_grad=True)
    y = module(x)
    assert y.isfinite().all()
    assert gradients(y, [x])[0].isfinite().all()


@pytest.mark.parametrize("qk_norm", qk_norms)
def test_query_key_norms_stay_finite(qk_norm):
    assert check("pre_ln", qk_norm=qk_norm, bias=False) == []


@pytest.mark.slow
@pytest.mark.parametrize("wiring", wirings)
def test_wirings_stay_finite_with_every_norm(wiring):
    assert [problem for norm in norms for problem in check(wiring, norm=norm)] == []
