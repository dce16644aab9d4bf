"""Packed stacks against padded stacks, in every arrangement."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm import Decoder, Encoder
from addnorm.core.errors import UserError
from addnorm.norms import registry as norms
from addnorm.sublayers import KVCache, masks
from addnorm.sublayers.positions import registry as positions
from addnorm.sublayers.qk_norm import registry as qk_norms
from addnorm.wirings import registry as wirings
from tests.helpers import gradients, perturb, tokens

RIGHT_PADDED = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]]).bool()
LEFT_PADDED = RIGHT_PADDED.flip(1)
HOLES = torch.tensor([[1, 0, 1, 0, 0, 1], [1, 1, 1, 0, 1, 0], [0, 0, 0, 1, 0, 0]]).bool()
MEMORY_MASK = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]]).bool()


def make_stack(kind, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stack = kind(**{"dim": 12, "depth": 3, "heads": 2} | options).double()
        return perturb(stack)


def run_padded_and_packed(stack, mask, **context):
    """Yield valid outputs, gradients and sub-layer input shape: first padded, then packed."""
    x = tokens(*mask.shape, 12, dtype=torch.float64).requires_grad_()
    inputs = [x, *(each for each in stack.parameters() if each.requires_grad)]
    shapes = []
    hook = stack.sublayers[0].register_forward_pre_hook(
        lambda _, args: shapes.append(args[0].shape)
    )
    for stack.packed in (False, True):
        y = stack(x, mask=mask, **context)
        assert y.shape == x.shape
        yield y[mask], gradients(y[mask], inputs), tuple(shapes[-1])
    hook.remove()


def assert_packed_matches_padded(stack, mask, *, packs=True, **context):
    padded, packed = run_padded_and_packed(stack, mask, **context)
    for actual, expected in zip(packed[:2], padded[:2], strict=True):
        torch.testing.assert_close(actual, expected)
    count = int(mask.sum())
    assert packed[2] == ((1, count, 12) if packs else (*mask.shape, 12))


@pytest.mark.parametrize("wiring", wirings)
def test_every_wiring(wiring):
    packs = wiring != "drop_path"
    memory = tokens(3, 4, 12, seed=9, dtype=torch.float64)
    assert_packed_matches_padded(make_stack(Encoder, wiring=wiring).eval(), HOLES, packs=packs)
    assert_packed_matches_padded(
        make_stack(Decoder, wiring=wiring).eval(), RIGHT_PADDED, packs=packs
    )
    pair = make_stack(Decoder, wiring=wiring, other_depth=3).eval()
    assert_packed_matches_padded(
        pair, RIGHT_PADDED, packs=packs, memory=memory, memory_mask=MEMORY_MASK
    )


@pytest.mark.parametrize("position", positions)
@pytest.mark.parametrize("mask", [RIGHT_PADDED, LEFT_PADDED, HOLES])
@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_every_position_and_padding(kind, position, mask):
    assert_packed_matches_padded(make_stack(kind, positions=position), mask)
    if kind is Encoder:
        assert_packed_matches_padded(
            make_stack(kind, positions=position), mask, position_index=torch.arange(6) + 2
        )


@pytest.mark.parametrize("qk_norm", qk_norms)
def test_every_query_key_norm(qk_norm):
    assert_packed_matches_padded(make_stack(Decoder, qk_norm=qk_norm, kv_heads=1), RIGHT_PADDED)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 2},
        {"persistent": 3},
        {"cap": 2.0},
        {"scale": 1.0},
        {"head_dim": 3},
        {"bias": False},
    ],
)
@pytest.mark.parametrize("mask", [RIGHT_PADDED, LEFT_PADDED])
@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_attention_options(kind, mask, options):
    assert_packed_matches_padded(make_stack(kind, positions="t5", **options), mask)


def test_visibility_masks():
    for visible in (
        masks.causal_mask(6),
        masks.prefix_mask(torch.tensor([1, 3, 2]), 6),
        masks.causal_mask(6).expand(3, 2, 6, 6),
    ):
        assert_packed_matches_padded(make_stack(Encoder), RIGHT_PADDED, visible=visible)
        assert_packed_matches_padded(
            make_stack(Decoder, positions="alibi"), LEFT_PADDED, visible=visible
        )


@pytest.mark.parametrize("norm", norms)
def test_every_norm(norm):
    """Norms with statistics over several tokens need the padded batch."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stack = make_stack(Encoder, norm=norm)
    token_wise = all(norm.causal for norm in stack.wiring.norms)
    assert_packed_matches_padded(stack.eval(), RIGHT_PADDED, packs=token_wise)


