"""Plans: sites, depths of each role, error messages."""

import dataclasses

import pytest

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.core.plan import ROLES, Plan, Plugs, Shape, Site


def plan(role="encoder_only", depth=2, other_depth=None, kinds=("self", "ffn"), dim=8, **rest):
    return Plan(role, depth, other_depth, kinds, dim, Call("layer"), **rest)


def test_sites_are_in_forward_order():
    sites = plan("decoder", depth=2, other_depth=6, kinds=("self", "cross", "ffn")).sites
    assert sites == (
        Site(0, 0, 0, "self", True, False),
        Site(1, 0, 1, "cross", False, False),
        Site(2, 0, 2, "ffn", False, True),
        Site(3, 1, 0, "self", True, False),
        Site(4, 1, 1, "cross", False, False),
        Site(5, 1, 2, "ffn", False, True),
    )


def test_single_sublayer_is_first_and_last():
    assert all(site.first and site.last for site in plan(kinds=("mix",)).sites)


@pytest.mark.parametrize(
    ("role", "other", "causal", "encoder_depth"),
    [
        ("encoder_only", None, False, 2),
        ("decoder_only", None, True, None),
        ("encoder", 5, False, 2),
        ("decoder", 5, True, 5),
    ],
)
def test_role_determines_causality_and_encoder_depth(role, other, causal, encoder_depth):
    made = plan(role, other_depth=other)
    assert (made.causal, made.encoder_depth) == (causal, encoder_depth)
    assert role in ROLES


def test_shapes_are_indexed_by_site_and_optional():
    shape = Shape(inner=16, hidden=32)
    made = plan(depth=1, shapes=(None, shape))
    assert [made.shape(site) for site in made.sites] == [None, shape]
    assert plan().shape(plan().sites[0]) is None


def test_plans_are_frozen():
    made = plan()
    assert made == plan()
    assert hash(made) == hash(plan())
    for constant, name in ((made, "depth"), (made.sites[0], "index"), (Plugs(), "query")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(constant, name, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"role": "encoder-only"}, r"unknown role 'encoder-only'; did you mean 'encoder_only'"),
        ({"role": None}, r"unknown role 'None'"),
        ({"role": "encoder"}, r"pass it, or use role 'encoder_only'"),
        ({"role": "decoder"}, r"pass it, or use role 'decoder_only'"),
        ({"other_depth": 3}, r"other_depth: expected None for role .*, got 3; .* role 'encoder'"),
        ({"depth": 0}, r"depth must be a whole number from 1, got 0"),
        ({"depth": -1}, r"depth must be a whole number from 1, got -1"),
        ({"depth": 2.0}, r"depth must be a whole number from 1, got 2.0"),
        ({"depth": True}, r"depth must be a whole number from 1, got True"),
        ({"dim": 0}, r"dim must be a whole number from 1, got 0"),
        ({"dim": "8"}, r"dim must be a whole number from 1, got '8'"),
        ({"role": "decoder", "other_depth": 0}, r"other_depth must be a whole number from 1"),
        ({"kinds": ()}, r"kinds: expected a tuple of the sub-layers of one layer"),
        ({"kinds": (1, 2)}, r"kinds: expected .* got \(1, 2\)"),
        ({"kinds": "self"}, r"kinds: expected .* got 'self'"),
        ({"kinds": ["self"]}, r"kinds: expected .* got \['self'\]"),
    ],
)
def test_invalid_plan_is_rejected(wrong, message):
    with pytest.raises(UserError, match=message):
        plan(**wrong)
