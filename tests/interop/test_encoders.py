"""Text encoders give the outputs of transformers."""

import pytest
import torch

from tests.interop.cases import ENCODERS
from tests.interop.zoo import assert_same_outputs, batch, round_trip

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("case", ENCODERS, ids=str)
def test_outputs_match(case):
    model = case.build()
    ours = round_trip(model)
    for side in (None, "right", "left"):
        inputs = batch(model, side)
        assert_same_outputs(model, ours, inputs)
        if getattr(model.config, "type_vocab_size", 0):
            segments = (torch.arange(9) > 3).long().expand(3, -1)
            assert_same_outputs(model, ours, inputs | {"token_type_ids": segments})
        positions = torch.randperm(30)[:9].expand(3, -1)
        assert_same_outputs(model, ours, inputs | {"position_ids": positions})


def test_model_without_pooler():
    bert = ENCODERS[0]
    import transformers

    model = transformers.BertModel(
        transformers.BertConfig(**bert.values), add_pooling_layer=False
    ).eval()
    ours = round_trip(model)
    assert_same_outputs(model, ours, batch(model))
    assert ours(**batch(model)).pooler_output is None
