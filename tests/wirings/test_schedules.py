"""What wirings recommend for the learning rate: warm-up where the literature needs it."""

import pytest

from addnorm.core.calls import Call
from addnorm.core.plan import Plan
from addnorm.wirings import Wiring, make_wiring, registry


def schedule_of(wiring):
    return make_wiring(wiring, Plan("encoder_only", 2, None, ("a", "b"), 8, Call("layer"))).schedule


@pytest.mark.parametrize("wiring", ["post_ln", "false_pre_ln", "dlcl"])
def test_post_ln_and_its_like_warm_up_longest(wiring):
    assert schedule_of(wiring) == "inverse_sqrt(warmup=0.2)"


@pytest.mark.parametrize("wiring", ["admin", "deepnorm", "b2t", "resi_dual"])
def test_tamed_post_ln_warms_up_as_its_recipes_do(wiring):
    assert schedule_of(wiring) == "inverse_sqrt(warmup=0.1)"


@pytest.mark.parametrize("wiring", ["rezero", "skip_init", "ngpt"])
@pytest.mark.filterwarnings("ignore::addnorm.core.errors.InnerNormsIgnoredWarning")
def test_what_is_made_to_need_no_warm_up_has_none(wiring):
    assert schedule_of(wiring) == "cosine(warmup=0)"


def test_t_fixup_has_the_decay_of_its_recipe():
    assert schedule_of("t_fixup") == "decay_sqrt(pace=0.1)"


@pytest.mark.parametrize("wiring", ["pre_ln", "sandwich", "layer_scale", "none"])
def test_others_have_the_usual(wiring):
    assert schedule_of(wiring) == Wiring.schedule == "cosine(warmup=0.1)"


DECORATORS = [name for name in registry if "inner" in (registry.card(name).options or {})]


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("inner", ["pre_ln", "post_ln", "rezero"])
def test_a_decorator_answers_as_what_it_wraps(decorator, inner):
    assert schedule_of(f"{decorator}({inner})") == schedule_of(inner)


def test_also_two_deep():
    assert len(DECORATORS) >= 3
    assert schedule_of("drop_path(layer_drop(t_fixup))") == schedule_of("t_fixup")
