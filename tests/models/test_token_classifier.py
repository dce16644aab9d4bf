"""A classifier without pooling labels every token."""

import pytest
import torch

from addnorm.core.errors import UserError
from addnorm.interop import to_hf
from addnorm.models import build
from addnorm.train import Recipe

SIZES = {"kind": "classifier", "vocab": 20, "dim": 16, "depth": 2, "heads": 2, "classes": 3}


def test_every_token_is_classified_from_its_hidden_state():
    model = build(**SIZES, pooling="none", seed=0).eval()
    ids = torch.randint(20, (2, 5))
    logits, hidden = model(ids), model.hidden(ids)
    assert logits.shape == (2, 5, 3)
    expected = hidden @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(logits, expected)
    targets = torch.tensor([[0, 1, 2, -100, -100], [2, 2, 1, 0, -100]])
    assert int(model.loss(targets, ids).num_targets) == 7


def test_pooler_without_pooling_reads_every_token():
    options = {"pooler": True, "pooler_activation": "gelu", "pooler_norm": "layer"}
    model = build(**SIZES, pooling="none", **options, seed=0).eval()
    ids = torch.randint(20, (2, 5))
    pooled = torch.nn.functional.gelu(model.pooler(model.hidden(ids)))
    expected = model.head(torch.nn.functional.layer_norm(pooled, (16,)))
    torch.testing.assert_close(model(ids), expected)


def test_norm_of_a_missing_pooler_is_rejected():
    with pytest.raises(UserError, match="pooler_norm: expected the default because the model has"):
        build(**SIZES, pooler_norm="layer")


def test_tasks_with_a_label_per_text_need_pooling():
    with pytest.raises(UserError, match="pooling: expected cls or mean for a task with one label"):
        Recipe.from_dict({"task": "classify", "data": "x", "pooling": "none"})


def test_no_class_of_our_own_in_transformers():
    with pytest.raises(UserError, match="pooling cls or mean"):
        to_hf(build(**SIZES, pooling="none"))
