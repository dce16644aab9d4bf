"""Error messages for invalid names, options, inputs, masks and conditions."""

import re

import pytest
import torch

from addnorm.core.errors import UnknownNameError, UserError
from addnorm.norms import make_norm, registry
from tests.norms.cases import DIM, SHAPE, randn


def raises_error(*parts, error=UserError):
    """Expect an error whose message contains these parts in this order."""
    return pytest.raises(error, match=".*".join(re.escape(part) for part in parts))


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("layr", "layer"), ("RMS", "rms"), ("batchnorm", "batch"), ("adaln", "ada_ln")],
)
def test_unknown_norm_suggests_similar_names(name, suggestion):
    with raises_error(
        f"unknown norm {name!r}",
        f"did you mean {suggestion!r}",
        "Expected one of",
        error=UnknownNameError,
    ):
        make_norm(name, DIM)


def test_unknown_norm_lists_all_names():
    with raises_error(
        "unknown norm 'qqqq'", "expected one of ", ", ".join(registry), error=UnknownNameError
    ):
        make_norm("qqqq", DIM)


def test_unknown_option_suggests_similar_ones():
    with raises_error("norm 'rms' has no option 'epsilon'", "eps=1e-06", "share=1.0"):
        make_norm("rms(epsilon=0.1)", DIM)
    with raises_error("norm 'dyt' has no option 'alfa'", "did you mean 'alpha'"):
        make_norm("dyt(alfa=0.1)", DIM)
    with raises_error("norm 'none' has no option 'eps'", "takes no options"):
        make_norm("none(eps=0.1)", DIM)


@pytest.mark.parametrize(
    ("call", "option", "expected"),
    [
        ("layer(eps=-1.0)", "eps", "greater than or equal to 0"),
        ("layer(eps=big)", "eps", "number"),
        ("layer(eps=1e999)", "eps", "finite"),
        ("layer(affine=1)", "affine", "boolean"),
        ("layer(var=sample)", "var", "one of biased, unbiased"),
        ("layer(eps_mode=between)", "eps_mode", "one of inside, outside"),
        ("rms(gain=two_plus)", "gain", "one of plain, one_plus"),
        ("rms(share=1.5)", "share", "less than or equal to 1"),
        ("scale(eps=0.0)", "eps", "greater than 0"),
        ("l2(eps=0.0)", "eps", "greater than 0"),
        ("fixnorm(length=0.0)", "length", "greater than 0"),
        ("ada(scale=0.0)", "scale", "greater than 0"),
        ("ada(k=-0.1)", "k", "greater than or equal to 0"),
        ("detach(which=neither)", "which", "one of mean, std, both"),
        ("batch(momentum=2.0)", "momentum", "less than or equal to 1"),
        ("group(groups=0)", "groups", "greater than or equal to 1"),
        ("group(groups=2.5)", "groups", "integer"),
        ("power(warmup=-1)", "warmup", "greater than or equal to 0"),
        ("power(decay=1.1)", "decay", "less than or equal to 1"),
        ("power(eps=0.0)", "eps", "greater than 0"),
        ("dyt(alpha=0.0)", "alpha", "greater than 0"),
        ("derf(alpha=-1.0)", "alpha", "greater than 0"),
        ("ada_ln(cond_dim=0)", "cond_dim", "greater than or equal to 1"),
    ],
)
def test_invalid_option_value_names_the_expected_one(call, option, expected):
    name = call.partition("(")[0]
    with raises_error(f"option {option!r} of norm {name!r}: expected", expected, "default"):
        make_norm(call, DIM)


@pytest.mark.parametrize("dim", [0, -3, 2.0, True, "4", None])
def test_dim_must_be_a_positive_integer(dim):
    with raises_error(f"dim must be a whole number from 1, got {dim!r}"):
        make_norm("layer", dim)


@pytest.mark.parametrize("name", registry)
def test_input_of_another_width_is_rejected(name):
    title = registry.member(name).__name__
    with raises_error(f"{title}(dim=10): expected shape (..., 10), got (3, 7, 11)"):
        make_norm(name, DIM)(randn(3, 7, 11))
    with raises_error(f"{title}(dim=10): expected shape (..., 10), got ()"):
        make_norm(name, DIM)(torch.tensor(1.0))


@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.complex64])
@pytest.mark.parametrize("name", registry)
def test_integer_input_is_rejected(name, dtype):
    with raises_error(f"{registry.member(name).__name__}: expected floating point, got {dtype}"):
        make_norm(name, DIM)(torch.ones(SHAPE, dtype=dtype))


@pytest.mark.parametrize("name", registry)
def test_invalid_mask_is_rejected_by_every_norm(name):
    norm, x = make_norm(name, DIM), randn(*SHAPE)
    with raises_error("mask must be boolean", "torch.float32", "mask.bool()", "~key_padding_mask"):
        norm(x, torch.ones(3, 7))
    with raises_error("mask must be boolean", "got list"):
        norm(x, [[True] * 7] * 3)
    with raises_error("mask must have one entry per token, (3, 7) for (3, 7, 10)", "got (7, 3)"):
        norm(x, torch.ones(7, 3, dtype=torch.bool))
    with raises_error("mask must have one entry per token", "got (3, 1, 1, 7)"):
        norm(x, torch.ones(3, 1, 1, 7, dtype=torch.bool))


def test_groups_must_divide_dim():
    with raises_error("group(groups=3) does not divide dim 10; choose one of 1, 2, 5"):
        make_norm("group(groups=3)", 10)
    with raises_error("group(groups=20) does not divide dim 10"):
        make_norm("group(groups=20)", 10)
    with raises_error("group(groups=2) does not divide dim 1; choose one of 1"):
        make_norm("group(groups=2)", 1)


def test_groups_of_one_feature_are_rejected():
    with raises_error(
        "group(groups=10) leaves one feature to a group at dim 10", "choose fewer groups"
    ):
        make_norm("group(groups=10)", 10)
    assert make_norm("group(groups=1)", 1).groups == 1


@pytest.mark.parametrize("options", ["bias=True", "gain=one_plus"])
def test_rms_without_affine_rejects_gain_and_bias(options):
    with raises_error("rms(affine=False) has neither gain nor bias", options.partition("=")[2]):
        make_norm(f"rms(affine=False, {options})", DIM)


def test_instance_norm_requires_a_sequence():
    with raises_error("InstanceNorm: expected a sequence of tokens, (..., L, 10), got (10,)"):
        make_norm("instance", DIM)(randn(DIM))


@pytest.mark.parametrize(
    "cond",
    [
        randn(3, 5),  # another width
        randn(2, 4),  # another batch
        randn(3, 6, 4),  # another length
        randn(3, 7, 1, 4),  # more axes than x
        torch.ones(3, 4, dtype=torch.long),
        torch.tensor(1.0),
    ],
    ids=lambda cond: f"{tuple(cond.shape)} {cond.dtype}",
)
def test_invalid_condition_is_rejected(cond):
    norm = make_norm("ada_ln(cond_dim=4)", DIM)
    actual = f"got {tuple(cond.shape)} of {cond.dtype}"
    with raises_error(
        "AdaLN(cond_dim=4): expected a floating-point", "(..., 4)", "(3, 7, 10)", actual
    ):
        norm(randn(*SHAPE), cond=cond)
