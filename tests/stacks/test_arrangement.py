"""The arrangement inside a state_dict: averages of weights keep it, other arrangements are
refused."""

import io

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from addnorm import Encoder
from addnorm.core.errors import ArrangementMismatchError
from addnorm.stacks.arrangement import decode_text, encode_text
from tests.helpers import perturb, tokens


def make_encoder(norm: str = "layer") -> Encoder:
    torch.manual_seed(0)
    return Encoder(dim=8, depth=2, heads=2, wiring="ngpt", norm=norm)


def average_in_place(one, other):
    for name, value in one.items():
        value.mul_(0.9).add_(other[name], alpha=0.1)
    return one


def average_from_zero(one, other):
    total = {name: torch.zeros_like(value) for name, value in one.items()}
    for step in (one, other):
        total = {name: 0.999 * total[name] + 0.001 * value for name, value in step.items()}
    return total


AVERAGES = {
    "in place": average_in_place,
    "from zero": average_from_zero,
    "mean": lambda one, other: {
        name: torch.stack([value, other[name]]).mean(0) for name, value in one.items()
    },
    "bfloat16": lambda one, other: {
        name: 0.7 * value.bfloat16() + 0.3 * other[name].bfloat16() for name, value in one.items()
    },
    "float16": lambda one, other: {
        name: 0.7 * value.half() + 0.3 * other[name].half() for name, value in one.items()
    },
    "lerp": lambda one, other: {
        name: torch.lerp(value, other[name], 0.1) for name, value in one.items()
    },
    "safetensors": lambda one, other: safetensors.torch.load(safetensors.torch.save(one)),
}


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("assign", [True, False])
@pytest.mark.parametrize("average", AVERAGES.values(), ids=AVERAGES)
def test_averages_load_and_keep_their_arrangement(average, strict, assign):
    one, other = make_encoder(), perturb(make_encoder())
    weights = average(one.state_dict(), other.state_dict())
    target = make_encoder()
    target.load_state_dict(weights, strict=strict, assign=assign)
    loaded = {name: value.float() for name, value in target.state_dict().items()}
    for name, value in weights.items():
        if name != "_extra_state":
            torch.testing.assert_close(loaded[name], value.float(), rtol=0, atol=0)
    with pytest.raises(ArrangementMismatchError, match="norm=layer"):
        make_encoder("rms").load_state_dict(weights, strict=strict, assign=assign)


def test_average_of_different_arrangements_is_refused():
    one, other = make_encoder("layer").state_dict(), make_encoder("scale").state_dict()
    length = min(len(one["_extra_state"]), len(other["_extra_state"]))
    mixed = (one["_extra_state"][:length] + other["_extra_state"][:length]) / 2
    for norm in ("layer", "scale"):
        with pytest.raises(ArrangementMismatchError):
            make_encoder(norm).load_state_dict(one | {"_extra_state": mixed})


@pytest.mark.parametrize("use_buffers", [True, False])
def test_swa_utils_average_a_stack(use_buffers):
    stack, x = make_encoder(), tokens(2, 3, 8)
    averaged = AveragedModel(stack, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=use_buffers)
    averaged.update_parameters(perturb(stack))
    averaged.update_parameters(perturb(stack, seed=5))
    restored = AveragedModel(make_encoder())
    restored.load_state_dict(averaged.state_dict())
    assert torch.equal(restored(x), averaged(x))
    stack.load_state_dict(averaged.module.state_dict())
    assert torch.equal(stack(x), averaged(x))


def test_compiled_and_wrapped_stacks_exchange_weights():
    stack, target = perturb(make_encoder()), nn.Sequential(make_encoder())
    target.load_state_dict(nn.Sequential(stack).state_dict())
    compiled = torch.compile(make_encoder(), backend="eager")
    compiled.load_state_dict({f"_orig_mod.{k}": v for k, v in stack.state_dict().items()})
    x = tokens(2, 3, 8)
    assert torch.equal(target(x), stack(x))
    assert torch.equal(compiled._orig_mod(x), stack(x))


def test_weights_saved_as_bytes_by_earlier_versions_load():
    stack, buffer = make_encoder(), io.BytesIO()
    text = decode_text(stack.get_extra_state())
    as_bytes = torch.tensor(list(text.encode()), dtype=torch.uint8)
    torch.save(stack.state_dict() | {"_extra_state": as_bytes}, buffer)
    buffer.seek(0)
    weights = torch.load(buffer, weights_only=True)
    make_encoder().load_state_dict(weights)
    with pytest.raises(ArrangementMismatchError):
        make_encoder("rms").load_state_dict(weights)


@pytest.mark.parametrize(
    "state",
    [None, "wiring", torch.zeros(0), torch.zeros(16), torch.full((80,), torch.nan), torch.ones(())],
    ids=str,
)
def test_unreadable_arrangement_is_refused(state):
    with pytest.raises(ArrangementMismatchError, match="no readable arrangement"):
        make_encoder().set_extra_state(state)


def test_weights_without_values_are_not_checked():
    make_encoder("rms").set_extra_state(make_encoder().get_extra_state().to("meta"))


def test_text_round_trips():
    for text in ("wiring=b2t", "é ∞", "a"):
        assert decode_text(encode_text(text)) == text
        assert decode_text(0.01 * encode_text(text)) == text
