"""Fused kernel steps against separate steps, in every arrangement that has a fused kernel."""

import pytest
import torch

from addnorm import Decoder, Encoder
from addnorm.kernels import library
from tests.helpers import gradients, perturb, tokens

pytestmark = pytest.mark.skipif(
    not library.get_availability(), reason=library.get_availability().reason
)
ARRANGEMENTS = [
    (wiring, norm)
    for wiring in ("post_ln", "post_ln(final_norm=True)", "pre_ln", "pre_ln(first_norm=False)")
    for norm in ("layer", "layer(affine=False)", "rms", "rms(gain=one_plus)", "rms(bias=True)")
] + [("deepnorm", "layer"), ("admin", "layer"), ("admin", "rms"), ("deepnorm", "rms")]


def make_stack(kind=Encoder, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return perturb(kind(**{"dim": 48, "depth": 2, "heads": 2, "activation": "gelu"} | options))


def run_with_and_without_kernels(stack, x, **context):
    """Yield output and gradients with native kernels, then without."""
    inputs = [x, *stack.parameters()]
    for level in (library.get_availability().level, "off"):
        with library.use_level(level):
            torch.manual_seed(3)
            y = stack(x, **context)
            yield y, gradients(y, inputs)


def assert_kernels_change_nothing(stack, x, **context):
    fused, plain = run_with_and_without_kernels(stack, x, **context)
    # Each differs from the float64 result by up to 3e-4.
    torch.testing.assert_close(fused, plain, rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize(("wiring", "norm"), ARRANGEMENTS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_fused_steps_match_separate_steps(wiring, norm, dropout):
    stack = make_stack(wiring=wiring, norm=norm, dropout=dropout)
    assert_kernels_change_nothing(stack, tokens(8, 60, 48).requires_grad_())
    assert_kernels_change_nothing(stack.eval(), tokens(8, 60, 48).requires_grad_())


def test_decoder_with_memory_packed_and_recomputed():
    stack = make_stack(Decoder, other_depth=2, dropout=0.2)
    mask = torch.arange(60) < torch.tensor([[60], [41], [11], [28], [60], [3], [25], [50]])
    context = {"memory": tokens(8, 7, 48, seed=6), "mask": mask}
    for stack.packed in (False, True):
        for stack.recompute in (False, True):
            assert_kernels_change_nothing(stack, tokens(8, 60, 48).requires_grad_(), **context)


@pytest.mark.parametrize("wiring", ["post_ln", "pre_ln", "deepnorm", "admin"])
def test_hooks_and_taps_disable_the_fused_kernel(wiring, monkeypatch):
    stack, x = make_stack(wiring=wiring, norm="rms"), tokens(8, 60, 48)
    calls = []
    call_rows = library.call_rows
    monkeypatch.setattr(
        library, "call_rows", lambda name, *rest: (calls.append(name), call_rows(name, *rest))
    )
    expected = stack(x)
    assert calls.count("add_norm_forward") == 4
    calls.clear()
    hooked = []
    norms = [
        norm for norm in stack.wiring.modules() if isinstance(norm, type(stack.wiring.norms[0]))
    ]
    hooks = [norm.register_forward_hook(lambda *args: hooked.append(args[0])) for norm in norms]
    torch.testing.assert_close(stack(x), expected)
    assert len(hooked) == len(norms) and not calls
    for hook in hooks:
        hook.remove()
    with stack.taps.record() as tape:
        torch.testing.assert_close(stack(x), expected)
    streams = torch.stack(tape["stream"])
    assert streams.shape == (4, 8, 60, 48)
