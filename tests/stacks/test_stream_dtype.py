"""The stream in a precision of its own, under autocast."""

import pytest
import torch

from addnorm import Encoder
from addnorm.wirings import registry
from tests.helpers import tokens


def made(wiring, stream=None):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stack = Encoder(dim=16, depth=2, heads=2, wiring=wiring).eval()
    stack.stream = stream
    return stack


@pytest.mark.parametrize("wiring", list(registry))
def test_every_wiring_hands_on_what_it_is_told_to(wiring):
    stack, x, seen = made(wiring, torch.bfloat16), tokens(2, 5, 16), []
    for sublayer in stack.sublayers[1:]:
        sublayer.register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    full = made(wiring)(x).detach()
    with torch.autocast("cpu", torch.bfloat16):
        out = stack(x)
    assert set(seen) == {torch.bfloat16}
    torch.testing.assert_close(out.float(), full, rtol=0.1, atol=0.1 * float(full.std()))


def test_gradients_reach_an_input_of_another_precision():
    stack, x = made("post_ln", torch.bfloat16), tokens(2, 5, 16).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        stack(x).float().square().sum().backward()
    assert x.grad is not None and x.grad.dtype == torch.float32 and bool(x.grad.any())


def test_without_a_word_the_stream_is_as_it_comes():
    x, seen = tokens(2, 5, 16), []
    stack = made("none")
    stack.sublayers[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        stack(x)
    assert seen == [torch.float32]
