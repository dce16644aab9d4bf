"""Vision encoders give the outputs of transformers."""

import pytest
import torch
import transformers

from tests.interop.cases import IMAGES
from tests.interop.zoo import assert_same_outputs, perturb, round_trip

pytestmark = pytest.mark.peer


@pytest.mark.parametrize("case", IMAGES, ids=str)
def test_outputs_match(case):
    model = case.build()
    torch.manual_seed(0)
    assert_same_outputs(model, round_trip(model), {"pixel_values": torch.randn(3, 3, 16, 16)})


def test_model_without_pooler():
    config = transformers.ViTConfig(**IMAGES[0].values)
    model = perturb(transformers.ViTModel(config, add_pooling_layer=False))
    assert_same_outputs(model, round_trip(model), {"pixel_values": torch.randn(3, 3, 16, 16)})
