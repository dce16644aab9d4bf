"""ViT and DeiT answer as in transformers."""

import pytest
import torch
import transformers

from tests.interop.cases import IMAGES
from tests.interop.zoo import compare, shake, there_and_back

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("case", IMAGES, ids=str)
def test_answers_and_the_way_back(case):
    model = case.build()
    torch.manual_seed(0)
    compare(model, there_and_back(model), {"pixel_values": torch.randn(3, 3, 16, 16)})


def test_without_a_pooler():
    config = transformers.ViTConfig(**IMAGES[0].values)
    model = shake(transformers.ViTModel(config, add_pooling_layer=False))
    compare(model, there_and_back(model), {"pixel_values": torch.randn(3, 3, 16, 16)})
