"""Dimensions and default search spaces."""

import numpy as np
import optuna
import pytest
from sklearn.model_selection import ParameterSampler, RandomizedSearchCV
from sklearn.pipeline import Pipeline

from addnorm import UserError
from addnorm.models.tabular import MODELS
from addnorm.norms import registry as norms
from addnorm.tabular import Choice, Float, Integer, TabularTransformerRegressor, search_space
from addnorm.tabular.search.dimensions import to_dimension
from addnorm.tabular.search.spaces import SPACES, resolve_space
from addnorm.wirings import registry as wirings
from tests.tabular.sample_tables import NUMBERS, SUMS, classifier


@pytest.mark.parametrize("model", ["auto", *MODELS])
def test_every_draw_is_a_valid_estimator(model):
    space = search_space(model)
    assert {"wiring", "norm", "lr", "depth", "dim"} <= set(space)
    for params in ParameterSampler(space, 40, random_state=0):
        assert wirings.resolve(params["wiring"]) and norms.resolve(params["norm"])
        assert 0 < params["lr"] <= 1e-2 and 0 <= params["weight_decay"] <= 0.1
        assert params["dim"] % params.get("heads", 1) == 0
        assert not set(params) & set(getattr(MODELS.get(model), "unused_fields", ()))


def test_every_model_has_a_space():
    assert set(SPACES) == set(MODELS)


def test_draws_have_the_declared_distribution():
    draws = [
        Float(1e-4, 1e-1, log=True, zero=0.25).rvs(np.random.RandomState(n)) for n in range(800)
    ]
    positive = [each for each in draws if each]
    assert 0.2 < 1 - len(positive) / 800 < 0.3
    assert min(positive) >= 1e-4 and max(positive) <= 1e-1
    assert 0.4 < np.mean([each < 10**-2.5 for each in positive]) < 0.6  # half of the decades
    assert {Integer(2, 8, step=3).rvs(n) for n in range(40)} == {2, 5, 8}
    assert {Choice(("a", "b")).rvs(n) for n in range(20)} == {"a", "b"}


def test_optuna_gets_the_same_limits():
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)).ask()
    params = {name: each.suggest(trial, name) for name, each in search_space("mlp").items()}
    assert 1e-4 <= params["lr"] <= 5e-3 and params["dim"] % 32 == 0
    assert params["wiring"] in search_space("mlp")["wiring"].values


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Float(1, 1), "expected low < high"),
        (lambda: Float(0, 1, log=True), "above 0 for log"),
        (lambda: Integer(1, 4, step=2), "a multiple of step apart"),
        (lambda: Choice(()), "expected at least one value, got none"),
        (lambda: to_dimension("lr", 0.1), "lr: expected a list of values or a distribution"),
        (lambda: search_space("mpl"), "unknown model 'mpl'; did you mean 'mlp'"),
        (lambda: resolve_space(classifier(), {"lrr": [1]}), "unknown parameter in space 'lrr'"),
        (lambda: resolve_space(classifier(), []), "space: expected a dict"),
    ],
)
def test_wrong_spaces_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_parameters_of_the_estimator_are_not_searched():
    space = resolve_space(classifier(wiring="b2t", lr=1e-3), None)
    assert not {"wiring", "lr", "dim", "depth", "heads"} & set(space)
    assert "norm" in space


def test_spaces_work_in_searches_of_scikit_learn():
    pipeline = Pipeline([("model", TabularTransformerRegressor(model="mlp", max_epochs=1))])
    space = search_space("mlp", prefix="model__")
    search = RandomizedSearchCV(pipeline, space, n_iter=2, cv=2, random_state=0)
    assert search.fit(NUMBERS, SUMS).best_params_["model__dim"] % 32 == 0


@pytest.mark.slow
def test_spaces_work_in_halving_searches_of_scikit_learn():
    from sklearn.experimental import enable_halving_search_cv  # noqa: F401
    from sklearn.model_selection import HalvingRandomSearchCV

    search = HalvingRandomSearchCV(
        TabularTransformerRegressor(model="mlp", max_epochs=1, random_state=0),
        search_space("mlp"),
        n_candidates=3,
        min_resources=12,
        cv=2,
        random_state=0,
    )
    assert search.fit(NUMBERS, SUMS).n_iterations_ >= 2
