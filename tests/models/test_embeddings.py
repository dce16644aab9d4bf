"""FixNorm on the token embedding: only the directions of its rows matter."""

import pytest
import torch
import torch.nn.functional as F

from addnorm.core.errors import UserError
from addnorm.models import Config, build

SIZES = {"vocab": 11, "dim": 10, "depth": 1, "heads": 2, "table_norm": "fixnorm"}
FIXED = SIZES | {"embed_scale": "sqrt_dim", "positions": "none"}
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])


def fixnorm_model(**changes):
    return build(Config(**FIXED | {"kind": "lm"} | changes), seed=0)


def reference_logits(model, ids):
    """Compute the logits with an explicitly normalized table."""
    table = model.embed.table
    unit = table / table.norm(dim=1, keepdim=True)
    h = model.decoder(10**0.5 * unit[ids])
    return F.linear(h, unit)


def test_fixnorm_applies_to_input_and_output():
    model = fixnorm_model()
    torch.testing.assert_close(model.embed(IDS).norm(dim=-1), torch.full(IDS.shape, 10**0.5))
    torch.testing.assert_close(model(IDS), reference_logits(model, IDS))


@pytest.mark.parametrize("tied", [True, False])
def test_row_lengths_do_not_matter(tied):
    model = fixnorm_model(tied=tied)
    before = model(IDS)
    with torch.no_grad():
        for role, weight in model.outer_weights():
            assert role == "embed"
            weight.mul_(torch.arange(1.0, 12.0)[:, None])
    torch.testing.assert_close(model(IDS), before)


def test_gradients_are_orthogonal_to_rows():
    model = fixnorm_model()
    model.loss(IDS, IDS).loss.backward()
    table = model.embed.table
    assert table.grad.abs().max() > 1e-3
    torch.testing.assert_close((table * table.grad).sum(1), torch.zeros(11), atol=1e-5, rtol=0)


def test_logits_are_bounded_by_the_last_norm():
    model = fixnorm_model(norm="scale", wiring="pre_ln")
    assert model(IDS).abs().max() <= 10**0.5 + 1e-4


def test_fixnorm_of_source_vocabulary():
    model = fixnorm_model(kind="seq2seq", source_vocab=7)
    assert model(IDS.clamp_max(6), IDS).shape == (2, 4, 11)
    torch.testing.assert_close(model.source_embed.rows.norm(dim=1), torch.ones(7))


def test_images_reject_table_norm():
    with pytest.raises(UserError, match=r"table_norm: .* because an image has no token embedding"):
        Config(kind="classifier", dim=8, depth=1, heads=2, image=8, patch=4, table_norm="fixnorm")
