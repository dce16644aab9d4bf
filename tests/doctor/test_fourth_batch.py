"""The fourth batch: what the first run of the doctor found, and no false alarm."""

import pytest

import addnorm
from tests.doctor.models.fourth_batch import BROKEN, HEALTHY, build

MISSES = {
    "b22": "epsilon of a hand-written query-key norm, off the stream",
    "b24": "hand-written norm over the width of an image",
    "b29": "LayerScale that starts at 1, which is a remark",
    "b32": "cross-attention that replaces the stream",
}
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]  # of torch


def has_alarm(function):
    model, inputs, options = build(function)
    findings = addnorm.doctor(model, inputs, **options).findings
    return any(finding.severity in ("warning", "error") for finding in findings)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_models_are_found_except_the_known_misses(name):
    _, _, function = BROKEN[name]
    assert has_alarm(function) is (name.partition("_")[0] not in MISSES)


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_have_no_alarm(name):
    _, _, function = HEALTHY[name]
    assert not has_alarm(function)


def test_the_batch_is_complete():
    assert (len(BROKEN), len(HEALTHY)) == (40, 40)
