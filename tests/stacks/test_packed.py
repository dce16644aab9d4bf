"""Stacks that leave padding out: the same numbers as those that do not, in every arrangement."""

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
from tests.helpers import gradients, shaken, tokens

BEHIND = torch.tensor([[1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0]]).bool()
BEFORE = BEHIND.flip(1)
HOLES = torch.tensor([[1, 0, 1, 0, 0, 1], [1, 1, 1, 0, 1, 0], [0, 0, 0, 1, 0, 0]]).bool()
MEMORY = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0]]).bool()


def make(kind, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = kind(**{"dim": 12, "depth": 3, "heads": 2} | options).double()
        return shaken(made)


def twice(stack, mask, **context):
    """What a stack returns at valid tokens and its gradients, padded and packed."""
    x = tokens(*mask.shape, 12, dtype=torch.float64).requires_grad_()
    inputs = [x, *(each for each in stack.parameters() if each.requires_grad)]
    seen = []
    hook = stack.sublayers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    for stack.packed in (False, True):
        y = stack(x, mask=mask, **context)
        assert y.shape == x.shape
        yield y[mask], gradients(y[mask], inputs), tuple(seen[-1])
    hook.remove()


def same(stack, mask, *, packs=True, **context):
    plain, packed = twice(stack, mask, **context)
    for ours, theirs in zip(packed[:2], plain[:2], strict=True):
        torch.testing.assert_close(ours, theirs)
    count = int(mask.sum())
    assert packed[2] == ((1, count, 12) if packs else (*mask.shape, 12))


@pytest.mark.parametrize("wiring", wirings)
def test_every_wiring_gives_the_same_packed_and_padded(wiring):
    packs = wiring != "drop_path"
    memory = tokens(3, 4, 12, seed=9, dtype=torch.float64)
    same(make(Encoder, wiring=wiring).eval(), HOLES, packs=packs)
    same(make(Decoder, wiring=wiring).eval(), BEHIND, packs=packs)
    pair = make(Decoder, wiring=wiring, other_depth=3).eval()
    same(pair, BEHIND, packs=packs, memory=memory, memory_mask=MEMORY)


@pytest.mark.parametrize("place", positions)
@pytest.mark.parametrize("mask", [BEHIND, BEFORE, HOLES])
@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_every_position_and_every_padding(kind, place, mask):
    same(make(kind, positions=place), mask)
    if kind is Encoder:
        same(make(kind, positions=place), mask, position_index=torch.arange(6) + 2)


@pytest.mark.parametrize("qk_norm", qk_norms)
def test_every_query_key_norm(qk_norm):
    same(make(Decoder, qk_norm=qk_norm, kv_heads=1), BEHIND)


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
@pytest.mark.parametrize("mask", [BEHIND, BEFORE])
@pytest.mark.parametrize("kind", [Encoder, Decoder])
def test_every_choice_inside_attention(kind, mask, options):
    same(make(kind, positions="t5", **options), mask)


def test_rules_of_sight():
    for visible in (
        masks.causal_mask(6),
        masks.prefix_mask(torch.tensor([1, 3, 2]), 6),
        masks.causal_mask(6).expand(3, 2, 6, 6),
    ):
        same(make(Encoder), BEHIND, visible=visible)
        same(make(Decoder, positions="alibi"), BEFORE, visible=visible)


@pytest.mark.parametrize("norm", norms)
def test_every_norm(norm):
    """Norms over several tokens of a sequence know the batch only with its padding."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        stack = make(Encoder, norm=norm)
    alone = all(norm.causal for norm in stack.wiring.norms)
    same(stack.eval(), BEHIND, packs=alone)


def test_a_memory_or_a_target_without_padding():
    pair = make(Decoder, other_depth=3)
    memory = tokens(3, 4, 12, seed=9, dtype=torch.float64)
    same(pair, BEHIND, memory=memory)
    whole = torch.ones(3, 6, dtype=torch.bool)
    same(pair, whole, memory=memory, memory_mask=MEMORY)
    pair.packed = True
    x = tokens(3, 6, 12, dtype=torch.float64)
    packed = pair(x, memory=memory, memory_mask=MEMORY)
    pair.packed = False
    torch.testing.assert_close(packed, pair(x, memory=memory, memory_mask=MEMORY))


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=5), st.booleans())
def test_any_lengths(lengths, causal):
    longest = max(*lengths, 1)
    mask = masks.padding_mask(torch.tensor(lengths), longest)
    share = sum(lengths) / (len(lengths) * longest)
    stack = make(Decoder if causal else Encoder, positions="rotary", depth=1)
    same(stack, mask, packs=share <= 0.95)


def test_padding_comes_out_as_zeros_and_its_content_is_not_read():
    stack = make(Encoder)
    stack.packed = True
    x = tokens(3, 6, 12, dtype=torch.float64)
    x[~HOLES] = torch.nan
    y = stack(x, mask=HOLES)
    assert (y[~HOLES] == 0).all() and y[HOLES].isfinite().all()


def test_dropout_drops_as_much_and_recompute_gives_the_same():
    stack = make(Encoder, dropout=0.5, attention_dropout=0.5, positions="sinusoid")
    stack.packed = True
    x = tokens(3, 6, 12, dtype=torch.float64)
    found = []
    for stack.recompute in (False, True):
        torch.manual_seed(1)
        found.append(gradients(stack(x, mask=BEHIND), list(stack.parameters())))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_nothing_is_left_out_where_somebody_looks_a_cache_waits_or_little_is_padding():
    stack, x = make(Decoder, depth=1), tokens(3, 6, 12, dtype=torch.float64)
    stack.packed = True
    with stack.taps.record() as tape:
        stack(x, mask=BEHIND)
    assert tape["read"][0].shape == x.shape
    seen = []
    stack.sublayers[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape))
    stack(x, mask=BEHIND, cache=KVCache(2))
    little = torch.ones(3, 6, dtype=torch.bool)
    little[0, 5:] = False
    stack(torch.cat((x, x), 1), mask=torch.cat((torch.ones_like(little), little), 1))
    stack(x)
    assert seen == [(3, 6, 12), (3, 12, 12), (3, 6, 12)]


def test_a_wrong_mask_is_refused_as_ever():
    stack, x = make(Encoder), tokens(3, 6, 12, dtype=torch.float64)
    stack.packed = True
    with pytest.raises(UserError, match="boolean"):
        stack(x, mask=torch.ones(3, 6))
    with pytest.raises(UserError, match="one entry per token"):
        stack(x, mask=torch.ones(3, 5, dtype=torch.bool))


def test_compiled_stacks_keep_the_padding():
    stack, x = make(Encoder, depth=1), tokens(3, 6, 12, dtype=torch.float64)
    stack.packed = True
    wanted = stack(x, mask=HOLES)[HOLES]
    compiled = torch.compile(stack, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, mask=HOLES)[HOLES], wanted)
