"""Steps by one kernel: the same numbers as by the verbs, in every arrangement that has one."""

import pytest
import torch

from addnorm import Decoder, Encoder
from addnorm.kernels import library
from tests.helpers import gradients, shaken, tokens

pytestmark = pytest.mark.skipif(
    not library.get_availability(), reason=library.get_availability().reason
)
ARRANGEMENTS = [
    (wiring, norm)
    for wiring in ("post_ln", "post_ln(final_norm=True)", "pre_ln", "pre_ln(first_norm=False)")
    for norm in ("layer", "layer(affine=False)", "rms", "rms(gain=one_plus)", "rms(bias=True)")
] + [("deepnorm", "layer"), ("admin", "layer"), ("admin", "rms"), ("deepnorm", "rms")]


def make(kind=Encoder, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return shaken(kind(**{"dim": 48, "depth": 2, "heads": 2, "activation": "gelu"} | options))


def ways(stack, x, **context):
    """Output and gradients, by kernels and without."""
    inputs = [x, *stack.parameters()]
    for level in (library.get_availability().level, "off"):
        with library.use_level(level):
            torch.manual_seed(3)
            y = stack(x, **context)
            yield y, gradients(y, inputs)


def same(stack, x, **context):
    ours, theirs = ways(stack, x, **context)
    # Each of them is up to 3e-4 away from what float64 gives.
    torch.testing.assert_close(ours, theirs, rtol=5e-4, atol=5e-4)


@pytest.mark.parametrize(("wiring", "norm"), ARRANGEMENTS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_with_and_without_kernels(wiring, norm, dropout):
    stack = make(wiring=wiring, norm=norm, dropout=dropout)
    same(stack, tokens(8, 60, 48).requires_grad_())
    same(stack.eval(), tokens(8, 60, 48).requires_grad_())


def test_in_a_decoder_of_a_pair_packed_and_recomputed():
    stack = make(Decoder, other_depth=2, dropout=0.2)
    mask = torch.arange(60) < torch.tensor([[60], [41], [11], [28], [60], [3], [25], [50]])
    context = {"memory": tokens(8, 7, 48, seed=6), "mask": mask}
    for stack.packed in (False, True):
        for stack.recompute in (False, True):
            same(stack, tokens(8, 60, 48).requires_grad_(), **context)


@pytest.mark.parametrize("wiring", ["post_ln", "pre_ln", "deepnorm", "admin"])
def test_a_kernel_is_used_and_gives_way_to_whoever_looks(wiring, monkeypatch):
    stack, x = make(wiring=wiring, norm="rms"), tokens(8, 60, 48)
    calls = []
    real = library.call_rows
    monkeypatch.setattr(
        library, "call_rows", lambda name, *rest: (calls.append(name), real(name, *rest))
    )
    wanted = stack(x)
    assert calls.count("add_norm_forward") == 4
    calls.clear()
    seen = []
    norms = [
        norm for norm in stack.wiring.modules() if isinstance(norm, type(stack.wiring.norms[0]))
    ]
    hooks = [norm.register_forward_hook(lambda *given: seen.append(given[0])) for norm in norms]
    torch.testing.assert_close(stack(x), wanted)
    assert len(seen) == len(norms) and not calls
    for hook in hooks:
        hook.remove()
    with stack.taps.record() as tape:
        torch.testing.assert_close(stack(x), wanted)
    streams = torch.stack(tape["stream"])
    assert streams.shape == (4, 8, 60, 48)
