"""Mistakes in a part of a model are found, and healthy models beside them have no alarm."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import addnorm
from tests.doctor.models.historic.cases import (
    LAYERS,
    Classifier,
    D,
    H,
    PreLayer,
    feed_forward,
    ids,
    join_heads,
    log_mask,
    valid,
    vectors,
)
from tests.doctor.models.partial_faults import CASES, BatchNormModel, NormedHeads, init_gpt2

# Every eighth case runs by default, the others are slow tests.
PARAMETERS = [
    pytest.param(case, id=case.name, marks=() if number % 8 == 0 else pytest.mark.slow)
    for number, case in enumerate(CASES)
]
ONLY_REMARKS = {"zeroed_padding_counts_in_batch_norm", "convolution_module_batch_norm"}
"""Here the number of padded tokens matters, not their values."""


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def alarms(model, example=None):
    report = addnorm.doctor(model, ids() if example is None else example)
    return {f.rule for f in report.findings if f.severity != "info"}


def test_names_are_unique():
    assert len(CASES) == len({case.name for case in CASES})


@pytest.mark.parametrize("case", PARAMETERS)
def test_mistake_is_found(case):
    severities = {f.severity for f in case.findings(bug=True) if f.rule in case.rules}
    assert severities if case.name in ONLY_REMARKS else severities - {"info"}


@pytest.mark.parametrize("case", PARAMETERS)
def test_healthy_form_has_no_alarm(case):
    assert [f for f in case.findings(bug=False) if f.severity != "info"] == []


# Healthy models that resemble "unused_in_layer"


class Experts(nn.Module):
    """Each token goes to one of many experts, most of which a short input does not select."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(D, 12)
        self.experts = nn.ModuleList(feed_forward() for _ in range(12))

    def forward(self, x):
        scores = self.router(x).softmax(-1)
        weight, chosen = scores.max(-1)
        y = torch.zeros_like(x)
        for i in chosen.unique().tolist():
            y = y + self.experts[i](x) * (weight * (chosen == i))[..., None]
        return y


def experts():
    layers = [PreLayer() for _ in range(LAYERS)]
    for layer in layers:
        layer.ff = Experts()
    return Classifier(layers, nn.LayerNorm(D))


class Heads(nn.Module):
    """One head for each task, of which the inputs select the second."""

    def __init__(self):
        super().__init__()
        self.body = Classifier([PreLayer() for _ in range(2)], nn.LayerNorm(D), head=False)
        self.heads = nn.ModuleList(nn.Sequential(nn.Dropout(0.1), nn.Linear(D, 3)) for _ in "abc")

    def forward(self, tokens):
        return self.heads[1](self.body(tokens))


class FusedAttention(PreLayer):
    """Dropout of the attention as a module that the fused kernel replaces, as in nanoGPT."""

    def __init__(self):
        super().__init__()
        self.drop_attention, self.drop = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.drop(self.attention(self.n1(x)))
        return x + self.drop(self.ff(self.n2(x)))


