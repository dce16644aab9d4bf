"""Recommended schedules of wirings: warm-up where the literature requires it."""

import pytest

from addnorm.core.calls import Call
from addnorm.core.plan import Plan
from addnorm.wirings import Wiring, make_wiring, registry


def get_schedule(wiring):
    return make_wiring(wiring, Plan("encoder_only", 2, None, ("a", "b"), 8, Call("layer"))).schedule


@pytest.mark.parametrize("wiring", ["post_ln", "false_pre_ln", "dlcl"])
def test_post_ln_variants_have_the_longest_warm_up(wiring):
    assert get_schedule(wiring) == "inverse_sqrt(warmup=0.2)"


@pytest.mark.parametrize("wiring", ["admin", "deepnorm", "b2t", "resi_dual"])
def test_stabilized_post_ln_has_the_warm_up_of_its_recipe(wiring):
    assert get_schedule(wiring) == "inverse_sqrt(warmup=0.1)"


@pytest.mark.parametrize("wiring", ["rezero", "skip_init", "ngpt"])
@pytest.mark.filterwarnings("ignore::addnorm.core.errors.InnerNormsIgnoredWarning")
def test_wirings_without_warm_up(wiring):
    assert get_schedule(wiring) == "cosine(warmup=0)"


def test_t_fixup_has_the_decay_of_its_recipe():
    assert get_schedule("t_fixup") == "decay_sqrt(pace=0.1)"


@pytest.mark.parametrize("wiring", ["pre_ln", "sandwich", "layer_scale", "none"])
def test_other_wirings_have_the_default_schedule(wiring):
    assert get_schedule(wiring) == Wiring.schedule == "cosine(warmup=0.1)"


DECORATORS = [name for name in registry if "inner" in (registry.card(name).options or {})]


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("inner", ["pre_ln", "post_ln", "rezero"])
def test_decorator_has_the_schedule_of_its_inner_wiring(decorator, inner):
    assert get_schedule(f"{decorator}({inner})") == get_schedule(inner)


def test_nested_decorators_have_the_inner_schedule():
    assert len(DECORATORS) >= 3
    assert get_schedule("drop_path(layer_drop(t_fixup))") == get_schedule("t_fixup")
