"""Optimizer groups: against the mup package, against training with moved factors, and in use."""

import copy

import pytest
import torch
from torch import nn

import addnorm
from addnorm.core.errors import UserError
from addnorm.train import make_optimizer

SMALL = {"kind": "lm", "vocab": 23, "dim": 16, "depth": 2, "heads": 2, "tied": False}
RULE = "completep(base_dim=8, base_depth=1)"
IDS = torch.arange(24).view(2, 12) * 5 % 23


def settings_by_name(model, groups):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(each)]: group for group in groups for each in group["params"]}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_equal_to_the_mup_package(optimizer):
    mup = pytest.importorskip("mup")
    options = SMALL | {"positions": "learned(length=12)", "head_bias": True}
    base, delta, model = (addnorm.build(**options | {"dim": dim}) for dim in (16, 32, 64))
    mup.set_base_shapes(model, base, delta=delta, rescale_params=False)
    make = {"adam": mup.MuAdamW, "sgd": mup.MuSGD}[optimizer]
    theirs = settings_by_name(
        model, make(model.parameters(), lr=0.01, weight_decay=0.1).param_groups
    )
    scaled = addnorm.build(**options | {"dim": 64}, scale="mup(base_dim=16)")
    groups = addnorm.scale_groups(scaled, lr=0.01, weight_decay=0.1, optimizer=optimizer)
    ours = settings_by_name(scaled, groups)
    assert ours.keys() == theirs.keys()
    for name, group in ours.items():
        # bias of the head: finite in both axes, so mup leaves it; here it is a vector like others
        if name == "head.bias":
            continue
        assert group["lr"] == pytest.approx(theirs[name]["lr"]), name
        if optimizer == "adam" and group["weight_decay"]:
            assert group["weight_decay"] == pytest.approx(theirs[name]["weight_decay"]), name


