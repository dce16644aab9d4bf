"""BERT and its relatives answer as in transformers."""

import pytest
import torch

from tests.interop.cases import ENCODERS
from tests.interop.zoo import batch, compare, there_and_back

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("case", ENCODERS, ids=str)
def test_answers_and_the_way_back(case):
    model = case.build()
    ours = there_and_back(model)
    for side in (None, "right", "left"):
        inputs = batch(model, side)
        compare(model, ours, inputs)
        if getattr(model.config, "type_vocab_size", 0):
            segments = (torch.arange(9) > 3).long().expand(3, -1)
            compare(model, ours, inputs | {"token_type_ids": segments})
        places = torch.randperm(30)[:9].expand(3, -1)
        compare(model, ours, inputs | {"position_ids": places})


def test_without_a_pooler():
    bert = ENCODERS[0]
    import transformers

    model = transformers.BertModel(
        transformers.BertConfig(**bert.values), add_pooling_layer=False
    ).eval()
    ours = there_and_back(model)
    compare(model, ours, batch(model))
    assert ours(**batch(model)).pooler_output is None
