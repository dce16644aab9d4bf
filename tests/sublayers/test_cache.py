"""Key-value cache: incremental decoding against one pass over all tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm import Decoder
from addnorm.core.errors import UserError
from addnorm.sublayers import CrossAttention, KVCache, SelfAttention, masks
from tests.helpers import perturb, tokens

POSITIONS = ["none", "sinusoid", "learned", "rotary", "rotary(share=0.5)", "t5", "alibi"]
CHUNKS = [(7,), (1,) * 7, (3, 1, 1, 2), (2, 5)]


def make_decoder(positions="none", **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        decoder = Decoder(dim=16, depth=2, heads=4, positions=positions, **options)
        return perturb(decoder).eval().double()


def x64(*shape, seed=4):
    return tokens(*shape, seed=seed, dtype=torch.float64)


def decode_in_chunks(decoder, x, chunks, cache=None, mask=None, **context):
    """Decode chunk by chunk and concatenate the outputs."""
    cache = cache or KVCache(len(decoder.plan.sites))
    parts = torch.arange(x.shape[1]).split(list(chunks))
    outputs = [
        decoder(x[:, part], cache=cache, mask=None if mask is None else mask[:, part], **context)
        for part in parts
    ]
    assert cache.length == x.shape[1]
    return torch.cat(outputs, 1)


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
@pytest.mark.parametrize("blocks", [{}, {"kv_heads": 2, "qk_norm": "rms"}], ids=str)
def test_chunks_equal_one_pass(positions, chunks, blocks):
    decoder, x = make_decoder(positions, **blocks), x64(3, 7, 16)
    torch.testing.assert_close(decode_in_chunks(decoder, x, chunks), decoder(x))


@pytest.mark.parametrize("positions", POSITIONS)
@pytest.mark.parametrize("chunks", CHUNKS, ids=str)
def test_chunks_equal_one_pass_with_memory(positions, chunks):
    decoder = make_decoder(positions, other_depth=1)
    x, memory = x64(3, 7, 16), x64(3, 5, 16, seed=9)
    mask = masks.padding_mask(torch.tensor([5, 2, 3]))
    full = decoder(x, memory=memory, memory_mask=mask)
    steps = decode_in_chunks(decoder, x, chunks, memory=memory, memory_mask=mask)
    torch.testing.assert_close(steps, full)


@pytest.mark.parametrize("positions", POSITIONS)
def test_left_padded_prompts_equal_unpadded_prompts(positions):
    """The prompt is masked once; later tokens need no mask, and positions do not shift."""
    decoder, lengths = make_decoder(positions), (5, 2, 4)
    prompts = [x64(1, length, 16, seed=length) for length in lengths]
    new_tokens = x64(3, 3, 16, seed=1)
    padded = torch.full((3, 5, 16), 1e3, dtype=torch.float64)
    mask = torch.zeros(3, 5, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        padded[row, 5 - prompt.shape[1] :] = prompt[0]
        mask[row, 5 - prompt.shape[1] :] = True
    cache = KVCache(len(decoder.plan.sites))
    decoder(padded, mask=mask, cache=cache)
    steps = torch.cat([decoder(new_tokens[:, i : i + 1], cache=cache) for i in range(3)], 1)
    for row, prompt in enumerate(prompts):
        alone = decoder(torch.cat((prompt, new_tokens[row : row + 1]), 1))[0, -3:]
        torch.testing.assert_close(steps[row], alone)


@settings(max_examples=20)
@given(
    positions=st.sampled_from(POSITIONS),
    mask=st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=2, max_size=2),
    chunks=st.sampled_from(CHUNKS),
)
def test_chunks_equal_one_pass_for_any_mask(positions, mask, chunks):
    decoder, x, mask = make_decoder(positions), x64(2, 7, 16), torch.tensor(mask)
    full = decoder(x, mask=mask)
    torch.testing.assert_close(decode_in_chunks(decoder, x, chunks, mask=mask)[mask], full[mask])


def test_mask_in_a_later_chunk():
    decoder, x, cache = make_decoder("learned"), x64(2, 5, 16), KVCache(4)
    mask = torch.tensor([[True] * 5, [True, True, True, False, True]])
    steps = [decoder(x[:, :3], cache=cache), decoder(x[:, 3:], mask=mask[:, 3:], cache=cache)]
    full = decoder(x, mask=mask)
    torch.testing.assert_close(torch.cat(steps, 1)[mask], full[mask])


@pytest.mark.parametrize("positions", POSITIONS)
def test_reorder_includes_memory_and_padding(positions):
    decoder = make_decoder(positions, other_depth=1)
    x, memory = x64(3, 7, 16), x64(3, 5, 16, seed=9)
    mask = torch.ones(3, 7, dtype=torch.bool)
    mask[1, :2] = mask[2, 0] = False
    memory_mask = masks.padding_mask(torch.tensor([5, 2, 3]))
    order = torch.tensor([1, 1, 0])
    cache = KVCache(len(decoder.plan.sites))
    context = {"memory": memory, "memory_mask": memory_mask}
    decoder(x[:, :4], mask=mask[:, :4], cache=cache, **context)
    cache.reorder(order)
    history = torch.cat((x[order, :4], x[:, 4:]), 1)
    steps = decoder(x[:, 4:], cache=cache, **context)
    valid = torch.cat((mask[order, :4], mask[:, 4:]), 1)
    full = decoder(history, mask=valid, memory=memory[order], memory_mask=memory_mask[order])
    torch.testing.assert_close(steps, full[:, 4:])


def select_parents(rows, parents):
    """Return the rows of each group, (B, n, ...), selected by parent index."""
    return rows[torch.arange(len(rows))[:, None], parents]


BEAM_OPTIONS = [
    {},
    {"kv_heads": 2, "qk_norm": "rms"},
    {"window": 3},
    {"persistent": 2},
    {"cap": 5.0},
]


@pytest.mark.parametrize("materialized", [False, True], ids=["shared", "materialized"])
@pytest.mark.parametrize("blocks", BEAM_OPTIONS, ids=str)
@pytest.mark.parametrize("positions", POSITIONS)
def test_beams_equal_separate_rows(positions, blocks, materialized):
    """Expand beams after padded prompts, reorder and drop them; compare with a full pass."""
    decoder = make_decoder(positions, other_depth=1, **blocks)
    prompts, memory = x64(3, 4, 16), x64(3, 5, 16, seed=9)
    mask = torch.ones(3, 4, dtype=torch.bool)
    mask[1, :2] = mask[2, 0] = False
    memory_mask = masks.padding_mask(torch.tensor([5, 2, 3]))
    cache = KVCache(len(decoder.plan.sites))
    with torch.no_grad():
        decoder(prompts, mask=mask, cache=cache, memory=memory, memory_mask=memory_mask)
        cache.expand_beams(2)
        groups = torch.arange(3)
        history = prompts[:, None].expand(-1, 2, -1, -1)
        orders = [[[0, 0], [1, 0], [1, 1]], [[1, 0], [0, 1], [1, 1]], [[1, 1], [0, 0]]]
        for step, order in enumerate(map(torch.tensor, orders)):
            if len(order) < len(groups):
                groups = torch.tensor([0, 2])
                cache.select_groups(groups)
                history = history[groups]
            cache.reorder_beams(order)
            if materialized and step == 1:
                for site in range(len(cache)):
                    cache[site].materialize()
            new = x64(len(order), 2, 1, 16, seed=20 + step)
            history = torch.cat((select_parents(history, order), new), 2)
            context = {
                "memory": memory[groups].repeat_interleave(2, 0),
                "memory_mask": memory_mask[groups].repeat_interleave(2, 0),
            }
            actual = decoder(new.flatten(0, 1), cache=cache, **context)
            valid = mask[groups].repeat_interleave(2, 0)
            valid = torch.nn.functional.pad(valid, (0, step + 1), value=True)
            full = decoder(history.flatten(0, 1), mask=valid, **context)
            torch.testing.assert_close(actual, full[:, -1:])
            assert cache.length == 5 + step


def test_probabilities_of_expanded_beams_have_one_row_per_beam():
    attention, cache = SelfAttention(8, 2, causal=True).eval(), KVCache(1)
    with torch.no_grad():
        attention(tokens(2, 3, 8), cache=cache[0])
        cache.expand_beams(2)
        attention(tokens(4, 1, 8, seed=1), cache=cache[0])
        cache.reorder_beams(torch.tensor([[1, 1], [0, 1]]))
        _, probabilities = attention(tokens(4, 1, 8, seed=2), cache=cache[0], weights=True)
    assert probabilities.shape == (4, 2, 1, 5)
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(4, 2, 1))


def test_reordered_and_truncated_beams_continue_as_rows():
    decoder, x = make_decoder("rotary"), x64(2, 6, 16)
    cache = KVCache(len(decoder.plan.sites))
    with torch.no_grad():
        decoder(x[:, :2], cache=cache)
        cache.expand_beams(2)
        rows = x.repeat_interleave(2, 0)
        decoder(rows[:, 2:3], cache=cache)
        cache.reorder(torch.tensor([3, 0, 1]))
        decoder(rows[[3, 0, 1], 3:4], cache=cache)
        cache.truncate(3)
        actual = decoder(rows[[3, 0, 1], 3:], cache=cache)
        torch.testing.assert_close(actual, decoder(rows[[3, 0, 1]])[:, 3:])


@pytest.mark.parametrize("positions", POSITIONS)
def test_truncated_tokens_are_forgotten(positions):
    decoder = make_decoder(positions, other_depth=1)
    x, memory = x64(3, 7, 16), x64(3, 5, 16, seed=9)
    cache = KVCache(len(decoder.plan.sites))
    mask = torch.tensor([[False, True, True, True]] * 3)
    decoder(x64(3, 4, 16, seed=7), mask=mask, cache=cache, memory=memory)
    cache.truncate(0)
    assert cache.length == 0
    torch.testing.assert_close(
        decode_in_chunks(decoder, x, (4, 3), cache, memory=memory), decoder(x, memory=memory)
    )
    cache.truncate(2)
    torch.testing.assert_close(
        decoder(x[:, 2:], cache=cache, memory=memory), decoder(x, memory=memory)[:, 2:]
    )


def test_custom_positions_are_cached():
    decoder, x, index = make_decoder("t5"), x64(2, 5, 16), torch.tensor([0, 10, 20, 21, 40])
    cache = KVCache(4)
    parts = (slice(0, 2), slice(2, 5))
    steps = [decoder(x[:, part], position_index=index[part], cache=cache) for part in parts]
    full = decoder(x, position_index=index)
    torch.testing.assert_close(torch.cat(steps, 1), full)
    assert not torch.allclose(full, decoder(x))


def test_visible_covers_cached_tokens():
    decoder, x, cache = make_decoder(), x64(2, 5, 16), KVCache(4)
    visible = masks.prefix_mask(torch.tensor([3, 3]), 5)
    steps = [
        decoder(x[:, :3], visible=visible[:, :3, :3], cache=cache),
        decoder(x[:, 3:], visible=visible[:, 3:], cache=cache),
    ]
    torch.testing.assert_close(torch.cat(steps, 1), decoder(x, visible=visible))


def test_memory_is_projected_once():
    torch.manual_seed(0)
    module, cache, calls = CrossAttention(16, 4), KVCache(1), []
    module.k_proj.register_forward_hook(lambda *_: calls.append(1))
    x, memory = tokens(2, 3, 16), tokens(2, 5, 16, seed=9)
    first = module(x, memory, cache=cache[0])
    assert torch.equal(module(x, torch.zeros_like(memory), cache=cache[0]), first)
    assert len(calls) == 1
    assert cache.length == 0  # a memory adds no tokens


def test_grouped_keys_are_cached_without_repetition():
    module, cache = SelfAttention(16, 4, kv_heads=2, causal=True), KVCache(1)
    module(tokens(3, 5, 16), cache=cache[0])
    assert cache[0].keys.shape == (3, 2, 5, 4)


def test_failed_call_leaves_cache_consistent():
    decoder, x, cache = make_decoder("t5"), x64(2, 5, 16), KVCache(4)
    first = decoder(x[:, :2], cache=cache)
    hook = decoder.sublayers[0].q_proj.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        decoder(x[:, 2:], cache=cache)
    hook.remove()
    steps = torch.cat((first, decoder(x[:, 2:], cache=cache)), 1)
    torch.testing.assert_close(steps, decoder(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d, c: KVCache(0), "sites: expected an integer of at least 1"),
        (lambda d, c: d(x64(3, 1, 16), cache=c), "expected a batch of 2, got 3"),
        (lambda d, c: c.truncate(5), "expected 0 to 4, the tokens in the cache, got 5"),
        (
            lambda d, c: d(x64(2, 1, 16), mask=torch.ones(2, 5).bool(), cache=c),
            "one entry per token",
        ),
        (
            lambda d, c: d(x64(2, 1, 16), cache=KVCache(3)),
            r"expected KVCache\(4\), .* got one of 3",
        ),
        (lambda d, c: d(x64(2, 1, 16), cache=[None]), r"expected KVCache\(4\), .* got \[None\]"),
    ],
)
def test_errors(call, message):
    decoder, cache = make_decoder(), KVCache(4)
    decoder(x64(2, 4, 16), cache=cache)
    with pytest.raises(UserError, match=message):
        call(decoder, cache)


def test_cache_is_usable_across_gradient_modes():
    decoder, x = Decoder(dim=16, depth=1, heads=2).eval(), tokens(2, 8, 16)
    whole, cache, steps = decoder(x), KVCache(2), []
    modes = [torch.no_grad] * 3 + [torch.enable_grad] + [torch.no_grad] * 2
    modes += [torch.inference_mode, torch.no_grad]
    for step, mode in enumerate(modes):
        with mode():
            steps.append(decoder(x[:, step : step + 1], cache=cache).clone())
    torch.testing.assert_close(torch.cat([each.detach() for each in steps], 1), whole)
