"""Typical layers and their diagram."""

import pytest
import torch
from torch import nn

import addnorm
from addnorm.report.diagram.doctor import doctor_diagram
from tests.doctor.models.tiny import DIM, Model, PostBlock, PreBlock, ids, stack

NORM, LOOK, MLP = (
    ("norm", "LayerNorm"),
    ("sublayer", "Self-attention"),
    ("sublayer", "Feed-forward"),
)
ADD, SCALE = ("add", "+"), ("scale", "1.5")


def pieces(model):
    torch.manual_seed(0)
    (layer,) = addnorm.doctor(model, ids(), rules=()).sketches
    return layer, [(piece.kind, piece.label) for piece in layer.elements[1:-1]]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Model(stack(PreBlock), nn.LayerNorm(DIM)), [NORM, LOOK, ADD, NORM, MLP, ADD, NORM]),
        (Model(stack(PostBlock)), [LOOK, ADD, NORM, MLP, ADD, NORM]),
        (Model(stack(PostBlock, alpha=1.5)), [LOOK, SCALE, ADD, NORM, MLP, SCALE, ADD, NORM]),
        (Model(stack(PreBlock, fault="skip")), [NORM, LOOK, ADD, NORM, MLP, ADD]),
    ],
)
def test_elements_of_typical_layer(model, expected):
    layer, elements = pieces(model)
    assert elements == expected
    assert layer.repeats == 3


def test_false_pre_norm_skip_starts_after_norm():
    layer, _ = pieces(Model(stack(PreBlock, fault="skip")))
    norm, look, add = 1, 2, 3
    assert layer.elements[add].inputs == (norm, look)
    healthy, _ = pieces(Model(stack(PreBlock)))
    assert healthy.elements[add].inputs == (0, look)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_diagram_contains_every_element(theme):
    report = addnorm.doctor(Model(stack(PostBlock, alpha=1.5)), ids(), rules=())
    text = doctor_diagram(report, theme=theme)
    assert text.startswith("<svg") and text.rstrip().endswith("</svg>")
    for word in ("Self-attention", "Feed-forward", "LayerNorm", "1.5", "3"):
        assert word in text


def test_most_frequent_layer_is_drawn():
    torch.manual_seed(0)
    blocks = stack(PreBlock)
    blocks[1] = PreBlock(fault="half skip")
    one = addnorm.doctor(Model(blocks, nn.LayerNorm(DIM)), ids(), rules=()).sketches
    other = addnorm.doctor(Model(stack(PreBlock), nn.LayerNorm(DIM)), ids(), rules=()).sketches
    assert one == other
