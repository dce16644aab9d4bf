"""Site metrics against their references, on forward passes with padding."""

import math
from itertools import chain, pairwise

import pytest
import torch
from torch import nn

from addnorm import CrossAttention, SelfAttention, Stack, UserError, build
from addnorm.measure import (
    SITE_METRICS,
    SiteActivations,
    attention_entropy,
    find_stacks,
    forward_rows,
    max_logit,
    residual_dependency,
    site_parameters,
    stream_variance,
)
from addnorm.measure.probe import visit_sites
from tests.helpers import perturb, tanh_sublayers, tokens, toy_stack
from tests.measure import reference
from tests.measure.cases import SELECTED_WIRINGS, WIRINGS, make_batch, make_translator

VALID = torch.arange(7) < torch.tensor([7, 3, 1])[:, None]


def make_activations(**changes):
    x = tokens(seed=11)
    defaults = {
        "before": tokens(seed=5),
        "branch": tokens(seed=6) * 2,
        "stream": x + 1,
        "valid": VALID,
        "logits": (),
        "probabilities": (),
    }
    return SiteActivations(**defaults | changes)


def make_attention(dtype=torch.float32):
    """Return logits and probabilities (B, heads, L, S); one query sees no key."""
    logits = torch.randn(3, 2, 7, 7, generator=torch.Generator().manual_seed(3))
    hidden = torch.ones(7, 7).triu(1).bool()
    hidden = hidden | (torch.arange(3)[:, None, None, None] == 0) & (torch.arange(7) == 6)[:, None]
    logits = logits.masked_fill(hidden, -torch.inf)
    return logits.to(dtype), logits.softmax(-1).nan_to_num(0).to(dtype)


