"""Attention maps."""

import torch

from addnorm import SelfAttention, Stack
from addnorm.measure import attention_maps
from tests.helpers import perturb, tanh_sublayers, tokens
from tests.measure.cases import make_batch, make_translator


def test_maps_equal_the_attention_of_the_sublayers():
    model, (args, masks) = perturb(make_translator(qk_norm="rms_head")).eval(), make_batch()
    maps = attention_maps(model, *args, **masks)
    assert {name: len(layers) for name, layers in maps.items()} == {
        "encoder": 2,
        "decoder": 2,
        "cross": 2,
    }
    with model.encoder.taps.record() as encoder, model.decoder.taps.record() as decoder:
        memory = model.encode(args[0], source_mask=masks["source_mask"])
        model.decode(args[1], memory, **masks)
    for layer in range(2):
        expected = (
            model.encoder.sublayers[2 * layer](
                encoder["read"][2 * layer], mask=masks["source_mask"], weights=True
            ),
            model.decoder.sublayers[3 * layer](
                decoder["read"][3 * layer], mask=masks["target_mask"], weights=True
            ),
            model.decoder.sublayers[3 * layer + 1](
                decoder["read"][3 * layer + 1],
                memory,
                memory_mask=masks["source_mask"],
                weights=True,
            ),
        )
        for name, (_, probabilities) in zip(("encoder", "decoder", "cross"), expected, strict=True):
            torch.testing.assert_close(maps[name][layer], probabilities)


def test_rows_sum_to_one_and_padding_gets_zero():
    args, masks = make_batch()
    maps = attention_maps(make_translator(heads=2), *args, **masks)
    for layers in maps.values():
        for each in layers:
            torch.testing.assert_close(each.sum(-1), torch.ones(each.shape[:-1]))
    hidden = ~masks["source_mask"][:, None, None, :]
    assert maps["cross"][0].shape == (5, 2, 6, 7)
    assert (maps["cross"][0].masked_select(hidden) == 0).all()
    assert (maps["decoder"][1].triu(1) == 0).all()


def test_mode_generator_and_gradients_are_unchanged():
    model, (args, masks) = make_translator(), make_batch()
    model.decoder.eval()  # only a part of the model
    flags = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    first = attention_maps(model, *args, **masks)
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), state)
    assert not first["cross"][0].requires_grad
    second = attention_maps(model, *args, **masks)
    assert torch.equal(first["cross"][1], second["cross"][1])  # no dropout


def test_stack_without_attention_has_no_maps():
    assert attention_maps(Stack(tanh_sublayers(2, 10), dim=10), tokens()) == {}


def test_persistent_slots_precede_the_tokens():
    stack = Stack([SelfAttention(8, 2, persistent=3, causal=True)], dim=8, kinds=("self",))
    (only,) = attention_maps(stack, tokens(1, 3, 8))["encoder"]
    assert only.shape == (1, 2, 3, 6)
    assert (only[..., :3] > 0).all()
