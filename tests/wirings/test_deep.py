"""Stacks of 200 layers in half precision: finite values and gradients at initialization."""

import pytest
import torch

from addnorm import Encoder
from addnorm.wirings import registry
from tests.helpers import gradients, tokens

GROWS = {"none"}
"""Wirings whose stream grows exponentially with depth: no norm and no scale. The card says so."""
DEPTH, DIM = 200, 8


def run(wiring: str, dtype: torch.dtype) -> list[torch.Tensor]:
    torch.manual_seed(0)
    stack = Encoder(dim=DIM, depth=DEPTH, heads=2, ffn_dim=16, wiring=wiring).to(dtype)
    x = tokens(2, 3, DIM, dtype=dtype).requires_grad_()
    y = stack(x)
    return [y, *gradients(y, [x, *stack.parameters()])]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("wiring", registry)
def test_200_layers_are_finite_in_half_precision(wiring, dtype):
    is_finite = all(value.isfinite().all() for value in run(wiring, dtype))
    assert is_finite != (wiring in GROWS)
