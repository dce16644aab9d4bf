"""Plainly broken models are found; unusual but correct ones have no findings."""

from functools import partial

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.broken import BROKEN, DIM, LENGTH, VOCAB, Broken, Mlp, ids
from tests.doctor.models.healthy import HEALTHY, PreLN

SEVERITY = {
    "missing_residual": "error", "detached_layers": "error", "inverted_mask": "error",
    "blocking_mask": "error", "dropout_on_stream": "warning", "unscaled_attention": "warning",
    "constant_weights": "error", "large_initial_logits": "info",
}  # fmt: skip
ALSO_REPORTED = {
    "inverted_mask": {"future_leak", "nan_output"},
    "blocking_mask": {"future_leak", "nan_output"},
}
"""A wrong mask also leaks, or leaves a query without a token."""


def find(model, example=None, **options):
    report = addnorm.doctor(model, ids() if example is None else example, **options)
    return {finding.rule: finding.severity for finding in report.findings}


def build(fault, **options):
    torch.manual_seed(0)
    return Broken(fault, **options)


@pytest.mark.parametrize("name", BROKEN)
def test_plain_mistake_is_found_in_every_notation(name):
    rule, fault, options = BROKEN[name]
    found = find(build(fault, **options))
    assert found.pop(rule) == SEVERITY[rule]
    assert set(found) <= ALSO_REPORTED.get(rule, set())


@pytest.mark.parametrize("options", [{}, {"place": "post"}, {"causal": False}, {"style": "mha"}])
def test_same_model_without_mistake_has_no_findings(options):
    assert find(build("", **options)) == {}


@pytest.mark.parametrize("name", HEALTHY)
def test_unusual_healthy_model_has_no_findings(name):
    torch.manual_seed(0)
    model, example = HEALTHY[name]()
    assert find(model, example) == {}


SINGLE = {
    "no attention skip": "missing_residual",
    "no mlp skip": "missing_residual",
    "inverted": "inverted_mask",
    "detach": "detached_layers",
    "detached branch": "detached_layers",
    "detached skip": "detached_layers",
    "unscaled": "unscaled_attention",
}


@pytest.mark.parametrize("layer", [0, 1, 3])
@pytest.mark.parametrize("fault", SINGLE)
def test_mistake_in_one_layer_is_found(fault, layer):
    assert SINGLE[fault] in find(build(fault, depth=4, only=layer))


@pytest.mark.parametrize("fault", ["no attention skip", "no mlp skip", "detach", "dropout"])
def test_mistake_is_found_at_depth_two(fault):
    rules = {"detach": "detached_layers", "dropout": "dropout_on_stream"}
    assert rules.get(fault, "missing_residual") in find(build(fault, depth=2))


def test_dropout_after_the_norm_of_post_ln_is_on_the_stream():
    assert "dropout_on_stream" in find(build("dropout after norm", place="post"))


def test_transformer_without_any_add_is_reported():
    class Plain(PreLN):
        def forward(self, x):
            x = self.embed(x)
            for norm, f in zip(self.norms, self.subs, strict=True):
                x = f(norm(x))
            return self.head(self.last(x))

    torch.manual_seed(0)
    layers = [m for layer in build("").layers for m in (layer.attention, layer.mlp)]
    assert find(Plain(*layers), rules=["missing_residual"]) == {"missing_residual": "warning"}
    assert find(PreLN(*layers), rules=["missing_residual"]) == {}


