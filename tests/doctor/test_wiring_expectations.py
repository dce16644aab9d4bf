"""Names: our own wirings, the zoo, the fresh ones."""

import json

import pytest
import torch
from torch import nn

import addnorm
from addnorm.wirings import registry
from tests.doctor.models.tiny import DIM, Model, PreBlock, ids, stack
from tests.doctor.models.unseen_first import FRESH, judged
from tests.doctor.models.unseen_second import NEWER
from tests.doctor.models.zoo import MORE, ZOO

# What cannot be told apart in one forward: the same graph, by other start weights or in training.
SAME = {
    "drop_path": "pre_ln", "layer_drop": "pre_ln", "t_fixup": "none", "skip_init": "rezero",
}  # fmt: skip
# A quarter of less than four layers is none: Pre-LN to the last bit.
FEW = {("mix_ln", 2): "pre_ln", ("mix_ln", 3): "pre_ln"}
# Class and tags of attention and of feed-forward, where they are not those of Pre-LN.
CLASSES = {
    "admin": ("post_ln", "scaled-shortcut"), "b2t": ("post_ln",),
    "deepnorm": ("post_ln", "scaled-shortcut"), "false_pre_ln": ("false_pre_ln",),
    "fixup": ("none", "rezero"), "gated": ("pre_ln", "gated"),
    "hyper": ("pre_ln", "hyper-connections"), "mhc": ("pre_ln", "hyper-connections"),
    "keel": ("pre_post", "scaled-shortcut"), "layer_scale": ("pre_ln", "layer-scale"),
    "none": ("none",), "parallel": ("pre_ln", "parallel"), "post_ln": ("post_ln",),
    "res_post": ("res_post",), "rezero": ("none", "rezero"), "sandwich": ("sandwich",),
    "skip_init": ("none", "rezero"), "t_fixup": ("none",), "pre_ln": ("pre_ln",),
    "drop_path": ("pre_ln",), "layer_drop": ("pre_ln",), "sub_ln": ("pre_ln",),
    "resi_dual": ("post_ln",),
}  # fmt: skip


def visited(wiring, kind, depth, **options):
    sizes = {"vocab": 50, "dim": 32, "heads": 2}
    model = addnorm.build(kind=kind, wiring=wiring, depth=depth, seed=0, **sizes, **options)
    tokens = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    example = (tokens, tokens[:, :7]) if kind == "seq2seq" else tokens
    return addnorm.doctor(model, example)


def check(wiring, kind, depth):
    report = visited(wiring, kind, depth)
    main = [b for b in report.blocks if "long-skip" not in b.tags and "dual" not in b.tags]
    sites = depth * (5 if kind == "seq2seq" else 2)
    assert len(main) == sites
    if wiring in CLASSES:
        cls, *tags = CLASSES[wiring]
        assert {b.wiring for b in main} == {cls}
        assert {b.tags for b in main} == {tuple(tags)}
    layer = ["self-attention", "feed-forward"]
    pair = ["self-attention", "cross-attention", "feed-forward"] * depth
    assert [b.kind for b in main] == layer * depth + (pair if kind == "seq2seq" else [])
    assert report.arrangement.split("(")[0] == FEW.get((wiring, depth), SAME.get(wiring, wiring))
    assert wiring in report.fits
    alarming = {f.rule for f in report.findings if f.severity != "info"}
    assert alarming == ({"skip_after_norm"} if wiring == "false_pre_ln" else set())


@pytest.mark.parametrize("wiring", sorted(registry))
def test_our_own_wirings_are_named(wiring):
    check(wiring, "lm", 4)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 3, 6, 12, 24])
@pytest.mark.parametrize("kind", ["masked_lm", "lm", "seq2seq"])
@pytest.mark.parametrize("wiring", sorted(registry))
def test_our_own_wirings_are_named_at_every_depth(wiring, kind, depth):
    check(wiring, kind, depth)


QUICK = (
    "nn.Transformer pre",
    "BERT",
    "x hyper-connections",
    "hidden kernel",
    "toy ResNet",
    "addmm",
)


def look(name):
    make, count, wiring, tags = ZOO[name]
    torch.manual_seed(0)
    model, example = make()
    report = addnorm.doctor(model, example)
    assert len(report.blocks) == count
    assert {b.wiring for b in report.blocks} <= {wiring}
    for block in report.blocks:
        assert tags <= set(block.tags) <= tags | MORE
    return report


@pytest.mark.filterwarnings("ignore")
@pytest.mark.peer
@pytest.mark.parametrize("name", QUICK)
def test_some_of_the_zoo(name):
    look(name)


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(ZOO))
def test_the_zoo(name):
    look(name)


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*sorted(FRESH), *sorted(NEWER)])
def test_the_fresh_ones(name):
    make, classes, tags = {**FRESH, **NEWER}[name]
    torch.manual_seed(0)
    model, example = make()
    assert judged(addnorm.doctor(model, example), classes, tags) == ""


def test_constants_are_read():
    report = visited("deepnorm(alpha=2.5)", "lm", 3)
    assert {b.shortcut_scale for b in report.blocks} == {2.5}
    assert report.arrangement == "deepnorm(alpha=2.5)"
    assert visited("mix_ln(post=0.5)", "lm", 4).arrangement == "mix_ln(post=0.5)"


def test_a_line_for_each_stack():
    report = visited("pre_ln", "lm", 3, norm="rms(eps=1e-6)")
    (line,) = report.stacks
    assert line == (
        "3 x [self-attention, feed-forward], Pre-LN with RMSNorm eps 1e-6, final norm, "
        "no warm-up-critical scaling"
    )
    assert len(visited("post_ln", "seq2seq", 2).stacks) == 2
    assert "llama" in report.families


def test_odd_layers_are_listed():
    torch.manual_seed(0)
    blocks = stack(PreBlock)
    blocks[1] = PreBlock(fault="half skip")
    report = addnorm.doctor(Model(blocks, nn.LayerNorm(DIM)), ids())
    (line,) = report.odd
    assert line == "blocks.1 (feed-forward 3): false_pre_ln, not pre_ln"


def test_norms_and_where_they_stand():
    report = visited("sandwich", "lm", 2)
    places = [norm.place for norm in report.norms]
    assert places == ["entry", "exit"] * 4 + ["final"]


def test_rows_are_plain_numbers():
    report = visited("pre_ln", "lm", 2)
    names = {row["measure"] for row in report.rows}
    assert names >= {
        "shortcut_variance", "branch_variance", "stream_variance", "dependency", "dependency_sum",
        "gradient_norm", "growth", "token_similarity", "similarity_rise", "max_logit",
        "attention_entropy", "role_gradient_norm",
    }  # fmt: skip
    entropies = [r["value"] for r in report.rows if r["measure"] == "attention_entropy"]
    assert all(0 <= value <= 1 for value in entropies)
    assert json.loads(report.to_json())["blocks"][0]["wiring"] == "pre_ln"


def test_dependency_is_the_share_of_the_branch():
    report = visited("pre_ln", "lm", 2)
    for b in report.blocks:
        assert b.dependency == pytest.approx(b.branch_variance / b.stream_variance)
    with pytest.raises(AttributeError, match="a block has no 'weight'"):
        _ = report.blocks[0].weight
