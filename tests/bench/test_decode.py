"""Candidates of the decoding benchmarks do the same work."""

import pytest

from addnorm.bench import decode
from addnorm.bench.base import OURS

pytestmark = [pytest.mark.slow, pytest.mark.peer]


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(decode, "NUM_SENTENCES", 3)
    monkeypatch.setattr(decode, "NUM_NEW_TOKENS", 5)


def test_export_in_float32_decodes_the_same_tokens(short):
    candidates = decode.build_export_candidates("float32")
    own = candidates[decode.OWN_DECODING]()
    assert candidates[OURS]() == own and len(own) == 3 and {len(row) for row in own} == {5}
    assert candidates[decode.PEER]()[:, 1:].tolist() == [list(row) for row in own]


def test_export_in_int8_decodes_as_many_tokens(short):
    rows = decode.build_export_candidates("int8")[OURS]()
    assert [len(row) for row in rows] == [5, 5, 5]