def train(model, optimizer, steps=20):
    losses = []
    for _ in range(steps):
        sums = model.loss(IDS[:, 1:], IDS[:, :-1])
        loss = sums.loss / sums.num_targets
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_factors_moved_into_weights_train_the_same(name):
    """A model with factors, and a plain one whose weights start times them, have equal losses."""
    scaled = addnorm.build(**SMALL, scale=RULE, seed=0).double()
    plain = addnorm.build(**SMALL, seed=0).double()
    tensors = {key: each for key, each in scaled.state_dict().items() if "extra" not in key}
    plain.load_state_dict(tensors, strict=False)
    with torch.no_grad():
        plain.head.table *= 0.5  # 1 / m_N
        for sublayer in plain.decoder.sublayers:
            last = getattr(sublayer, "out_proj", None) or sublayer.down_proj
            for parameter in last.parameters():
                parameter *= 0.5  # 1 / m_L
            if hasattr(sublayer, "q_proj"):
                for parameter in sublayer.q_proj.parameters():
                    parameter *= 0.5**0.5  # sqrt(K_base) / K over 1 / sqrt(K)
    torch.testing.assert_close(plain(IDS), scaled(IDS))
    options = {"lr": 0.01 if name == "AdamW" else 0.1, "weight_decay": 0.1, "optimizer": name}
    make = getattr(torch.optim, name)
    losses = [
        train(model, make(addnorm.scale_groups(model, **options, **extra)))
        for model, extra in ((scaled, {}), (plain, {"scale": RULE}))
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
    assert losses[0][-1] < losses[0][0] - 0.5


def test_trainer_uses_the_groups():
    model = addnorm.build(**SMALL, scale=RULE)
    optimizer = make_optimizer("adamw(eps=1e-6)", model, lr=0.01, weight_decay=0.1)
    optimizer.set_lr(0.5)
    (part,) = optimizer.optimizers
    expected = settings_by_name(
        model, addnorm.scale_groups(model, lr=0.005, weight_decay=0.1, eps=1e-6)
    )
    for name, group in settings_by_name(model, part.param_groups).items():
        for key in ("lr", "weight_decay", "eps"):
            assert group[key] == pytest.approx(expected[name][key]), (name, key)


def test_schedulers_of_torch_keep_the_factors():
    model = addnorm.build(**SMALL, scale=RULE)
    optimizer = torch.optim.AdamW(addnorm.scale_groups(model, lr=0.01))
    before = [group["lr"] for group in optimizer.param_groups]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [rate / 2 for rate in before]


@pytest.mark.parametrize(
    "wiring", ["hyper", "mhc", "gated", "layer_scale", "u_skips(mix=concat)", "ngpt"]
)
def test_every_parameter_is_in_one_group(wiring):
    model = addnorm.build(**SMALL, wiring=wiring, scale="mup(base_dim=8)")
    groups = addnorm.scale_groups(model)
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(ids) == sorted(map(id, model.parameters()))
    settings = settings_by_name(model, groups)
    slow = {name for name, group in settings.items() if group["lr"] == pytest.approx(5e-4)}
    maps = {"hyper": "mixing_map", "mhc": "phi", "gated": "weight"}.get(wiring)
    maps = "maps" if "u_skips" in wiring else maps
    assert maps is None or any(maps in name for name in slow if "wiring" in name)
    assert not any("norm" in name or "gamma" in name for name in slow)


def test_models_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=32,
        n_layer=2,
        n_head=2,
        vocab_size=50,
        n_positions=16,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = addnorm.from_hf(transformers.GPT2LMHeadModel(config))
    groups = addnorm.scale_groups(model, lr=0.01)
    assert {group["lr"] for group in groups} == {0.01}
    optimizer = torch.optim.AdamW(addnorm.scale_groups(model, lr=0.01, scale="mup(base_dim=16)"))
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()
    settings = settings_by_name(model, optimizer.param_groups)
    assert settings["model.decoder.sublayers.1.up_proj.weight"]["lr"] == pytest.approx(0.005)
    assert settings["model.embed.table"]["lr"] == pytest.approx(0.01)


def test_wrapped_and_frozen_models():
    model = addnorm.build(**SMALL, scale=RULE)
    expected = addnorm.scale_groups(model)
    wrapped = addnorm.scale_groups(nn.ModuleDict({"model": model}))
    assert [group["lr"] for group in wrapped] == [group["lr"] for group in expected]
    frozen = copy.deepcopy(model)
    frozen.embed.requires_grad_(False)
    count = sum(len(group["params"]) for group in addnorm.scale_groups(frozen))
    assert count == sum(1 for _ in model.parameters()) - 1


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.Linear(2, 2), {}, "expected one addnorm model, got Linear with 0"),
        ("model", {}, "expected an addnorm model, got str"),
        (None, {"lr": 0.0}, "lr: expected a positive number"),
        (None, {"optimizer": 3}, "optimizer: expected"),
        (None, {"scale": "mup(base_dim=8)"}, r"expected None for a model with completep"),
    ],
)
def test_arguments_that_are_refused(model, options, message):
    model = addnorm.build(**SMALL, scale=RULE) if model is None else model
    with pytest.raises(UserError, match=message):
        addnorm.scale_groups(model, **options)


def test_averaged_sgd_has_the_rule_of_sgd():
    model = addnorm.build(kind="lm", vocab=9, dim=32, depth=1, heads=2, scale="mup(base_dim=16)")
    rates = [
        [group["lr"] for group in addnorm.scale_groups(model, optimizer=optimizer)]
        for optimizer in (torch.optim.SGD, torch.optim.ASGD, "asgd", torch.optim.Adam)
    ]
    assert rates[0] == rates[1] == rates[2] != rates[3]


def test_misspelled_optimizer_is_not_taken_for_adam():
    model = addnorm.build(kind="lm", vocab=9, dim=32, depth=1, heads=2)
    with pytest.raises(UserError, match=r"unknown optimizer .sdg.; did you mean .*sgd"):
        addnorm.scale_groups(model, optimizer="sdg")
    with pytest.raises(UserError, match="weight_decay: expected a number of at least 0, got -1"):
        addnorm.scale_groups(model, weight_decay=-1)