class SharedKeys(nn.Module):
    """The last layer attends to the keys and values of the layer before; its own are unused."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(PreLayer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(D)

    def forward(self, x):
        keys = values = None
        for i, layer in enumerate(self.layers):
            y, a = layer.n1(x), layer.attention
            if i < LAYERS - 1:
                keys, values = a.k(y), a.v(y)
            q, k, v = (t.unflatten(-1, (H, -1)).transpose(1, 2) for t in (a.q(y), keys, values))
            x = x + a.o(join_heads(F.scaled_dot_product_attention(q, k, v)))
            x = x + layer.ff(layer.n2(x))
        return self.norm(x)


class WithoutRate(PreLayer):
    """Dropout of rate 0 is not called."""

    def __init__(self, rate):
        super().__init__()
        self.drop = nn.Dropout(rate)

    def forward(self, x):
        y = self.attention(self.n1(x))
        x = x + (self.drop(y) if self.drop.p else y)
        return x + self.ff(self.n2(x))


def frozen_spare():
    layers = [FusedAttention() for _ in range(LAYERS)]
    for i, layer in enumerate(layers):
        layer.spare = nn.Parameter(torch.zeros(D), requires_grad=False)
        if i:
            layer.n1.register_forward_hook(lambda m, a, y, layer=layer: y + layer.spare)
    return Classifier(layers, nn.LayerNorm(D))


UNUSED = {
    "experts that no token selects": (experts, ids),
    "heads of other tasks": (Heads, ids),
    "dropout replaced by a kernel": (
        lambda: Classifier([FusedAttention() for _ in range(LAYERS)], nn.LayerNorm(D)),
        ids,
    ),
    "keys of another layer": (SharedKeys, vectors),
    "rates from 0": (
        lambda: Classifier([WithoutRate(0.1 * i) for i in range(LAYERS)], nn.LayerNorm(D)),
        ids,
    ),
    "frozen and unused": (frozen_spare, ids),
}


@pytest.mark.parametrize("name", UNUSED)
def test_parts_that_may_be_unused(name):
    make, example = UNUSED[name]
    assert alarms(make(), example()) == set()


# Marks of matrices


@pytest.mark.parametrize(
    ("flag", "everywhere", "expected"),
    [
        ("init_scaled", False, {"scale_without_init"}),
        ("init_scaled", True, set()),
        ("split_rows", False, set()),  # at most a remark: other purposes are possible
    ],
)
def test_marks_of_residual_projections(flag, everywhere, expected):
    model = Classifier([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and (everywhere or name.endswith((".o", "ff.2"))):
            setattr(module, flag, True)
    assert alarms(init_gpt2(model, ("nothing",))) == expected
    assert alarms(init_gpt2(model, ("o.weight", "ff.2.weight"))) == set()


def test_deviation_that_falls_with_depth_is_no_partial_init():
    model = init_gpt2(
        Classifier([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D)), ("nothing",)
    )
    for i, layer in enumerate(model.layers):
        for weight in (layer.attention.o.weight, layer.ff[2].weight):
            nn.init.normal_(weight, std=0.02 / (2 * (i + 1)) ** 0.5)
    assert alarms(model) == set()


# Dropout between two parts


def test_single_dropout_between_two_parts_is_healthy():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = (nn.ModuleList(PreLayer() for _ in range(2)) for _ in range(2))
            self.drop, self.norm = nn.Dropout(0.2), nn.LayerNorm(D)

        def forward(self, x):
            for layer in self.one:
                x = layer(x)
            x = self.drop(x)
            for layer in self.two:
                x = layer(x)
            return self.norm(x)

    assert alarms(Parts(), vectors()) == set()


# Query-key norms over all heads


@pytest.mark.parametrize("how", ["head", "whole", "joint"])
def test_query_key_norm_of_all_heads_needs_a_gain_of_all(how):
    class Joint(NormedHeads):
        def __init__(self):
            super().__init__("whole" if how == "joint" else how)
            if how == "joint":
                self.qn, self.kn = nn.LayerNorm((H, D // H)), nn.LayerNorm((H, D // H))

        def norm(self, x, norm):
            if how != "joint":
                return super().norm(x, norm)
            return norm(x.unflatten(-1, (H, -1))).transpose(1, 2)

    layers = [PreLayer(attention=Joint) for _ in range(2)]
    assert alarms(Classifier(layers, nn.LayerNorm(D))) == set()


# Batch norms


def test_batch_norm_of_pooled_or_unpadded_tokens_is_healthy():
    class Pooled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(PreLayer() for _ in range(2))
            self.norm, self.head = (
                nn.LayerNorm(D),
                nn.Sequential(nn.BatchNorm1d(D), nn.Linear(D, 2)),
            )

        def forward(self, x, mask):
            for layer in self.layers:
                x = layer(x, bias=log_mask(mask)[:, None, None])
            x = self.norm(x) * mask[..., None]
            return self.head(x.sum(1) / mask.sum(1, keepdim=True))

    assert "padding_leak" not in alarms(Pooled(), (vectors(), valid()))
    assert "padding_leak" not in alarms(BatchNormModel(masked=True), (vectors(), valid()))
    report = addnorm.doctor(
        BatchNormModel(masked=False), (vectors(), valid()), rules=["padding_leak"]
    )
    (finding,) = report.findings
    assert finding.severity == "warning" and "in train mode" in finding.message
