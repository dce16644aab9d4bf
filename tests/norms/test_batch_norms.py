"""Norms with statistics over tokens: batch, instance and power norm."""

import copy

import pytest
import torch

from addnorm.norms import make_norm
from tests.norms.cases import DIM, F64, SHAPE, double, fresh, ragged_mask, randn, tokens

close = torch.testing.assert_close


# BatchNorm and InstanceNorm


def test_batch_standardizes_every_feature_over_valid_tokens():
    x, mask = tokens(*SHAPE), ragged_mask()
    y = fresh("batch(eps=0.1)")(x, mask)[mask]
    v = x[mask].var(0, correction=0)
    close(y.mean(0), torch.zeros(DIM, dtype=F64))
    close(y.square().mean(0), v / (v + 0.1))


def test_batch_updates_running_statistics_with_unbiased_variance():
    norm, mask = fresh("batch(momentum=0.3)"), ragged_mask()
    running_mean, running_var = torch.zeros(DIM, dtype=F64), torch.ones(DIM, dtype=F64)
    for step in range(4):
        x = tokens(*SHAPE, seed=step)
        norm(x, mask)
        running_mean = 0.7 * running_mean + 0.3 * x[mask].mean(0)
        running_var = 0.7 * running_var + 0.3 * x[mask].var(0, correction=1)
    close(norm.running_mean, running_mean)
    close(norm.running_var, running_var)
    assert norm.num_batches_tracked == 4
    x = tokens(*SHAPE, seed=9)
    close(norm.eval()(x), (x - running_mean) / (running_var + 1e-5).sqrt())


@pytest.mark.parametrize("valid", [0, 1])
def test_batch_of_fewer_than_two_tokens_keeps_running_statistics(valid):
    norm = double("batch")
    before = copy.deepcopy(norm.state_dict())
    mask = torch.arange(4)[None] < valid
    y = norm(tokens(1, 4, DIM), mask)
    close(y[mask], norm.bias.expand(valid, DIM))
    assert not y[~mask].any()
    assert all(torch.equal(norm.state_dict()[name], before[name]) for name in before)


def test_batch_mixes_sentences_in_training_only():
    norm, x = double("batch"), tokens(*SHAPE).detach()
    assert not torch.equal(copy.deepcopy(norm)(x)[0], copy.deepcopy(norm)(x[:1])[0])
    close(norm.eval()(x)[0], norm.eval()(x[:1])[0])


def test_instance_standardizes_every_sentence_separately():
    x, mask = tokens(*SHAPE), ragged_mask()
    norm = fresh("instance(eps=0.1)")
    for sentence, valid in zip(range(len(x)), mask, strict=True):
        y = norm(x, mask)[sentence, valid]
        v = x[sentence, valid].var(0, correction=0)
        close(y.mean(0), torch.zeros(DIM, dtype=F64))
        close(y.square().mean(0), v / (v + 0.1))
        close(y, norm(x[sentence, valid]))


def test_instance_removes_the_mean_of_a_sentence():
    norm, x, mask = double("instance"), tokens(*SHAPE), ragged_mask()
    shared = 5 * randn(SHAPE[0], 1, DIM, seed=4, dtype=F64)
    close(norm(x + shared, mask), norm(x, mask))


def test_instance_of_one_token_is_the_bias():
    norm = double("instance")
    close(norm(tokens(3, 1, DIM)), norm.bias.expand(3, 1, DIM))
    mask = torch.arange(7) < torch.tensor([[1]])
    close(norm(tokens(1, 7, DIM), mask)[0, 0], norm.bias.detach())


# PowerNorm


def run_step(norm, x, mask, g):
    """Return the output and the gradient of the input for an output gradient g."""
    y = norm(x, mask)
    return y, torch.autograd.grad((y * g).sum(), x)[0]


def test_power_equals_a_reference_loop_during_and_after_warm_up():
    """Three steps with statistics of the batch, then three with running statistics."""
    norm, mask = fresh("power(warmup=3, decay=0.8)"), ragged_mask()
    weight, bias = (randn(DIM, seed=s, dtype=F64) for s in (11, 12))
    with torch.no_grad():
        norm.weight.copy_(weight)
        norm.bias.copy_(bias)
    psi2, nu = torch.ones(DIM, dtype=F64), torch.zeros(DIM, dtype=F64)
    for step in range(6):
        x, g = tokens(*SHAPE, seed=step), randn(*SHAPE, seed=20 + step, dtype=F64)
        y, dx = run_step(norm, x, mask, g)
        valid, upstream = x[mask].detach(), weight * g[mask]
        second = valid.square().mean(0)
        psi = ((second if step < 3 else psi2) + 1e-5).sqrt()
        h = valid / psi
        c = (upstream * h).mean(0) if step < 3 else nu
        close(y[mask], weight * h + bias)
        close(dx[mask], (upstream - c * h) / psi)
        psi2 = 0.8 * psi2 + 0.2 * second
        nu = nu * (1 - 0.2 * h.square().mean(0)) + 0.2 * (upstream * h).mean(0)
        close(norm.psi2, psi2)
        close(norm.nu, nu)
        assert norm.steps == step + 1
    x = tokens(*SHAPE, seed=9)
    close(norm.eval()(x), weight * x / (psi2 + 1e-5).sqrt() + bias)


def test_power_updates_nu_like_the_released_code():
    """The released code stores e = nu / (1 - decay); a step adds the mean of (G - nu * h) * h."""
    norm = fresh("power(warmup=0)")
    e = torch.zeros(DIM, dtype=F64)
    for step in range(4):
        x, g = tokens(5, DIM, seed=step), randn(5, DIM, seed=20 + step, dtype=F64)
        h = (x / (norm.psi2 + 1e-5).sqrt()).detach()
        run_step(norm, x, None, g)
        e = e + ((g - 0.1 * e * h) * h).mean(0)
        close(norm.nu, 0.1 * e)


def test_power_in_warm_up_has_mean_square_one_per_feature():
    x, mask = tokens(*SHAPE), ragged_mask()
    y = fresh("power(eps=1e-12)")(x, mask)[mask]
    close(y.square().mean(0), torch.ones(DIM, dtype=F64))


def test_power_without_warm_up_scales_by_running_statistics_first():
    norm, x, g = double("power(warmup=0)"), tokens(*SHAPE), randn(*SHAPE, seed=3, dtype=F64)
    norm.nu.zero_()
    psi = (norm.psi2 + 1e-5).sqrt()
    _, dx = run_step(norm, x, None, g)
    close(dx, norm.weight.detach() * g / psi)


@pytest.mark.parametrize("warmup", [0, 3])
def test_power_ignores_a_batch_of_padding(warmup):
    norm = double(f"power(warmup={warmup})")
    before = copy.deepcopy(norm.state_dict())
    y, dx = run_step(norm, tokens(*SHAPE), torch.zeros(SHAPE[:-1], dtype=torch.bool), 1.0)
    assert not y.any() and not dx.any()
    assert all(torch.equal(norm.state_dict()[name], before[name]) for name in before)


def test_power_is_causal_only_without_warm_up():
    assert make_norm("power(warmup=0)", DIM).causal
    assert not make_norm("power(warmup=1)", DIM).causal
