"""GPT, LLaMA and their relatives answer and write as in transformers."""

import pytest
import torch

from tests.interop.cases import GPTS, LLAMAS
from tests.interop.zoo import batch, compare, there_and_back

SCRIPTED = "ignore:.torch.jit.script. is deprecated:DeprecationWarning"  # of gpt_bigcode
pytestmark = [pytest.mark.peer, pytest.mark.filterwarnings(SCRIPTED)]

WRITERS = [case for case in GPTS + LLAMAS if not case.name.endswith("Model") or "LM" in case.name]


@pytest.mark.parametrize("case", GPTS + LLAMAS, ids=str)
def test_answers_and_the_way_back(case):
    model = case.build()
    ours = there_and_back(model)
    for side in (None, "right", "left"):
        inputs = batch(model, side)
        compare(model, ours, inputs)
        if not case.name.startswith(("Bloom", "Mpt")):
            places = torch.arange(4, 13).expand(3, -1)
            compare(model, ours, inputs | {"position_ids": places})


@pytest.mark.parametrize("case", WRITERS, ids=str)
def test_greedy_generation_token_for_token(case):
    model = case.build(seed=2)
    ours = there_and_back(model)
    for side, seed in ((None, 1), ("left", 2)):
        inputs = batch(model, side, seed=seed)
        wanted = model.generate(**inputs, do_sample=False, max_new_tokens=12)
        got = ours.greedy(**inputs, max_new_tokens=12)
        assert torch.equal(wanted, got), side
    assert got.shape[1] > 9


def test_a_sequence_that_ends_is_filled_with_padding():
    model = GPTS[2].build(seed=2)
    inputs = batch(model)
    free = model.generate(**inputs, do_sample=False, max_new_tokens=6)
    model.generation_config.eos_token_id = [int(free[0, 10]), int(free[1, 11])]
    ours = there_and_back(model)
    wanted = model.generate(**inputs, do_sample=False, max_new_tokens=6)
    assert torch.equal(ours.greedy(**inputs, max_new_tokens=6), wanted)
    assert (wanted == 0).any()
