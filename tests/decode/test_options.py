"""Decoding options: derived values and rejected combinations."""

import pytest

from addnorm.core.errors import UserError
from addnorm.decode import DecodingOptions


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 0}, "beam: expected a whole number from 1 to 10,000, got 0"),
        ({"beam": 2.0}, "beam: expected a whole number from 1 to 10,000, got 2.0"),
        ({"beam": True}, "beam: expected a whole number from 1 to 10,000, got True"),
        ({"beam": 2**63}, "beam: expected a whole number from 1 to 10,000, got"),
        ({"max_new": 2**63}, "max_new: expected a whole number from 1 to 1,000,000,000, got"),
        ({"nbest": 0}, "nbest: expected a whole number from 1 to 10,000, got 0"),
        ({"top_k": 0}, "top_k: expected a whole number from 1 to 1,000,000,000, got 0"),
        ({"max_new": 0}, "max_new: expected a whole number from 1 to 1,000,000,000, got 0"),
        ({"max_source": 0}, "max_source: expected a whole number from 1"),
        (
            {"batch_tokens": -1},
            "batch_tokens: expected a whole number from 1 to 1,000,000,000, got -1",
        ),
        ({"ratio": -1}, "ratio: expected a number from 0, got -1"),
        ({"extra": float("nan")}, "extra: expected a number from 0, got nan"),
        ({"seed": 0.5}, "seed: expected a whole number, got 0.5"),
        ({"stop": "early"}, "stop: expected likely or exact, got 'early'"),
        ({"length_penalty": -0.1}, "length_penalty: expected a number from 0 or 'mean', got -0.1"),
        (
            {"length_penalty": "median"},
            "length_penalty: expected a number from 0 or 'mean', got 'median'",
        ),
        ({"temperature": 0.0}, "temperature: expected a number above 0, got 0.0; leave it out"),
        ({"temperature": float("inf")}, "temperature: expected a number above 0, got inf"),
        ({"top_p": 0.0}, "top_p: expected a number above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, "top_p: expected a number above 0 and at most 1, got 1.1"),
        ({"min_p": -0.1}, "min_p: expected a number above 0 and at most 1, got -0.1"),
        ({"beam": 3, "top_k": 5}, "beam: expected 1 for sampling \\(top_k=5\\), got 3"),
        ({"beam": 3, "nbest": 4}, "nbest: expected at most beam=3, got 4; try beam=4"),
        ({"nbest": 2}, "nbest: expected at most beam=1, got 2; try beam=2, or a temperature"),
    ],
)
def test_invalid_options_are_rejected(settings, message):
    with pytest.raises(UserError, match=message):
        DecodingOptions(**settings)


def test_length_penalty_formulas():
    assert DecodingOptions(length_penalty=0.6).penalty(7) == pytest.approx(2**0.6)
    assert DecodingOptions(length_penalty=0).penalty(7) == 1
    assert DecodingOptions(length_penalty="mean").penalty(7) == 7


def test_temperature_selects_sampling():
    assert not DecodingOptions(beam=4, nbest=4).is_sampling
    assert (
        DecodingOptions(temperature=1.0, nbest=3).is_sampling
        and DecodingOptions(temperature=1.0, nbest=3).hypotheses_per_sentence == 3
    )