@pytest.mark.parametrize("valid", [VALID, None], ids=["padded", "whole"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("metric", SITE_METRICS.values(), ids=SITE_METRICS)
def test_metric_equals_the_reference(metric, valid, dtype):
    logits, probabilities = make_attention(dtype)
    plain = make_activations()
    activations = make_activations(
        valid=valid,
        logits=(logits,),
        probabilities=(probabilities,),
        **{name: getattr(plain, name).to(dtype) for name in ("before", "branch", "stream")},
    )
    expected = getattr(reference, metric.__name__)(activations)
    assert float(metric(activations)) == pytest.approx(expected, rel=1e-5)


def test_padding_is_ignored_even_if_nan():
    clean = make_activations()
    with_nan = {
        name: getattr(clean, name).masked_fill(~VALID.unsqueeze(-1), math.nan)
        for name in ("before", "branch", "stream")
    }
    for metric in SITE_METRICS.values():
        assert metric(make_activations(**with_nan)) == metric(clean)


def test_dependency_of_zero_branch_and_zero_stream():
    assert residual_dependency(make_activations(branch=torch.zeros(3, 7, 10))) == 0
    assert residual_dependency(make_activations(before=torch.zeros(3, 7, 10))) == pytest.approx(1)


def test_batch_of_padding_has_finite_metrics():
    all_padding = make_activations(valid=torch.zeros(3, 7, dtype=torch.bool))
    assert stream_variance(all_padding) == 0
    assert residual_dependency(all_padding) == 0


def test_bounds_of_the_entropy():
    even = make_activations(probabilities=(torch.full((3, 2, 7, 5), 0.2),))
    assert float(attention_entropy(even)) == pytest.approx(math.log(5))
    sharp = torch.zeros(3, 2, 7, 5)
    sharp[..., 1] = 1
    assert attention_entropy(make_activations(probabilities=(sharp,))) == 0
    assert attention_entropy(make_activations()) is None


def test_several_attentions_per_site():
    even, sharp = torch.full((3, 2, 7, 4), 0.25), torch.zeros(3, 2, 7, 4)
    sharp[..., 1] = 1
    activations = make_activations(probabilities=(even, sharp), logits=(even, sharp))
    assert float(attention_entropy(activations)) == pytest.approx(math.log(4) / 2)
    assert max_logit(activations) == 1


@pytest.mark.parametrize("cap", [None, 0.5])
def test_rows_equal_values_computed_by_hand(cap):
    """Queries and keys of a one-layer decoder are computed from the recorded taps."""
    model = perturb(
        build(kind="lm", vocab=17, dim=12, depth=1, heads=3, wiring="post_ln", cap=cap, seed=1)
    ).eval()
    ids = torch.randint(4, 17, (3, 7), generator=torch.Generator().manual_seed(0))
    with model.decoder.taps.record() as tape:
        model(ids, mask=VALID)
    rows = {
        (row["name"], row["site"]): row["value"] for row in forward_rows(model, ids, mask=VALID)
    }
    attention, read = model.decoder.sublayers[0], tape["read"][0]
    q, k = (
        proj(read).unflatten(-1, (3, 4)).transpose(1, 2)
        for proj in (attention.q_proj, attention.k_proj)
    )
    logits = torch.einsum("bhtk,bhsk->bhts", q, k) / 2.0
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    visible = torch.ones(7, 7).tril().bool() & VALID[:, None, None, :]
    p = logits.masked_fill(~visible, -1e9).softmax(-1)
    sites = [
        SiteActivations(
            before=tape["read"][site],  # in post_ln the sub-layer reads the stream itself
            branch=tape["branch"][site],
            stream=tape["stream"][site],
            valid=VALID,
            logits=(logits.masked_fill(~visible, -torch.inf),) if site == 0 else (),
            probabilities=(p,) if site == 0 else (),
        )
        for site in (0, 1)
    ]
    expected = {
        (name, site): getattr(reference, metric.__name__)(activations)
        for site, activations in enumerate(sites)
        for name, metric in SITE_METRICS.items()
        if metric(activations) is not None
    }
    assert rows == pytest.approx(expected, rel=1e-4)
    assert len(rows) > len(SITE_METRICS)


def test_rows_identify_the_site():
    args, masks = make_batch()
    rows = forward_rows(make_translator(), *args, **masks)
    assert all(isinstance(row["value"], float) for row in rows)
    crossing = [row for row in rows if row["name"] == "max_logit" and row["kind"] == "cross"]
    assert [(row["stack"], row["site"], row["layer"]) for row in crossing] == [
        ("decoder", 1, 0),
        ("decoder", 4, 1),
    ]
    count = {name: sum(row["name"] == name for row in rows) for name in SITE_METRICS}
    assert count["stream_variance"] == count["dependency"] == 10
    assert count["attention_entropy"] == count["max_logit"] == 6


@pytest.mark.parametrize("wiring", WIRINGS)
def test_every_wiring_can_be_measured_and_is_unchanged(wiring):
    model, (args, masks) = make_translator(wiring), make_batch()
    kinds = [type(stack.wiring) for stack in model.stacks]
    before = model.eval()(*args, **masks)
    rows = forward_rows(model, *args, **masks)
    assert {row["name"] for row in rows} == set(SITE_METRICS)
    assert all(math.isfinite(row["value"]) for row in rows)
    assert [type(stack.wiring) for stack in model.stacks] == kinds
    assert torch.equal(model(*args, **masks), before)
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("wiring", ["none", "pre_ln", "hyper", "false_pre_ln", "u_skips"])
def test_before_is_the_stream_before_the_write(wiring):
    """If the write is a plain sum at initialization, the stream after it is before + branch."""
    visited = []
    visit_sites(
        toy_stack(wiring),
        lambda name, site, activations: visited.append(activations),
        tokens(),
    )
    assert len(visited) == 8
    for each in visited:
        torch.testing.assert_close(each.stream, each.before + each.branch)
    rewritten = [not torch.equal(one.stream, two.before) for one, two in pairwise(visited)]
    assert any(rewritten) == (wiring in ("false_pre_ln", "u_skips"))


def test_masked_norms_get_the_mask():
    model, (args, masks) = perturb(make_translator(encoder_norm="instance")).eval(), make_batch()
    with model.encoder.taps.record() as tape:
        model(*args, **masks)
    rows = forward_rows(model, *args, **masks)
    actual = [row["value"] for row in rows if row["name"] == "stream_variance"]
    expected = [
        reference.stream_variance(make_activations(stream=stream, valid=masks["source_mask"]))
        for stream in tape["stream"]
    ]
    assert actual[:4] == pytest.approx(expected, rel=1e-4)


def test_bare_stack_and_several_stacks():
    stack = Stack(tanh_sublayers(2, 10), dim=10)
    sites = {name: [] for name in SITE_METRICS}
    for row in forward_rows(stack, tokens(), mask=VALID):
        sites[row["name"]].append(row["site"])
    assert sites["stream_variance"] == sites["dependency"] == [0, 1]
    assert sites["attention_entropy"] == sites["max_logit"] == []

    class TwoStacks(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right = toy_stack("pre_ln", depth=1), toy_stack("post_ln", depth=1)

        def forward(self, x):
            return self.right(self.left(x))

    assert list(find_stacks(TwoStacks())) == ["left", "right"]
    assert {row["stack"] for row in forward_rows(TwoStacks(), tokens())} == {"left", "right"}


def test_attention_inside_custom_module_is_found():
    class Wrapped(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)

    stack = Stack([Wrapped(SelfAttention(10, 2)), nn.Tanh()], dim=10)
    names = [row["name"] for row in forward_rows(stack, tokens())]
    assert names.count("max_logit") == 1


def test_model_without_stack_is_rejected():
    with pytest.raises(UserError, match=r"expected an addnorm model or Stack, .* got Linear"):
        forward_rows(nn.Linear(2, 2), torch.zeros(1, 2))


@pytest.mark.parametrize("wiring", SELECTED_WIRINGS)
def test_site_parameters_are_sublayer_and_wiring_modules(wiring):
    model = make_translator(wiring)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for stack in model.stacks:
        names_by_site = [
            [names[id(each)] for each in site_parameters(stack, site)] for site in stack.plan.sites
        ]
        together = list(chain(*names_by_site))
        assert len(set(together)) == len(together)  # no parameter belongs to two sites
        for index, own in enumerate(names_by_site):
            assert all(f".{index}." in name for name in own)
            inside = {name for name in own if ".sublayers." in name}
            assert len(inside) == len(list(stack.sublayers[index].parameters()))
    norms = [name for name in together if ".norms." in name]
    assert len(norms) == (0 if wiring in ("ngpt", "fixup") else 12)


def test_max_logit_ignores_padding_of_the_memory():
    attention = CrossAttention(8, 2)
    memory, logits = tokens(2, 5, 8), []
    memory[:, 3:] *= 1e4
    hook = attention.logits_tap.register_forward_hook(lambda *each: logits.append(each[-1]))
    valid = (torch.arange(5) < 3).expand(2, 5)
    attention(tokens(2, 3, 8), memory, memory_mask=valid)
    hook.remove()
    assert logits[0].max() < 1e3
    assert (logits[0][..., 3:] == -torch.inf).all()
