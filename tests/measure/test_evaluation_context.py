"""Context managers around an extra forward pass."""

import pytest
from torch import nn

from addnorm.measure.evaluation_context import evaluation_mode
from addnorm.stacks.eval_mode import eval_mode


@pytest.mark.parametrize("context", [eval_mode, evaluation_mode])
def test_mode_of_every_module_is_restored_after_an_error(context):
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(3), nn.Sequential(nn.Dropout()))
    model[1].eval()  # a frozen part of a model in training
    with pytest.raises(RuntimeError), context(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [module.training for module in model.modules()] == [True, True, False, True, True]
