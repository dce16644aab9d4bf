"""Closest arrangement: stored signatures are current, and all fits are listed."""

import pytest
import torch
from torch import nn

import addnorm
from addnorm.doctor.matching import DEPTH, KINDS, known_signatures, wiring_signature
from addnorm.wirings import registry
from tests.doctor.models.tiny import DIM, Model, PostBlock, PreBlock, ids, stack


def agrees(kind, depth, names):
    stored = dict(known_signatures(kind, depth))
    for name in names:
        assert stored[name] == wiring_signature(name, kind, depth), (
            "run: python tools/signatures.py"
        )


def test_stored_signatures_are_current():
    agrees("lm", 2, sorted(registry)[::3])


@pytest.mark.slow
@pytest.mark.parametrize("depth", range(1, DEPTH + 1))
@pytest.mark.parametrize("kind", KINDS)
def test_all_stored_signatures_are_current(kind, depth):
    agrees(kind, depth, sorted(registry))


def test_every_wiring_is_stored(monkeypatch):
    monkeypatch.setattr(
        "addnorm.doctor.matching.wiring_signature", lambda *_: pytest.fail("not stored")
    )
    for kind in KINDS:
        assert {name for name, _ in known_signatures(kind, DEPTH)} == set(registry)


def test_fits_list_plain_wiring_first():
    torch.manual_seed(0)
    report = addnorm.doctor(Model(stack(PreBlock, 4), nn.LayerNorm(DIM)), ids())
    assert report.arrangement == "pre_ln"
    assert report.fits == ("pre_ln", "drop_path", "layer_drop")
    post = addnorm.doctor(Model(stack(PostBlock, 4)), ids())
    assert post.fits == ("post_ln",) and "bert" in post.families
