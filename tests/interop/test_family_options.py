"""Options of positions and models that released families need."""

import math

import pytest
import torch

from addnorm.core.errors import UserError
from addnorm.models import build
from addnorm.sublayers import make_positions


def sinusoids(call, index, dim=8):
    index = torch.as_tensor(index)
    return make_positions(call, dim=dim, heads=2).add(torch.zeros(1, len(index), dim), index)[0]


def test_half_layout_has_all_sines_first():
    mixed, split = sinusoids("sinusoid", range(5)), sinusoids("sinusoid(layout=half)", range(5))
    assert torch.equal(split, torch.cat((mixed[:, 0::2], mixed[:, 1::2]), 1))


def test_closed_steps_end_at_the_base():
    split = sinusoids("sinusoid(layout=half, steps=closed, base=1000.0)", [0, 3])
    f = torch.tensor([1.0, 0.1, 0.01, 0.001])
    torch.testing.assert_close(split[1], torch.cat(((3 * f).sin(), (3 * f).cos())))


def test_silent_position_is_zero():
    split = sinusoids("sinusoid(silent=1)", [0, 1, 2])
    assert not split[1].any() and split[0].any() and split[2].any()


def test_sinusoids_reject_odd_dims():
    with pytest.raises(
        UserError,
        match=r"expected an even number from 4 for sinusoid\(layout=half, steps=open\), got",
    ):
        make_positions("sinusoid(layout=half)", dim=5, heads=1)


def rotation_angles(call, position):
    """Return the rotation angles of the feature pairs of a head of 8 features."""
    rotation = make_positions(call, dim=8, heads=1).rotation(torch.tensor([position]))
    return torch.atan2(rotation.sin, rotation.cos)[0]


def test_linear_scaling_divides_positions():
    torch.testing.assert_close(
        rotation_angles("rotary(scaling=linear, factor=4.0)", 8), rotation_angles("rotary", 2)
    )


def test_llama3_scaling_divides_low_frequencies():
    call = "rotary(base=1e4, scaling=llama3, factor=4.0, low=1.0, high=3.0, length=64)"
    plain, scaled = rotation_angles("rotary", 1), rotation_angles(call, 1)
    assert torch.equal(plain[0], scaled[0])  # 64 / 2 pi rotations within the length
    torch.testing.assert_close(plain[2:] / 4, scaled[2:])
    rotations = 64 * 0.1 / (2 * math.pi)
    unscaled = (rotations - 1) / 2
    torch.testing.assert_close(scaled[1], plain[1] * (unscaled + (1 - unscaled) / 4))


def test_llama3_scaling_rejects_invalid_bounds():
    with pytest.raises(UserError, match=r"expected low below high, got low=4.0, high=4.0"):
        make_positions("rotary(scaling=llama3, low=4.0)", dim=8, heads=1)


IMAGE = {"kind": "classifier", "image": 8, "patch": 4, "dim": 16, "depth": 1, "heads": 2}


def test_several_class_tokens():
    model = build(**IMAGE, class_tokens=3, positions="learned(length=7)", seed=0)
    h = model(torch.randn(2, 3, 8, 8))
    assert h.shape == (2, 7, 16)
    first = model.embed(torch.randn(2, 3, 8, 8))[:, :3]
    assert torch.equal(first[0], torch.cat((model.embed.cls[None], model.embed.more)))
    assert model.embed.more.std() > 0.05, "not initialized"
    with pytest.raises(
        UserError, match="class_tokens: expected 1 for a model without images, got 2"
    ):
        build(kind="classifier", vocab=9, dim=8, depth=1, heads=2, class_tokens=2)


@pytest.mark.parametrize("name", ["tanh", "relu", "gelu"])
def test_pooler_activations(name):
    model = build(kind="classifier", vocab=9, dim=8, depth=1, heads=2, pooler=True, classes=3,
                  pooler_activation=name)  # fmt: skip
    h = torch.randn(2, 5, 8)
    act = {"tanh": torch.tanh, "relu": torch.relu, "gelu": torch.nn.functional.gelu}[name]
    torch.testing.assert_close(model.pool(h), act(model.pooler(h[:, 0])))


@pytest.mark.parametrize("kind", ["masked_lm", "classifier", "lm"])
def test_position_index(kind):
    values = {"vocab": 9, "dim": 8, "depth": 1, "heads": 2, "positions": "learned(length=9)"}
    model = build(kind=kind, **values, seed=0).eval()
    ids, index = torch.tensor([[1, 2, 3]]), torch.arange(3)
    assert torch.equal(model(ids), model(ids, position_index=index))
    assert not torch.allclose(model(ids), model(ids, position_index=index + 4))


def test_position_index_of_seq2seq():
    values = {"vocab": 9, "dim": 8, "depth": 1, "heads": 2, "positions": "learned(length=9)"}
    model = build(kind="seq2seq", **values, seed=0).eval()
    ids, index = torch.tensor([[1, 2, 3]]), torch.arange(3)
    memory = model.encode(ids, position_index=index)
    assert torch.equal(memory, model.encode(ids))
    assert not torch.allclose(memory, model.encode(ids, position_index=index + 4))
    logits = model.decode(ids, memory, position_index=index)
    assert torch.equal(logits, model(ids, ids))
    assert torch.equal(logits, model.head(model.hidden(ids, memory), model.embed))
    assert not torch.allclose(logits, model.decode(ids, memory, position_index=index + 4))
