"""Models with a scale: exactly the plain model at the base size, the table at others."""

import pytest
import torch

import addnorm
from addnorm.core.errors import UserError
from addnorm.stacks import Stack
from addnorm.train import make_optimizer
from addnorm.wirings import registry as wirings

SMALL = {"kind": "lm", "vocab": 23, "dim": 16, "depth": 2, "heads": 2}
RULE = "completep(base_dim=16, base_depth=2)"
KINDS = {
    "lm": {},
    "tied": {"tied": True, "embed_scale": "sqrt_dim", "head_scale": "rsqrt_dim"},
    "untied": {"tied": False, "positions": "learned(length=16)", "head_bias": True},
    "t5": {"attention_scale": 1.0, "positions": "t5", "bias": False},
    "gated": {"activation": "swiglu", "norm": "rms", "kv_heads": 1, "qk_norm": "rms_head"},
    "masked": {"kind": "masked_lm", "head_layer": True, "types": 2},
    "seq2seq": {"kind": "seq2seq", "source_vocab": 11},
    "classifier": {"kind": "classifier", "classes": 3, "pooler": True},
}


def inputs_of(model):
    ids = torch.arange(8).view(2, 4) % 11
    return (ids, ids) if model.config.kind == "seq2seq" else (ids,)


def assert_same_model(plain, scaled):
    for (name, one), (_, other) in zip(
        plain.named_parameters(), scaled.named_parameters(), strict=True
    ):
        assert torch.equal(one, other), name
    outputs = [model.eval()(*inputs_of(model)) for model in (plain, scaled)]
    assert torch.equal(*outputs)
    for call in ("adamw", "muon", "adafactor"):
        groups = [
            [
                (group["lr"], group["weight_decay"], group.get("eps"), len(group["params"]))
                for part in make_optimizer(call, model, lr=0.01, weight_decay=0.1).optimizers
                for group in part.param_groups
            ]
            for model in (plain, scaled)
        ]
        assert groups[0] == groups[1]
    for call in ("adam", "sgd", "muon", "adafactor"):
        settings = [groups_by_name(model, call) for model in (plain, scaled)]
        assert settings[0] == settings[1], call


def groups_by_name(model, optimizer):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(each)]: {name: value for name, value in group.items() if name != "params"}
        for group in addnorm.scale_groups(model, optimizer=optimizer)
        for each in group["params"]
    }


def test_muon_of_a_plain_model_gets_matrices_of_layers_only():
    for wiring in ("pre_ln", "hyper", "laurel"):
        model = addnorm.build(**SMALL, wiring=wiring, tied=False)
        groups = groups_by_name(model, "muon")
        by_muon = {name for name, group in groups.items() if group["rule"] == "muon"}
        assert by_muon == {name for name in groups if name.endswith("_proj.weight")}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("rule", ["mup(base_dim=16)", "depth_mup(base_depth=2)", RULE])
def test_base_size_is_the_plain_model(options, rule):
    options = SMALL | options
    assert_same_model(
        addnorm.build(**options, seed=3), addnorm.build(**options, seed=3, scale=rule)
    )


@pytest.mark.parametrize("wiring", wirings)
def test_base_size_is_the_plain_model_for_every_wiring(wiring):
    member = wirings.member(wiring)
    rule = RULE if member.multiplier_place != "none" else "mup(base_dim=16)"
    options = SMALL | {"wiring": wiring}
    assert_same_model(
        addnorm.build(**options, seed=3), addnorm.build(**options, seed=3, scale=rule)
    )


@pytest.mark.parametrize("wiring", [name for name in wirings if name not in ("none",)])
def test_residual_multiplier_of_every_wiring(wiring):
    """Constant branches: the first write adds m_L ** -1 of what it adds without a scale."""
    if wirings.member(wiring).multiplier_place == "none":
        with pytest.raises(UserError, match="no depth rule is known"):
            addnorm.build(**SMALL, wiring=wiring, scale=RULE)
        return
    model = addnorm.build(**SMALL | {"depth": 8}, wiring=wiring, scale=RULE, seed=0)
    (stack,) = model.stacks
    own = stack.wiring.residual_multiplier if stack.wiring.multiplier_place == "write" else 1.0
    if stack.wiring.multiplier_place == "write":
        assert stack.branch_multiplier == 1.0
        inner = getattr(stack.wiring, "inner", stack.wiring)
        own = inner.residual_multiplier
    assert own * stack.branch_multiplier == pytest.approx(2 / 8)


@pytest.mark.parametrize("wiring", ["pre_ln", "sandwich", "res_post", "normformer"])
def test_branches_are_multiplied_behind_norms(wiring):
    """x_out - x_in of one site is 1/4 of the plain one, whatever norm is in the branch."""
    options = SMALL | {"depth": 8, "wiring": wiring, "positions": "none"}
    model = addnorm.build(**options, scale=RULE, seed=0).eval()
    plain = addnorm.build(**options, seed=0).eval()
    tensors = {name: each for name, each in model.state_dict().items() if "extra" not in name}
    plain.load_state_dict(tensors, strict=False)
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    changes = []
    for each in (model, plain):
        with each.decoder.taps.record() as tape, torch.no_grad():
            each.decoder(x)
        changes.append(tape["stream"][0] - x)
    torch.testing.assert_close(changes[0], changes[1] / 4)