def test_memory_or_target_without_padding():
    pair = make_stack(Decoder, other_depth=3)
    memory = tokens(3, 4, 12, seed=9, dtype=torch.float64)
    assert_packed_matches_padded(pair, RIGHT_PADDED, memory=memory)
    whole = torch.ones(3, 6, dtype=torch.bool)
    assert_packed_matches_padded(pair, whole, memory=memory, memory_mask=MEMORY_MASK)
    pair.packed = True
    x = tokens(3, 6, 12, dtype=torch.float64)
    packed = pair(x, memory=memory, memory_mask=MEMORY_MASK)
    pair.packed = False
    torch.testing.assert_close(packed, pair(x, memory=memory, memory_mask=MEMORY_MASK))


@settings(max_examples=25)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.booleans())
def test_any_lengths(lengths, causal):
    longest = max(*lengths, 1)
    mask = masks.padding_mask(torch.tensor(lengths), longest)
    share = sum(lengths) / (len(lengths) * longest)
    stack = make_stack(Decoder if causal else Encoder, positions="rotary", depth=1)
    assert_packed_matches_padded(stack, mask, packs=share <= 0.95)


def test_padding_is_not_read_and_returned_as_zeros():
    stack = make_stack(Encoder)
    stack.packed = True
    x = tokens(3, 6, 12, dtype=torch.float64)
    x[~HOLES] = torch.nan
    y = stack(x, mask=HOLES)
    assert (y[~HOLES] == 0).all() and y[HOLES].isfinite().all()


def test_recompute_gives_same_gradients_with_dropout():
    stack = make_stack(Encoder, dropout=0.5, attention_dropout=0.5, positions="sinusoid")
    stack.packed = True
    x = tokens(3, 6, 12, dtype=torch.float64)
    grads = []
    for stack.recompute in (False, True):
        torch.manual_seed(1)
        grads.append(gradients(stack(x, mask=RIGHT_PADDED), list(stack.parameters())))
    for actual, expected in zip(*grads, strict=True):
        torch.testing.assert_close(actual, expected)


def test_taps_cache_and_little_padding_disable_packing():
    stack, x = make_stack(Decoder, depth=1), tokens(3, 6, 12, dtype=torch.float64)
    stack.packed = True
    with stack.taps.record() as tape:
        stack(x, mask=RIGHT_PADDED)
    assert tape["read"][0].shape == x.shape
    shapes = []
    stack.sublayers[0].register_forward_pre_hook(lambda _, args: shapes.append(args[0].shape))
    stack(x, mask=RIGHT_PADDED, cache=KVCache(2))
    little_padding = torch.ones(3, 6, dtype=torch.bool)
    little_padding[0, 5:] = False
    mask = torch.cat((torch.ones_like(little_padding), little_padding), 1)
    stack(torch.cat((x, x), 1), mask=mask)
    stack(x)
    assert shapes == [(3, 6, 12), (3, 12, 12), (3, 6, 12)]


def test_invalid_mask_raises():
    stack, x = make_stack(Encoder), tokens(3, 6, 12, dtype=torch.float64)
    stack.packed = True
    with pytest.raises(UserError, match="boolean"):
        stack(x, mask=torch.ones(3, 6))
    with pytest.raises(UserError, match="one entry per token"):
        stack(x, mask=torch.ones(3, 5, dtype=torch.bool))


def test_compiled_stack_matches_eager_packed_stack():
    stack, x = make_stack(Encoder, depth=1), tokens(3, 6, 12, dtype=torch.float64)
    stack.packed = True
    expected = stack(x, mask=HOLES)[HOLES]
    compiled = torch.compile(stack, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask=HOLES)[HOLES], expected)
