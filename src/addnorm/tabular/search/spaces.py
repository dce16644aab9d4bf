"""Default search spaces of the tabular models."""

from collections.abc import Mapping
from typing import Any

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.models.tabular import MODELS
from addnorm.tabular.params import AUTO
from addnorm.tabular.search.dimensions import Choice, Dimension, Float, Integer, to_dimension

Space = dict[str, Dimension]

NORMS = Choice(("layer", "rms"))
RATES = Float(1e-4, 5e-3, log=True)
DECAY = Float(1e-6, 1e-1, log=True, zero=0.25)
DROPOUT = Float(0.0, 0.5, zero=0.25)
NUMERIC = Choice(
    ("piecewise(bins=8)", "piecewise(bins=24)", "piecewise", "piecewise(bins=96)", "periodic")
)

# The ranges follow the published spaces of TabM (mlp), of Gorishniy et al. 2021 (ft_transformer)
# and of the papers of the other two, cut to sizes that train on a CPU.
SPACES: dict[str, Space] = {
    "mlp": {
        "wiring": Choice(("pre_ln", "res_post", "b2t", "rezero", "layer_scale")),
        "norm": NORMS,
        "numeric": NUMERIC,
        "dim": Integer(32, 256, step=32),
        "depth": Integer(1, 4),
        "dropout": DROPOUT,
        "lr": RATES,
        "weight_decay": DECAY,
    },
    "ft_transformer": {
        "wiring": Choice(("pre_ln(first_norm=False)", "pre_ln", "res_post", "b2t", "deepnorm")),
        "norm": NORMS,
        "numeric": NUMERIC,
        "dim": Integer(32, 192, step=32),
        "depth": Integer(1, 4),
        "heads": Choice((4, 8)),
        "dropout": Float(0.0, 0.2, zero=0.5),
        "attention_dropout": Float(0.0, 0.5),
        "activation_dropout": Float(0.0, 0.5),
        "lr": Float(1e-4, 3e-3, log=True),
        "weight_decay": Float(1e-6, 1e-3, log=True),
    },
    "tab_transformer": {
        "wiring": Choice(("post_ln", "pre_ln", "res_post", "b2t")),
        "norm": NORMS,
        "dim": Integer(32, 128, step=32),
        "depth": Integer(1, 6),
        "heads": Choice((4, 8)),
        "dropout": Float(0.0, 0.5, zero=0.25),
        "lr": Float(1e-4, 3e-3, log=True),
        "weight_decay": Float(1e-6, 1e-1, log=True),
    },
    "saint": {
        "wiring": Choice(("res_post", "pre_ln", "b2t")),
        "norm": NORMS,
        "dim": Integer(16, 64, step=16),
        "depth": Integer(1, 3),
        "heads": Choice((2, 4, 8)),
        "dropout": Float(0.0, 0.5, zero=0.25),
        "lr": Float(1e-4, 3e-3, log=True),
        "weight_decay": Float(1e-6, 1e-1, log=True),
    },
}
AUTO_SPACE: Space = SPACES["mlp"] | {
    "members": Choice((8, 16, 32)),
    "dim": Integer(32, 128, step=32),
    "lr": Float(5e-4, 1e-2, log=True),
}
"""Space of `model="auto"`, an mlp with members: they cost as many times the computation."""


def search_space(model: str = AUTO, *, prefix: str = "") -> dict[str, Any]:
    """Return the values to try for each parameter of a model.

    `TabularSearch` and the searches of scikit-learn accept it: `RandomizedSearchCV(estimator,
    search_space("mlp"))`.

    Args:
        model: "auto", "mlp", "ft_transformer", "tab_transformer" or "saint"
        prefix: text before the names, such as "model__" for the step `model` of a pipeline

    >>> sorted(search_space("saint"))[:4]
    ['depth', 'dim', 'dropout', 'heads']
    """
    if not isinstance(model, str) or model not in (AUTO, *SPACES):
        raise UserError(unknown_name_message("model", str(model), (AUTO, *MODELS)))
    space = AUTO_SPACE if model == AUTO else SPACES[model]
    return {f"{prefix}{name}": each for name, each in space.items()}


def resolve_space(estimator: Any, space: Mapping[str, Any] | None) -> Space:
    """Return the dimensions of a search.

    Args:
        estimator: unfitted estimator; the default space leaves out parameters that it sets
        space: values to try for each parameter; None selects the space of the model
    """
    known = estimator.get_params(deep=False)
    if space is not None:
        if not isinstance(space, Mapping) or not space:
            raise UserError(
                "space: expected a dict from parameter to values, such as search_space('mlp'), "
                f"got {space!r}"
            )
        for name in space:
            if name not in known:
                raise UserError(unknown_name_message("parameter in space", str(name), known))
        return {name: to_dimension(name, value) for name, value in space.items()}
    defaults = type(estimator)().get_params(deep=False)
    free = {
        name: each
        for name, each in search_space(estimator.model).items()
        if known[name] == defaults[name]
    }
    if not free:
        raise UserError(
            "estimator: expected at least one parameter of its search space without a value, got "
            "values for all; leave some out"
        )
    return free