@pytest.mark.parametrize("way", ["numpy", "list"])
def test_stream_that_leaves_torch_is_reported(way):
    class Left(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = build("")

        def forward(self, tokens):
            x = self.model.table(tokens)
            for layer in self.model.layers:
                y = layer(x)
                x = (
                    torch.from_numpy(y.detach().numpy())
                    if way == "numpy"
                    else torch.tensor(y.tolist())
                )
            return self.model.head(self.model.final(x))

    assert find(Left(), rules=["detached_layers"]) == {"detached_layers": "error"}


def test_dropout_on_one_of_two_sums_of_each_layer_is_found():
    class Half(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model, self.drop = model, nn.Dropout(0.1)

        def forward(self, tokens):
            x = self.model.table(tokens)
            for layer in self.model.layers:
                x = self.drop(layer(x))
            return self.model.head(self.model.final(x))

    assert find(Half(build(""))) == {"dropout_on_stream": "warning"}


def test_rotary_attention_without_skip_is_found():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=48,
        vocab_size=VOCAB,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    assert find(model, {"input_ids": ids()}) == {}
    for layer in model.model.layers:
        layer.forward = partial(forward_without_skip, layer)
    assert find(model, {"input_ids": ids()}) == {"missing_residual": "error"}


def forward_without_skip(layer, hidden_states, **options):
    normed = layer.input_layernorm(hidden_states)
    x = layer.self_attn(hidden_states=normed, **options)[0]
    return x + layer.mlp(layer.post_attention_layernorm(x))


def test_detached_statistics_do_not_cut_the_stream():
    class Logged(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = build("")

        def forward(self, tokens):
            x, sizes = self.model.table(tokens), []
            for layer in self.model.layers:
                x = layer(x)
                sizes.append(x.detach().norm())
            return self.model.head(self.model.final(x)), torch.stack(sizes)

    assert find(Logged()) == {}


class Frozen(nn.Module):
    """Runs layers of a stack without gradient, in one of several ways."""

    def __init__(self, way):
        super().__init__()
        self.model, self.way = build("", depth=4), way
        self.head = nn.Linear(DIM, 3)
        self.model.requires_grad_(way != "frozen")

    def forward(self, tokens):
        model = self.model
        if self.way == "wrapped":
            model.head = nn.Identity()
            return self.head(model(tokens).detach())
        with torch.set_grad_enabled(self.way not in ("no_grad", "all no_grad")):
            x = model.table(tokens)
            for layer in model.layers[:2]:
                x = layer(x)
        with torch.set_grad_enabled(self.way != "all no_grad"):
            for layer in model.layers[2:]:
                x = layer(x)
            x = model.final(x)
        return self.head(x.detach() if self.way in ("probe", "frozen") else x)


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("", {}),
        ("no_grad", {"detached_layers": "warning"}),
        ("probe", {"detached_layers": "warning"}),
        ("wrapped", {"detached_layers": "info"}),
        ("frozen", {}),
        ("all no_grad", {}),
    ],
)
def test_layers_without_gradient_may_be_frozen_on_purpose(way, expected):
    assert find(Frozen(way)) == expected


def test_one_zero_matrix_per_branch_is_healthy_and_two_are_not():
    model = build("")
    for layer in model.layers:
        nn.init.zeros_(layer.mlp[2].weight)
    assert find(model) == {}
    for layer in model.layers:
        nn.init.zeros_(layer.mlp[0].weight)
    assert find(model) == {"constant_weights": "error"}


def test_model_whose_matrices_get_zero_gradients_only_is_reported():
    model = build("", depth=2)
    with torch.no_grad():
        model.final.weight.zero_()  # the head reads zeros, and is zero itself
        model.head.weight.zero_()
    assert find(model) == {"constant_weights": "error"}
    torch.manual_seed(0)
    nn.init.normal_(model.head.weight)
    assert find(model) == {}  # the gain of the final norm learns first


@pytest.mark.parametrize("std", [0.02, 0.2])
def test_unscaled_attention_with_small_logits_is_a_remark(std):
    model = build("unscaled")
    for layer in model.layers:
        for matrix in (layer.attention.q, layer.attention.k, layer.attention.v):
            nn.init.normal_(matrix.weight, std=std)
    assert find(model) == {"unscaled_attention": "info" if std == 0.02 else "warning"}


@pytest.mark.parametrize("factor", [1, 1.0, 0.5])
def test_factor_of_one_is_not_a_scale(factor):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

        def forward(self, x):
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            return self.out(((q @ k.mT * factor).softmax(-1) @ v).transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = PreLN(*(sub for _ in range(3) for sub in (Attention(), Mlp())))
    assert ("unscaled_attention" in find(model)) == (factor == 1)


def test_gains_drawn_like_all_weights_are_not_trained():
    model = build("")
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    assert find(model) == {"large_initial_logits": "info"}


def test_first_loss_is_reported_with_its_number():
    report = addnorm.doctor(build("deviation 1"), ids())
    (finding,) = report.findings
    logits = build("deviation 1")(ids()).detach()
    expected = torch.stack(
        [
            nn.functional.cross_entropy(logits.flatten(0, 1), torch.full((2 * LENGTH,), target))
            for target in range(VOCAB)
        ]
    ).mean()
    assert finding.evidence["loss"] == pytest.approx(float(expected), rel=1e-4)
    assert f"about {float(expected):.1f}" in finding.message and "ln 41 = 3.7" in finding.message


def test_saturated_attention_without_vocabulary_is_remarked():
    model = PreLN(*(layer.attention for layer in build("").layers), embed=False, head=False)
    x = torch.randn(2, LENGTH, DIM, generator=torch.Generator().manual_seed(0))
    assert "large_initial_logits" not in find(model, x)
    for attention in model.subs:
        nn.init.normal_(attention.q.weight, std=3.0)
        nn.init.normal_(attention.k.weight, std=3.0)
    assert find(model, x)["large_initial_logits"] == "info"


def test_nan_output_names_the_weight():
    model = build("")
    with torch.no_grad():
        model.layers[1].mlp[0].weight[0, 0] = torch.nan
    report = addnorm.doctor(model, ids())
    messages = {finding.rule: finding.message for finding in report.findings}
    assert "layers.1.mlp.0.weight is not finite" in messages["nan_output"]


def test_infinite_output_is_no_finding():
    class Hidden(Broken):
        def forward(self, tokens):
            logits = super().forward(tokens)
            return logits.masked_fill(torch.arange(VOCAB) < 3, float("-inf"))

    torch.manual_seed(0)
    assert find(Hidden()) == {}