def test_factors_in_the_forward_pass():
    model = addnorm.build(
        **SMALL | {"dim": 64, "depth": 8, "embed_scale": "sqrt_dim", "head_scale": "rsqrt_dim"},
        scale=RULE,
    )
    assert model.embed.factor == 4.0  # sqrt(16), that of the base
    assert model.head.factor == pytest.approx(16**-0.5 / 4)
    assert model.decoder.branch_multiplier == 0.25
    assert model.decoder.sublayers[0].logit_scale == pytest.approx(8**0.5 / 32)
    with_heads = addnorm.build(
        **SMALL | {"dim": 64, "heads": 8}, scale="mup(base_dim=16, base_head_dim=8)"
    )
    assert with_heads.decoder.sublayers[0].logit_scale == pytest.approx(8**-0.5)


@pytest.mark.parametrize("wiring", ["pre_ln", "pre_ln(init=gpt2)", "deepnorm", "t_fixup"])
def test_initial_deviation(wiring):
    """s of the base times m ** -(1 / 2) for matrices, s for tables; depth changes nothing."""
    options = SMALL | {"dim": 64, "depth": 4, "heads": 4, "tied": False, "wiring": wiring}
    base = addnorm.build(**options, seed=0)
    rule = "completep(base_dim=64, base_depth=4)"
    wide = addnorm.build(**options | {"dim": 256, "depth": 6}, seed=0, scale=rule)
    for name, parameter in base.named_parameters():
        if parameter.ndim < 2:
            continue
        factor = 1.0 if "table" in name else 0.5
        expected = factor * parameter.std().item()
        assert wide.get_parameter(name).std().item() == pytest.approx(expected, rel=0.06), name


def test_outer_matrices_and_heads():
    options = SMALL | {"kind": "classifier", "classes": 40, "pooler": True, "dim": 64}
    base = addnorm.build(**options, seed=0)
    wide = addnorm.build(**options | {"dim": 256}, seed=0, scale="mup(base_dim=64)")
    for name, factor in (("pooler.weight", 0.5), ("head.weight", 0.25)):
        expected = factor * base.get_parameter(name).std().item()
        assert wide.get_parameter(name).std().item() == pytest.approx(expected, rel=0.06), name


def test_saved_and_refused_on_mismatch(tmp_path):
    options = SMALL | {"dim": 32}
    model = addnorm.build(**options, scale="mup(base_dim=16)", seed=0)
    model.save(tmp_path)
    again = addnorm.load(tmp_path)
    assert again.config.scale == "mup(base_dim=16)"
    ids = torch.arange(6)[None]
    assert torch.equal(again.eval()(ids), model.eval()(ids))
    with pytest.raises(UserError, match=r"scale=mup\(base_dim=16\)"):
        addnorm.build(**options).load_state_dict(model.state_dict())
    with pytest.raises(UserError, match=r"scale=mup\(base_dim=8\)"):
        addnorm.build(**options, scale="mup(base_dim=8)").load_state_dict(model.state_dict())


def test_number_is_the_former_attention_scale():
    model = addnorm.build(**SMALL, scale=0.5)
    assert (model.config.scale, model.config.attention_scale) == (None, 0.5)
    assert model.decoder.sublayers[0].logit_scale == 0.5
    assert model.decoder.arrangement["scale"] == "0.5"  # as in weights that were saved with it


def test_stack_of_plain_modules():
    def make(scale):
        layers = [torch.nn.Sequential(torch.nn.Linear(16, 16)) for _ in range(8)]
        return Stack(layers, dim=16, scale=scale).init_weights(seed=0)

    x = torch.randn(2, 3, 16)
    plain, same = make(None), make("completep(base_dim=16, base_depth=4)")
    assert torch.equal(plain(x), same(x))
    assert make(RULE).branch_multiplier == 0.5


@pytest.mark.parametrize("wiring", ["pre_ln", "post_ln", "sandwich", "res_post", "normformer"])
@pytest.mark.parametrize(
    ("scale", "rule"), [("depth_mup", "sqrt_depth"), ("completep", "depth")], ids=lambda each: each
)
def test_factor_of_a_scale_is_that_of_the_wiring_scaled(wiring, scale, rule):
    """Two places for one factor: a scale may not rename weights, a wiring has no optimizer."""
    base = "base_depth=1" if scale == "depth_mup" else "base_dim=16, base_depth=1"
    options = {"kind": "lm", "vocab": 11, "dim": 16, "depth": 4, "heads": 2}
    model = addnorm.build(**options, wiring=wiring, scale=f"{scale}({base})", seed=0)
    twin = addnorm.build(**options, wiring=f"scaled(inner={wiring}, r=1.0, rule={rule}, base=1)")
    weights = {
        name.replace("wiring.", "wiring.inner."): value
        for name, value in model.state_dict().items()
        if not name.endswith("_extra_state")
    }
    missing = twin.load_state_dict(weights, strict=False)
    assert not missing.unexpected_keys
    assert all(name.endswith("_extra_state") for name in missing.missing_keys)
    ids = torch.arange(10).view(2, 5)
    torch.testing.assert_close(model(ids), twin(ids), rtol=1e-5, atol=1e-6)
