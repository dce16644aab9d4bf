"""Decoders give the outputs and generations of transformers."""

import pytest
import torch

from tests.interop.cases import GPTS, LLAMAS
from tests.interop.zoo import assert_same_outputs, batch, round_trip

SCRIPTED = "ignore:.torch.jit.script. is deprecated:DeprecationWarning"  # of gpt_bigcode
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings(SCRIPTED)]

GENERATORS = [
    case for case in GPTS + LLAMAS if not case.name.endswith("Model") or "LM" in case.name
]


@pytest.mark.parametrize("case", GPTS + LLAMAS, ids=str)
def test_outputs_match(case):
    model = case.build()
    ours = round_trip(model)
    for side in (None, "right", "left"):
        inputs = batch(model, side)
        assert_same_outputs(model, ours, inputs)
        if not case.name.startswith(("Bloom", "Mpt")):
            positions = torch.arange(4, 13).expand(3, -1)
            assert_same_outputs(model, ours, inputs | {"position_ids": positions})


@pytest.mark.parametrize("case", GENERATORS, ids=str)
def test_greedy_matches_generate(case):
    model = case.build(seed=2)
    ours = round_trip(model)
    for side, seed in ((None, 1), ("left", 2)):
        inputs = batch(model, side, seed=seed)
        expected = model.generate(**inputs, do_sample=False, max_new_tokens=12)
        actual = ours.greedy(**inputs, max_new_tokens=12)
        assert torch.equal(expected, actual), side
    assert actual.shape[1] > 9


def test_finished_sequences_are_padded():
    model = GPTS[2].build(seed=2)
    inputs = batch(model)
    free = model.generate(**inputs, do_sample=False, max_new_tokens=6)
    model.generation_config.eos_token_id = [int(free[0, 10]), int(free[1, 11])]
    ours = round_trip(model)
    expected = model.generate(**inputs, do_sample=False, max_new_tokens=6)
    assert torch.equal(ours.greedy(**inputs, max_new_tokens=6), expected)
    assert (expected == 0).any()
