"""FixNorm on the table of tokens: only the direction of a row counts, on the way in and out."""

import pytest
import torch
import torch.nn.functional as F

from addnorm.core.errors import UserError
from addnorm.models import Config, build

SIZES = {"vocab": 11, "dim": 10, "depth": 1, "heads": 2, "table_norm": "fixnorm"}
FIXED = SIZES | {"embed_scale": "sqrt_dim", "positions": "none"}
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])


def fixed(**choices):
    return build(Config.from_kwargs(**FIXED | {"kind": "lm"} | choices), seed=0)


def by_hand(model, ids):
    """Embedding and logits as one would write them."""
    table = model.embed.table
    unit = table / table.norm(dim=1, keepdim=True)
    h = model.decoder(10**0.5 * unit[ids])
    return F.linear(h, unit)


def test_tokens_have_one_length_on_the_way_in_and_out():
    model = fixed()
    torch.testing.assert_close(model.embed(IDS).norm(dim=-1), torch.full(IDS.shape, 10**0.5))
    torch.testing.assert_close(model(IDS), by_hand(model, IDS))


@pytest.mark.parametrize("tied", [True, False])
def test_the_length_of_a_row_changes_nothing(tied):
    model = fixed(tied=tied)
    before = model(IDS)
    with torch.no_grad():
        for role, weight in model.outer_weights():
            assert role == "embed"
            weight.mul_(torch.arange(1.0, 12.0)[:, None])
    torch.testing.assert_close(model(IDS), before)


def test_gradients_stand_at_right_angles_to_the_rows():
    model = fixed()
    model.loss(IDS, IDS).loss.backward()
    table = model.embed.table
    assert table.grad.abs().max() > 1e-3
    torch.testing.assert_close((table * table.grad).sum(1), torch.zeros(11), atol=1e-5, rtol=0)


def test_logits_are_bounded_by_the_scale_of_the_last_norm():
    model = fixed(norm="scale", wiring="pre_ln")
    assert model(IDS).abs().max() <= 10**0.5 + 1e-4


def test_source_and_target_share_it():
    model = fixed(kind="seq2seq", source_vocab=7)
    assert model(IDS.clamp_max(6), IDS).shape == (2, 4, 11)
    torch.testing.assert_close(model.source_embed.rows.norm(dim=1), torch.ones(7))


def test_images_have_no_table():
    with pytest.raises(UserError, match="table_norm is of no use: an image has no table"):
        Config.from_kwargs(
            kind="classifier", dim=8, depth=1, heads=2, image=8, patch=4, table_norm="fixnorm"
        )
