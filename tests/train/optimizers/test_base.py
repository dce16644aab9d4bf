"""Optimizers: parameter groups, update formulas, restored state."""

import copy
import math

import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from addnorm.core.errors import UserError
from addnorm.models import LanguageModel, Seq2Seq
from addnorm.models.config import Config
from addnorm.train.optimizers.base import make_optimizer, registry

SIZES = {"vocab": 13, "dim": 8, "depth": 2, "heads": 2}


def language_model(wiring="pre_ln", **changes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LanguageModel(Config(**{"kind": "lm", "wiring": wiring, **SIZES, **changes}))


def set_gradients(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def train(model, optimizer, steps):
    for step in steps:
        set_gradients(model, step)
        optimizer.set_lr(1 / (1 + step))
        optimizer.step()


def bits(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same_bits(one, other):
    return all(torch.equal(one[name], other[name]) for name in one | other)


def names_of(model, group):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(parameter)] for parameter in group["params"]}


def all_groups(optimizer):
    return [group for part in optimizer.optimizers for group in part.param_groups]


# Groups.


@pytest.mark.parametrize("wiring", ["pre_ln", "layer_scale", "dlcl", "ngpt", "hyper", "rezero"])
@pytest.mark.parametrize("call", registry)
def test_each_parameter_is_in_one_group_with_the_right_decay(call, wiring):
    model = language_model(wiring)
    groups = all_groups(make_optimizer(call, model, lr=1e-3, weight_decay=0.1))
    listed = [parameter for group in groups for parameter in group["params"]]
    assert len(listed) == len(set(map(id, listed))) == len(list(model.parameters()))
    spared = {
        name for group in groups if not group["weight_decay"] for name in names_of(model, group)
    }
    assert spared == model.no_decay()
    assert {group["weight_decay"] for group in groups} == {0.0, 0.1}
    assert "embed.table" not in spared


@pytest.mark.parametrize("call", registry)
def test_zero_gradients_move_only_decayed_parameters(call):
    model = language_model("rezero")
    before = bits(model)
    optimizer = make_optimizer(call, model, lr=0.1, weight_decay=0.5)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moved = {name for name, value in bits(model).items() if not torch.equal(value, before[name])}
    matrices = {name for name in before if name not in model.no_decay()}
    assert moved == matrices
    if call != "adam":  # whose decay is a gradient like any other
        table = model.embed.table.detach()
        torch.testing.assert_close(table, 0.95 * before["embed.table"])


def test_frozen_parameters_are_excluded():
    model = language_model()
    model.embed.table.requires_grad_(False)
    groups = all_groups(make_optimizer("adamw", model, lr=1e-3))
    assert all("embed.table" not in names_of(model, group) for group in groups)


@pytest.mark.parametrize("wiring", ["pre_ln", "layer_scale", "dlcl", "attn_res", "ngpt", "hyper"])
def test_muon_updates_only_matrices_of_sublayers(wiring):
    """Embedding tables, heads and stacked vectors are excluded."""
    model = language_model(wiring, tied=False, positions="learned(length=16)")
    muon, adamw = make_optimizer("muon", model, lr=1e-3, weight_decay=0.1).optimizers
    own = set().union(*(names_of(model, group) for group in muon.param_groups))
    assert len(own) == 2 * 6  # two layers of query, key, value, out, ffn_in, ffn_out
    assert all(".sublayers." in name and name.endswith("weight") for name in own)
    others = set().union(*(names_of(model, group) for group in adamw.param_groups))
    assert {"embed.table", "head.table"} <= others
    assert own | others == {name for name, _ in model.named_parameters()}


def test_muon_updates_matrices_of_both_stacks():
    model = Seq2Seq(Config(kind="seq2seq", **SIZES))
    muon, _ = make_optimizer("muon", model, lr=1e-3).optimizers
    own = set().union(*(names_of(model, group) for group in muon.param_groups))
    assert len(own) == 2 * 6 + 2 * 10
    assert {name.partition(".")[0] for name in own} == {"encoder", "decoder"}


# What a step does.


def reference_adamw(p, g, m, v, t, *, lr, decay, betas, eps):
    m = betas[0] * m + (1 - betas[0]) * g
    v = betas[1] * v + (1 - betas[1]) * g * g
    unbiased = m / (1 - betas[0] ** t), v / (1 - betas[1] ** t)
    return p - lr * (unbiased[0] / (unbiased[1].sqrt() + eps) + decay * p), m, v


def test_adamw_matches_formula():
    model = language_model()
    optimizer = make_optimizer("adamw(beta1=0.8, eps=1e-6)", model, lr=0.01, weight_decay=0.1)
    p = model.embed.table.detach().double()
    m = v = torch.zeros_like(p)
    for step in (1, 2, 3):
        set_gradients(model, step)
        rest = {"lr": 0.01 / step, "decay": 0.1, "betas": (0.8, 0.98), "eps": 1e-6}
        p, m, v = reference_adamw(p, model.embed.table.grad.double(), m, v, step, **rest)
        assert optimizer.set_lr(1 / step) == pytest.approx(0.01 / step)
        optimizer.step()
    torch.testing.assert_close(model.embed.table.detach().double(), p, rtol=1e-5, atol=1e-6)


def test_adam_without_decay_equals_adamw():
    one, other = language_model(), language_model()
    train(one, make_optimizer("adam", one, lr=0.01), range(3))
    train(other, make_optimizer("adamw", other, lr=0.01), range(3))
    for name, value in bits(one).items():
        torch.testing.assert_close(value, bits(other)[name])


def test_radam_adapts_from_the_sixth_step():
    """rho is 4.919 at step 5 and 5.882 at step 6, where r is 0.1155 (beta2 = 0.98)."""
    model = language_model()
    optimizer = make_optimizer("radam(beta1=0.0, eps=1e-12)", model, lr=1.0)
    moves = []
    for _ in range(6):
        before = model.embed.table.detach().clone()
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 3.0)
        optimizer.step()
        moves.append(float((before - model.embed.table.detach()).mean()))
    assert moves[:5] == pytest.approx([3.0] * 5, rel=1e-4)  # the bare gradient
    assert moves[5] == pytest.approx(0.1155, rel=1e-2)


