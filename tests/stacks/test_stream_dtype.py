"""Dtype of the stream under autocast."""

import pytest
import torch

from addnorm import Encoder
from addnorm.wirings import registry
from tests.helpers import tokens


def make_stack(wiring, stream=None):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stack = Encoder(dim=16, depth=2, heads=2, wiring=wiring).eval()
    stack.stream = stream
    return stack


@pytest.mark.parametrize("wiring", list(registry))
def test_every_wiring_keeps_the_chosen_stream_dtype(wiring):
    stack, x, dtypes = make_stack(wiring, torch.bfloat16), tokens(2, 5, 16), []
    for sublayer in stack.sublayers[1:]:
        sublayer.register_forward_pre_hook(lambda _, args: dtypes.append(args[0].dtype))
    full = make_stack(wiring)(x).detach()
    with torch.autocast("cpu", torch.bfloat16):
        out = stack(x)
    assert set(dtypes) == {torch.bfloat16}
    torch.testing.assert_close(out.float(), full, rtol=0.1, atol=0.1 * float(full.std()))


def test_gradients_reach_input_of_other_dtype():
    stack, x = make_stack("post_ln", torch.bfloat16), tokens(2, 5, 16).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        stack(x).float().square().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32 and bool(x.grad.any())


def test_stream_keeps_input_dtype_by_default():
    x, dtypes = tokens(2, 5, 16), []
    stack = make_stack("none")
    stack.sublayers[-1].register_forward_pre_hook(lambda _, args: dtypes.append(args[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        stack(x)
    assert dtypes == [torch.float32]
