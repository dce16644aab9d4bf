"""Wrong arguments of the public Python API: one line that names the argument."""

import pytest
import torch

import addnorm
from addnorm import UserError

SMALL = {"kind": "lm", "dim": 8, "depth": 1, "heads": 2, "vocab": 5}
WRONG = [None, 5, [], torch.zeros(2)]


def encoder(**options):
    return addnorm.Encoder(dim=8, depth=1, heads=2, **options)


CALLS = {
    "spec": lambda value: addnorm.compare(value, "folder"),
    "folder": lambda value: addnorm.compare({"task": "lm"}, value),
    "folder of a study": lambda value: addnorm.Study.open(value),
    "wiring": lambda value: encoder(wiring=value),
    "norm": lambda value: addnorm.make_norm(value, 8),
    "position": lambda value: encoder(positions=value),
    "query-key norm": lambda value: encoder(qk_norm=value),
    "task": lambda value: addnorm.Comparison(task=value),
    "kind": lambda value: addnorm.Config(**SMALL | {"kind": value}),
}


@pytest.mark.parametrize("value", WRONG, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", CALLS)
def test_wrong_type_is_one_line_that_names_the_argument(name, value):
    with pytest.raises(UserError) as caught:
        CALLS[name](value)
    message = str(caught.value)
    assert message.startswith(f"{name.removesuffix(' of a study')}: expected ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: addnorm.Config(kind="lm", depth="a"), "missing config field 'dim'; pass dim=..."),
        (lambda: addnorm.Config(**SMALL, dpth=3), "unknown config field 'dpth'; did you mean"),
        (lambda: addnorm.Config(**SMALL | {"depth": "a"}), "depth: expected a valid integer, got"),
        (lambda: addnorm.Comparison(stepz=3), "unknown comparison field 'stepz'; did you mean"),
        (lambda: addnorm.compare("lm", "folder"), "spec: expected a Comparison or a mapping such"),
        (lambda: encoder(norm="rms(eps=1e-400)"), "expected numbers that are 0 or at least 5e-324"),
        (lambda: encoder(norm="rms(eps=-1e-999)"), "expected numbers that are 0 or at least"),
    ],
)
def test_wrong_values_are_one_line(make, message):
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("zero", ["0", "0.0", "0e5", "0.000"])
def test_zero_is_a_number(zero):
    assert addnorm.make_norm(f"rms(eps={zero})", 8).eps == 0