def test_adafactor_moves_zero_initialized_parameters_slowly():
    """At most floor * lr per step: 100 steps of 0.01 move ReZero's alpha to about 1e-3."""
    reached = {}
    for call in ("adafactor", "adamw"):
        model = language_model("rezero")
        (alpha,) = [each for name, each in model.named_parameters() if name.endswith("alpha")]
        optimizer = make_optimizer(call, model, lr=0.01)
        for _ in range(100):
            alpha.grad = torch.ones_like(alpha)
            optimizer.step()
        reached[call] = float(alpha.detach().abs().max())
    assert 0 < reached["adafactor"] <= 1.01e-3
    assert reached["adamw"] > 500 * reached["adafactor"]


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
def test_muon_matches_torch_up_to_bfloat16(adjust):
    model = language_model()
    call = f"muon(adjust={adjust}, momentum=0.9)"
    mine, _ = make_optimizer(call, model, lr=0.02, weight_decay=0.1).optimizers
    copies = [torch.nn.Parameter(each.detach().clone()) for each in mine.param_groups[0]["params"]]
    theirs = torch.optim.Muon(copies, lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn=adjust)
    for step in range(3):
        set_gradients(model, step)
        for twin, parameter in zip(copies, mine.param_groups[0]["params"], strict=True):
            twin.grad = parameter.grad.clone()
        mine.step()
        theirs.step()
    for twin, parameter in zip(copies, mine.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(parameter, twin, rtol=0.02, atol=5e-3)


def test_muon_update_is_nearly_orthogonal():
    model = language_model(dim=16)
    (weight, *_) = make_optimizer("muon", model, lr=1.0).optimizers[0].param_groups[0]["params"]
    optimizer = make_optimizer("muon(adjust=original)", model, lr=1.0)
    before = weight.detach().clone()
    set_gradients(model, 7)
    optimizer.step()
    values = torch.linalg.svdvals(before - weight.detach())
    assert values.min() > 0.3 and values.max() < 1.3


def test_zero_grad_clears_all_gradients():
    model = language_model()
    for call in registry:
        set_gradients(model, 0)
        make_optimizer(call, model, lr=1e-3).zero_grad()
        assert all(parameter.grad is None for parameter in model.parameters())


def test_zero_learning_rate_changes_nothing():
    for call in registry:
        model = language_model()
        before = bits(model)
        optimizer = make_optimizer(call, model, lr=1e-3, weight_decay=0.1)
        assert optimizer.set_lr(0.0) == 0.0
        set_gradients(model, 0)
        optimizer.step()
        assert same_bits(before, bits(model))


# The same bits.


@pytest.mark.parametrize("call", registry)
@pytest.mark.parametrize("wiring", ["pre_ln", "hyper"])
def test_restored_state_reproduces_bits(call, wiring):
    """The state is stored by parameter name as full tensors, as in a checkpoint."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    model = language_model(wiring, depth=1)
    optimizer = make_optimizer(call, model, lr=0.01, weight_decay=0.1)
    train(model, optimizer, range(7))
    optimizer.zero_grad()
    weights = copy.deepcopy(model.state_dict())
    state = copy.deepcopy(
        get_optimizer_state_dict(model, optimizer.optimizers, options=options)["state"]
    )
    train(model, optimizer, range(7, 12))

    again = language_model(wiring, depth=1)
    again.load_state_dict(weights)
    restored = bits(again)
    fresh = make_optimizer(call, again, lr=0.01, weight_decay=0.1)
    known = get_optimizer_state_dict(again, fresh.optimizers, options=options)
    assert all(
        isinstance(value, torch.Tensor) for values in state.values() for value in values.values()
    )
    set_optimizer_state_dict(
        again, fresh.optimizers, optim_state_dict=known | {"state": state}, options=options
    )
    assert same_bits(bits(again), restored)  # restoring a state does not change weights
    train(again, fresh, range(7, 12))
    assert same_bits(bits(model), bits(again))


@pytest.mark.parametrize("call", registry)
def test_number_of_threads_does_not_change_bits(call):
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            model = language_model(vocab=5003, dim=24)  # large enough to be shared
            train(model, make_optimizer(call, model, lr=0.01, weight_decay=0.1), range(2))
            results.append(bits(model))
    finally:
        torch.set_num_threads(threads)
    assert same_bits(*results)


# Refusals.


@pytest.mark.parametrize("lr", [0, -1e-3, math.nan, math.inf, "fast"])
def test_invalid_lr_is_rejected(lr):
    with pytest.raises(UserError, match="lr: expected a positive number, got"):
        make_optimizer("adamw", language_model(), lr=lr)


@pytest.mark.parametrize("decay", [-0.1, math.nan, math.inf])
def test_invalid_weight_decay_is_rejected(decay):
    with pytest.raises(UserError, match="weight_decay: expected a number of at least 0, got"):
        make_optimizer("adamw", language_model(), lr=1e-3, weight_decay=decay)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("muoon", "unknown optimizer 'muoon'; did you mean 'muon'?"),
        ("adamw(beta=0.9)", "optimizer 'adamw' has no option 'beta'; did you mean 'beta"),
        (
            "adamw(beta2=1.0)",
            "option 'beta2' of optimizer 'adamw': expected a number less than 1, got 1.0",
        ),
        ("adafactor(clip=0.5)", "option 'clip' of optimizer 'adafactor': expected"),
        ("muon(adjust=no)", "expected one of match_rms_adamw, original, got 'no'"),
    ],
)
def test_invalid_calls_are_rejected(call, message):
    with pytest.raises(UserError) as refusal:
        make_optimizer(call, language_model(), lr=1e-3)
    assert message in str(refusal.value)


def test_model_without_trainable_parameters_is_rejected():
    model = language_model().requires_grad_(False)
    with pytest.raises(
        UserError, match="model: expected a parameter with requires_grad=True, got none"
    ):
        make_optimizer("adamw", model, lr=1e-3)
    model.embed.table.requires_grad_(True)
    with pytest.raises(UserError, match="muon: expected a trainable weight matrix in a sub-layer"):
        make_optimizer("muon", model, lr=1e-3)


@pytest.fixture
def process_group():
    """Process group with one process."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(torch.__version__ < "2.7", reason="FSDP of torch 2.6 needs a GPU")
@pytest.mark.usefixtures("process_group")
def test_only_adafactor_rejects_sharded_parameters():
    model = language_model()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(UserError, match="torch's Adafactor does not support sharded matrices"):
        make_optimizer("adafactor", model, lr=1e-3)
    for call in set(registry) - {"adafactor"}:
        optimizer = make_optimizer(call, model, lr=1e-3)
        optimizer.zero_grad()
        before = model.embed.table.full_tensor().detach().clone()
        model(torch.tensor([[1, 2, 3]])).logsumexp(-1).sum().backward()
        optimizer.step()
        assert not torch.equal(model.embed.table.full_tensor().detach(), before)
