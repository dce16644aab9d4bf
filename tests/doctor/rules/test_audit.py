"""Every rule: planted mistakes are found, and healthy models have no findings."""

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import (
    DEPTH,
    DIM,
    LENGTH,
    VOCAB,
    Attention,
    ConnectedBlock,
    Flat,
    HandNorm,
    HandRMS,
    Model,
    PostBlock,
    PreBlock,
    clones,
    findings,
    ids,
    rules,
    stack,
)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


class TorchEncoder(nn.Module):
    """torch's encoder with an embedding in front."""

    def __init__(self, pre, norm, fresh=True):
        super().__init__()
        self.table = nn.Embedding(VOCAB, DIM)
        layer = nn.TransformerEncoderLayer(DIM, 3, 48, norm_first=pre, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, DEPTH, norm, enable_nested_tensor=False)
        if fresh:
            for weight in self.encoder.parameters():
                if weight.dim() > 1:
                    nn.init.xavier_uniform_(weight)

    def forward(self, tokens):
        return self.encoder(self.table(tokens))


HEALTHY = {
    "pre modules": lambda: Model(stack(PreBlock), nn.LayerNorm(DIM)),
    "pre hand": lambda: Model(stack(PreBlock, norm=HandNorm), HandNorm(DIM)),
    "pre rms": lambda: Model(stack(PreBlock, norm=HandRMS), HandRMS(DIM)),
    "pre causal": lambda: Model(stack(PreBlock, causal=True), nn.LayerNorm(DIM)),
    "pre connected": lambda: Model(stack(ConnectedBlock), HandNorm(DIM)),
    "post connected": lambda: Model(stack(ConnectedBlock, place="post")),
    "post modules": lambda: Model(stack(PostBlock)),
    "post embed norm": lambda: Model(stack(PostBlock), embed_norm=nn.LayerNorm(DIM)),
    "pre embed norm": lambda: Model(
        stack(PreBlock), nn.LayerNorm(DIM), embed_norm=nn.LayerNorm(DIM)
    ),
    "post rms": lambda: Model(stack(PostBlock, norm=HandRMS)),
    "flat pre": lambda: Flat(),
    "flat post": lambda: Flat("post", final=False),
    "torch pre": lambda: TorchEncoder(True, nn.LayerNorm(DIM)),
    "torch post": lambda: TorchEncoder(False, None),
    "shared layers": lambda: Model([PreBlock()] * DEPTH, nn.LayerNorm(DIM)),
    "headless": lambda: Model(stack(PreBlock), nn.LayerNorm(DIM), head=False),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_have_no_findings(name):
    assert rules(HEALTHY[name]()) == set()


PLANTED = {
    "inert_norm": [
        lambda: Model(stack(PreBlock, fault="inert"), nn.LayerNorm(DIM)),
        lambda: Model(stack(PreBlock, fault="inert", norm=HandRMS), HandRMS(DIM)),
        lambda: Model(stack(ConnectedBlock, fault="inert")),
        lambda: Model(stack(PreBlock, fault="thrown away"), nn.LayerNorm(DIM)),
    ],
    "double_norm": [
        lambda: Model(stack(PreBlock, fault="double"), nn.LayerNorm(DIM)),
        lambda: Model(stack(PreBlock, fault="double", norm=HandRMS), HandRMS(DIM)),
        lambda: Model(stack(ConnectedBlock, fault="double"), HandNorm(DIM)),
        lambda: Flat(fault="double"),
    ],
    "missing_final_norm": [
        lambda: Model(stack(PreBlock)),
        lambda: Model(stack(PreBlock, norm=HandRMS)),
        lambda: Model(stack(ConnectedBlock)),
        lambda: Flat(final=False),
        lambda: TorchEncoder(True, None),
    ],
    "doubled_final_norm": [
        lambda: Model(stack(PostBlock), nn.LayerNorm(DIM)),
        lambda: Model(stack(PostBlock, norm=HandNorm), HandNorm(DIM)),
        lambda: Flat("post"),
        lambda: TorchEncoder(False, nn.LayerNorm(DIM)),
    ],
    "skip_after_norm": [
        lambda: Model(stack(PreBlock, fault="skip")),
        lambda: Model(stack(PreBlock, fault="skip"), nn.LayerNorm(DIM)),
        lambda: Model(stack(PreBlock, fault="half skip"), nn.LayerNorm(DIM)),
        lambda: Model(stack(ConnectedBlock, fault="skip")),
        lambda: Model(stack(ConnectedBlock, fault="skip"), HandNorm(DIM)),
        lambda: Flat(fault="skip", final=False),
    ],
    "scale_on_branch": [
        lambda: Model(stack(PostBlock, beta=1.9)),
        lambda: Model(stack(PostBlock, beta=2.2, norm=HandNorm)),
    ],
    "scale_without_init": [
        lambda: Model(stack(PostBlock, alpha=1.9)),
        lambda: Model(stack(PostBlock, alpha=2.2, norm=HandNorm)),
    ],
    "ffn_fed_unadded": [
        lambda: Model(stack(PreBlock, fault="unadded"), nn.LayerNorm(DIM)),
        lambda: Model(stack(PreBlock, fault="unadded", norm=HandRMS), HandRMS(DIM)),
        lambda: Model(stack(PostBlock, fault="unadded")),
        lambda: Model(stack(PostBlock, fault="unadded", norm=HandNorm)),
    ],
    "shared_norm": [
        lambda: Model(stack(PreBlock, fault="shared"), nn.LayerNorm(DIM)),
        lambda: Model(stack(PreBlock, fault="shared", norm=HandNorm), HandNorm(DIM)),
        lambda: Model(stack(PostBlock, fault="shared")),
        lambda: Model(stack(ConnectedBlock, fault="shared"), HandNorm(DIM)),
        lambda: Flat(fault="shared"),
    ],
    "cloned_layers": [
        lambda: Model(clones(PreBlock()), nn.LayerNorm(DIM)),
        lambda: Model(clones(ConnectedBlock(place="post"))),
        lambda: TorchEncoder(False, None, fresh=False),
    ],
    "wrong_axis": [
        lambda: Model(stack(PreBlock, norm=lambda d: HandNorm(d, axis=1)), HandNorm(DIM)),
        lambda: Model(stack(PostBlock, norm=lambda d: HandRMS(d, axis=(1, 2)))),
        lambda: Flat(fault="axis"),
        lambda: Model(stack(PreBlock, norm=lambda d: nn.LayerNorm((LENGTH, d))), nn.LayerNorm(DIM)),
    ],
    "batch_leak": [
        lambda: Model(stack(PreBlock, norm=lambda d: HandNorm(d, axis=0)), HandNorm(DIM)),
        lambda: Model(stack(PostBlock, norm=lambda d: HandRMS(d, axis=(0, -1)))),
    ],
    "dropout_after_norm": [
        lambda: Model(stack(PreBlock), nn.LayerNorm(DIM), after=nn.Dropout(0.2)),
        lambda: Model(stack(PostBlock), after=nn.Dropout(0.2)),
    ],
}  # fmt: skip


SEVERITY = {
    "inert_norm": "error", "double_norm": "warning", "missing_final_norm": "warning",
    "doubled_final_norm": "warning", "skip_after_norm": "error", "scale_on_branch": "error",
    "scale_without_init": "warning", "ffn_fed_unadded": "error", "shared_norm": "warning",
    "cloned_layers": "warning", "wrong_axis": "error", "batch_leak": "error",
    "dropout_after_norm": "info",
}  # fmt: skip


def per_layer(*places):
    """Return the same paths for every layer."""
    return [place.format(i) for i in range(DEPTH) for place in places]


BOTH = per_layer("blocks.{}", "blocks.{}")
NORMS = per_layer("blocks.{}.one", "blocks.{}.two")
CONNECTED = per_layer("blocks.{}.connections.0", "blocks.{}.connections.1")
INSIDE = [f"{path}.norm" for path in CONNECTED]
FLAT = [""] * 2 * DEPTH
PATHS = {
    "inert_norm": [
        per_layer("blocks.{}.three"), per_layer("blocks.{}.three"), INSIDE,
        per_layer("blocks.{}.one"),
    ],
    "double_norm": [per_layer("blocks.{}.one"), per_layer("blocks.{}.one"), INSIDE, FLAT],
    "missing_final_norm": [
        ["blocks.2"], ["blocks.2"], ["blocks.2.connections.1"], ["the model itself"],
        ["encoder.layers.2"],
    ],
    "doubled_final_norm": [["final"], ["final"], [""], ["encoder.norm"]],
    "skip_after_norm": [
        BOTH, BOTH, per_layer("blocks.{}"), CONNECTED, CONNECTED, ["the model itself"] * 2 * DEPTH
    ],
    "scale_on_branch": [BOTH, BOTH],
    "scale_without_init": [["blocks.0"], ["blocks.0"]],
    "ffn_fed_unadded": [per_layer("blocks.{}")] * 4,
    "shared_norm": [
        *[per_layer("blocks.{}.one")] * 3, per_layer("blocks.{}.connections.0.norm"), ["gains"]
    ],
    "cloned_layers": [
        ["blocks.0.attention.qkv"], ["blocks.0.attention.qkv"], ["encoder.layers.0.self_attn"]
    ],
    "wrong_axis": [NORMS, NORMS, [""], NORMS],
    "batch_leak": [[""], [""]],
    "dropout_after_norm": [["after"], ["after"]],
}  # fmt: skip
# Some mistakes are found by two rules: a norm called twice is also shared, and statistics over the
# batch also use the wrong axis.
ALSO_REPORTED = {
    ("double_norm", 0): {"shared_norm"}, ("double_norm", 1): {"shared_norm"},
    ("batch_leak", 0): {"wrong_axis"}, ("batch_leak", 1): {"wrong_axis"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "number"),
    [(rule, i) for rule, builders in PLANTED.items() for i in range(len(builders))],
)
def test_planted_mistakes_are_found(rule, number):
    found = findings(PLANTED[rule][number]())
    mine = [f for f in found if f.rule == rule]
    assert [f.path for f in mine] == PATHS[rule][number]
    assert {f.severity for f in mine} == {SEVERITY[rule]}
    assert {f.rule for f in found} - {rule} == ALSO_REPORTED.get((rule, number), set())
    assert all(f.message and f.evidence for f in mine)


@pytest.mark.parametrize("place", range(DEPTH))
def test_single_wrong_layer_is_found(place):
    blocks = stack(PreBlock)
    blocks[place] = PreBlock(fault="skip")
    assert "skip_after_norm" in rules(Model(blocks, nn.LayerNorm(DIM)))


# leaks


def test_missing_causal_mask_in_one_layer_is_found():
    blocks = stack(PreBlock, causal=True)
    blocks[1].attention.causal = False
    assert "future_leak" in rules(Model(blocks, nn.LayerNorm(DIM)))


def test_norm_over_tokens_leaks_the_future():
    blocks = stack(PreBlock, causal=True, norm=lambda d: HandNorm(d, axis=1))
    assert {"future_leak", "wrong_axis"} <= rules(Model(blocks, HandNorm(DIM)))


def test_bidirectional_model_has_no_future_leak():
    assert "future_leak" not in rules(Model(stack(PreBlock), nn.LayerNorm(DIM)))


class Pooled(Model):
    """Mean over all tokens, with or without padding."""

    def __init__(self, blocks, masked, final):
        super().__init__(blocks, final, head=False)
        self.masked = masked

    def forward(self, tokens, mask):
        x = super().forward(tokens, mask)
        if not self.masked:
            return x.mean(1)
        valid = mask[:, :, None].to(x.dtype)
        return (x * valid).sum(1) / valid.sum(1)


@pytest.mark.parametrize("masked", [True, False])
def test_padding_in_pooling_is_found(masked):
    model = Pooled(stack(PreBlock), masked, nn.LayerNorm(DIM))
    found = rules(model, {"tokens": ids(), "mask": torch.ones_like(ids())})
    assert ("padding_leak" in found) is not masked


def test_mask_ignored_by_attention_is_found():
    class IgnoresMask(PreBlock):
        def forward(self, x, mask=None):
            return super().forward(x)

    example = (ids(), torch.ones(2, LENGTH, dtype=torch.bool))
    assert "padding_leak" in rules(Model(stack(IgnoresMask), nn.LayerNorm(DIM)), example)
    assert "padding_leak" not in rules(Model(stack(PreBlock), nn.LayerNorm(DIM)), example)


# options, precision, decay


def test_ineffective_option_is_found():
    def build(norm_first=True, rate=0.1):
        return Model(stack(PreBlock), nn.LayerNorm(DIM), after=nn.Dropout(rate))

    config = {"norm_first": True, "rate": 0.1}
    found = findings(build(), config=config, build=build)
    assert [f.path for f in found if f.rule == "ineffective_option"] == ["norm_first"]


def test_effective_option_is_not_reported():
    def build(norm_first=True):
        blocks = stack(PreBlock) if norm_first else stack(PostBlock)
        return Model(blocks, nn.LayerNorm(DIM) if norm_first else None)

    found = rules(build(), config={"norm_first": True}, build=build)
    assert "ineffective_option" not in found


def test_eps_that_rounds_to_zero_is_found():
    class Half(nn.Module):
        def __init__(self, eps):
            super().__init__()
            self.gain, self.eps = nn.Parameter(torch.ones(DIM)), eps

        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.gain

    for eps, expected in ((1e-8, True), (1e-3, False)):
        model = Model(stack(PreBlock, norm=lambda d, eps=eps: Half(eps)), Half(eps)).half()
        assert ("eps_too_small" in rules(model)) is expected
    model = Model(stack(PreBlock, norm=lambda d: nn.LayerNorm(d, eps=1e-12)), nn.LayerNorm(DIM))
    assert rules(model) == set()


def test_zero_eps_is_found():
    model = Model(stack(PreBlock, norm=lambda d: nn.LayerNorm(d, eps=0.0)), nn.LayerNorm(DIM))
    assert "eps_too_small" in rules(model)


@pytest.mark.parametrize(("depth", "expected"), [(2, False), (5, True)])
def test_deep_bfloat16_stream_is_reported(depth, expected):
    model = Model(stack(PreBlock, depth), nn.LayerNorm(DIM)).bfloat16()
    assert ("low_precision_residual" in rules(model)) is expected


def test_autocast_keeps_the_stream_in_float32():
    model = Model(stack(PreBlock, 5), nn.LayerNorm(DIM))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert rules(model) == set()


@pytest.mark.parametrize("norm", [nn.LayerNorm, HandNorm])
def test_weight_decay_on_gains_is_found(norm):
    model = Model(stack(PreBlock, norm=norm), norm(DIM))
    assert "decayed_gain" in rules(model, optimizer=torch.optim.AdamW(model.parameters()))
    small = [w for w in model.parameters() if w.dim() < 2]
    large = [w for w in model.parameters() if w.dim() > 1]
    groups = [{"params": small, "weight_decay": 0.0}, {"params": large}]
    assert "decayed_gain" not in rules(model, optimizer=torch.optim.AdamW(groups))


# Healthy models that resemble a mistake


def test_deepnorm_with_its_initialization_is_not_reported():
    model = Model(stack(PostBlock, alpha=2.2))
    with torch.no_grad():
        for weight in model.blocks.parameters():
            if weight.dim() == 2:
                nn.init.xavier_normal_(weight, gain=0.32)
    assert rules(model) == set()


def test_downscaled_branch_is_not_reported():
    assert "scale_on_branch" not in rules(Model(stack(PostBlock, beta=0.5)))


def test_parallel_branches_are_not_reported():
    class Parallel(PreBlock):
        def forward(self, x, mask=None):
            h = self.one(x)
            return x + self.attention(h) + self.ffn(h)

    blocks = stack(Parallel)
    for block in blocks:
        block.two = None
    assert rules(Model(blocks, nn.LayerNorm(DIM))) == set()


def test_reinitialized_copies_are_not_reported():
    blocks = clones(PreBlock())
    for block in blocks:
        for weight in block.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)
    assert rules(Model(blocks, nn.LayerNorm(DIM))) == set()


def test_only_unused_query_key_norms_are_reported():
    class Normed(Attention):
        def __init__(self, used):
            super().__init__()
            self.q_norm, self.k_norm, self.used = nn.LayerNorm(8), nn.LayerNorm(8), used

        def forward(self, x, mask=None):
            b, t, d = x.shape
            q, k, v = self.qkv(x).view(b, t, 3, 3, 8).permute(2, 0, 3, 1, 4)
            if self.used:
                q, k = self.q_norm(q), self.k_norm(k)
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return self.proj(y.transpose(1, 2).reshape(b, t, d))

    for used in (True, False):
        blocks = stack(PreBlock)
        for block in blocks:
            block.attention = Normed(used)
        assert ("inert_norm" in rules(Model(blocks, nn.LayerNorm(DIM)))) is not used


def test_only_selected_rules_run():
    model = Model(clones(PreBlock()))
    assert rules(model, rules=["cloned_layers"]) == {"cloned_layers"}
    with pytest.raises(addnorm.UserError, match="unknown rule 'cloned'; did you mean"):
        addnorm.doctor(model, ids(), rules=["cloned"])
