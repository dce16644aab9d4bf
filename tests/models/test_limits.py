"""Every option and size at absurd values is rejected in one line, or builds a module that runs."""

import math
import warnings

import pytest
import torch
from torch import nn

import addnorm
from addnorm import Decoder, Encoder, Stack, UserError
from addnorm.core.calls import Call
from addnorm.models import Config
from addnorm.models.tabular.numeric_embeddings import make_numeric_embedding
from addnorm.models.tabular.numeric_embeddings import registry as numeric_embeddings
from addnorm.norms import make_norm
from addnorm.norms import registry as norms
from addnorm.sublayers import FeedForward, SelfAttention
from addnorm.sublayers.positions import registry as positions
from addnorm.sublayers.qk_norm import registry as qk_norms
from addnorm.train.optimizers.base import make_optimizer
from addnorm.train.optimizers.base import registry as optimizers
from addnorm.train.schedules.base import registry as schedules
from addnorm.wirings import registry as wirings
from tests.helpers import gradients, tokens

HUGE = (1e308, 1e30, 1e6, 10**6, 10**9, 2**63, 2**200)
OTHER = (-1e308, -1.0, 0.0, 1e-308, math.inf, math.nan, 0, -1, True, None, "x", [], Call("y"))
MAX_WEIGHTS = 2**26  # 256 MiB

OPTIONS = [
    pytest.param(registry, name, option, id=f"{registry.family} {name} {option}")
    for registry in (
        *(wirings, norms, positions, qk_norms),
        *(numeric_embeddings, schedules, optimizers),
    )
    for name in registry
    for option in registry.card(name).options or {}
]


def assert_small_and_finite(module: nn.Module, x: torch.Tensor) -> None:
    assert sum(parameter.numel() for parameter in module.parameters()) < MAX_WEIGHTS
    y = module(x)
    assert y.isfinite().all()
    leaves = [parameter for parameter in module.parameters() if parameter.requires_grad]
    assert all(grad.isfinite().all() for grad in gradients(y, leaves))


def try_member(registry, call: Call) -> None:
    """Build a member and run it; raise a UserError if an option is rejected."""
    torch.manual_seed(0)
    names = {wirings: "wiring", norms: "norm", positions: "positions", qk_norms: "qk_norm"}
    if registry in names:
        stack = Encoder(dim=8, depth=2, heads=2, **{names[registry]: str(registry.resolve(call))})
        assert_small_and_finite(stack, tokens(2, 5, 8))
    elif registry is numeric_embeddings:
        assert_small_and_finite(make_numeric_embedding(call, 2, 4), tokens(3, 2))
    elif registry is schedules:
        schedule = registry.make(call)
        assert all(0 <= schedule.factor(step, 20) <= 1 for step in range(1, 25))
    else:
        model = addnorm.build(kind="lm", vocab=11, dim=8, depth=1, heads=2, seed=0)
        optimizer = make_optimizer(call, model, lr=1e-3)
        loss = model(torch.ones(1, 3, dtype=torch.long)).sum()
        loss.backward()
        for each in optimizer.optimizers:
            each.step()
        assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(("registry", "name", "option"), OPTIONS)
def test_absurd_option_is_rejected_or_runs(registry, name, option):
    rejected = 0
    for value in (*HUGE, *OTHER):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                try_member(registry, Call(name, {option: value}))
            except UserError as error:
                rejected += 1
                assert str(error).isprintable()
    assert rejected


SIZES = (0, -1, 2**63, 2**200, 10**9, 1.5, "8", None, math.inf, math.nan, True, [8])


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize(
    "build",
    [
        lambda size: Encoder(dim=size, depth=1, heads=2),
        lambda size: Encoder(dim=8, depth=size, heads=2),
        lambda size: Encoder(dim=8, depth=1, heads=size),
        lambda size: Decoder(dim=8, depth=1, heads=2, other_depth=size or 0),
        lambda size: Encoder(dim=8, depth=1, heads=2, head_dim=size or 0),
        lambda size: Encoder(dim=8, depth=1, heads=2, kv_heads=size or 0),
        lambda size: Encoder(dim=8, depth=1, heads=2, ffn_dim=size or 0),
        lambda size: Encoder(dim=8, depth=1, heads=2, window=size or 0),
        lambda size: Encoder(dim=8, depth=1, heads=2, persistent=size or -1),
        lambda size: Stack([nn.Identity()] * 2, dim=size),
        lambda size: SelfAttention(size, 2),
        lambda size: FeedForward(size),
        lambda size: FeedForward(8, size or 0),
        lambda size: make_norm("layer", size),
        *(
            lambda size, field=field: addnorm.build(
                **{"kind": "lm", "vocab": 9, "dim": 8, "depth": 1, "heads": 2, field: size or 0}
            )
            for field in ("vocab", "dim", "depth", "heads", "ffn_dim", "head_dim", "kv_heads")
        ),
        lambda size: addnorm.build(
            **{"kind": "classifier", "image": size, "patch": size, "dim": 8, "depth": 1, "heads": 2}
        ),
    ],
)
def test_absurd_size_is_rejected_in_one_line(build, size):
    with pytest.raises(UserError) as caught:
        build(size)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("field", ["scale", "cap"])
@pytest.mark.parametrize("value", [0, -1.0, 1e308, math.inf, math.nan, "1", True, [1]], ids=str)
def test_absurd_factor_is_rejected_in_one_line(field, value):
    with pytest.raises(UserError, match=f"{field}: expected a positive number"):
        Encoder(dim=8, depth=1, heads=2, **{field: value})
    if value in ("1", True):
        return  # a config file may write numbers as text
    with pytest.raises(UserError, match=field):
        Config(kind="lm", vocab=9, dim=8, depth=1, heads=2, **{field: value})


def test_model_larger_than_the_memory_is_rejected_before_it_is_allocated():
    sizes = {"dim": 2**16, "depth": 1000, "heads": 16}
    with pytest.raises(UserError, match=r"Encoder: expected weights that fit into the memory"):
        Encoder(**sizes)
    with pytest.raises(UserError, match=r"build: expected weights that fit into the memory"):
        addnorm.build(kind="lm", vocab=2**24, **sizes | {"depth": 1, "dim": 2**17, "ffn_dim": 8})
    with torch.device("meta"):
        Encoder(**sizes | {"depth": 1})


@pytest.mark.parametrize("kinds", [("self", "ffn"), ("self", "cross", "ffn")])
@pytest.mark.parametrize("options", [{}, {"activation": "swiglu"}, {"kv_heads": 1, "head_dim": 6}])
def test_memory_is_estimated_from_the_right_number_of_weights(kinds, options):
    other = {"other_depth": 1} if "cross" in kinds else {}
    stack = Decoder(dim=12, depth=1, heads=2, bias=False, **options, **other)
    matrices = sum(p.numel() for p in stack.sublayers.parameters())
    assert stack.layer_config.count_weights(kinds, dim=12, heads=2) == matrices
