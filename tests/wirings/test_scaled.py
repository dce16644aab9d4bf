"""Laws and refusals of the constant factor on branches."""

import pytest
import torch

import addnorm
from addnorm import UserError
from tests.exporters.random_models import make_model
from tests.helpers import tokens, toy_stack


def test_inside_a_norm_of_the_sum_it_is_deepnorm_with_the_inverse_alpha():
    scaled = toy_stack("scaled(post_ln, 0.25)", norm="layer(eps=1e-12)", dtype=torch.float64)
    deep = toy_stack("deepnorm(alpha=4.0, beta=1.0)", norm="layer(eps=1e-12)", dtype=torch.float64)
    x = tokens(dtype=torch.float64)
    torch.testing.assert_close(scaled(x), deep(x), rtol=1e-6, atol=1e-6)


def test_factors_multiply():
    nested, once = (
        toy_stack("scaled(scaled(sandwich, 0.5), 0.4)"),
        toy_stack("scaled(sandwich, 0.2)"),
    )
    torch.testing.assert_close(nested(tokens()), once(tokens()))


def test_unit_rule_gives_each_kind_of_branch_the_share_of_the_embedding():
    """With orthogonal branches of unit size, weights end as 1 : 1 : 1 in variance."""
    wiring = toy_stack("scaled(r=1.0, rule=unit)").wiring
    shares = [1.0]
    for site in wiring.plan.sites:
        t, c = wiring.factors[site.index], wiring.stream_factor(site)
        shares = [share * c**2 for share in shares] + [(t * c) ** 2]
    embedding, attention, ffn = shares[0], sum(shares[1::2]), sum(shares[2::2])
    assert embedding == pytest.approx(1 / 3)
    assert attention == pytest.approx(1 / 3)
    assert ffn == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("scaled(ngpt)", "scaled: ngpt normalizes every branch, so that a factor on it has no eff"),
        ("scaled(drop_path(sandwich))", r"put scaled inside, as in drop_path\(scaled\(sandwich\)"),
        ("scaled(post_ln, rule=unit)", r"scaled\(rule=unit\) divides one stream after each add"),
        ("scaled(hyper, rule=unit)", r"scaled\(rule=unit\) divides one stream after each add"),
        ("scaled(pre_ln, 0.0)", "option 'r' of wiring 'scaled': expected a number greater than 0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(UserError, match=message):
        toy_stack(call)


@pytest.mark.parametrize(
    ("call", "plain"),
    [
        ("scaled(pre_ln, 0.22)", "pre_ln"),
        ("scaled(post_ln, 0.5)", "post_ln"),
        ("drop_path(scaled(sandwich, 0.3))", "sandwich"),
        ("scaled(res_post, 0.3)", "res_post"),
        ("scaled(parallel, 0.3, rule=sqrt_depth)", "parallel"),
        ("scaled(scaled(deepnorm, 0.3), 0.5)", "post_ln"),
        ("scaled(hyper, 0.3)", "hyper"),
    ],
)
def test_factors_fold_into_weights(call, plain):
    model = make_model("lm", wiring=call, norm="layer").double()
    folded, notes = addnorm.fold(model)
    assert folded.config.wiring == plain
    assert any("factors moved into what writes to the stream" in str(note) for note in notes)
    ids = torch.randint(4, 30, (3, 7), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(folded(ids), model(ids), rtol=1e-9, atol=1e-9)


def test_unit_rule_does_not_fold():
    _, notes = addnorm.fold(make_model("lm", wiring="scaled(r=1.0, rule=unit)"))
    assert any("does not fold" in str(note) for note in notes)
