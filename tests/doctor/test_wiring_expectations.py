"""Expected reports: our wirings by their formula, third-party models by their description."""

import functools
import json
from collections import Counter

import pytest
import torch
from torch import nn

import addnorm
from addnorm.wirings import registry
from tests.doctor.models.tiny import DIM, Model, PreBlock, ids, stack
from tests.doctor.models.unseen_first import FIRST_SET, report_error
from tests.doctor.models.unseen_second import SECOND_SET
from tests.doctor.models.zoo import OPTIONAL_TAGS, ZOO
from tests.doctor.wiring_formulas import (
    FORMULAS,
    expected_extra,
    expected_norms,
    expected_sites,
)

# Wirings with the graph of another one: they differ in the initial weights or in training only.
SAME_GRAPH = {
    "drop_path": "pre_ln", "layer_drop": "pre_ln", "t_fixup": "none", "skip_init": "rezero",
}  # fmt: skip
# A quarter of fewer than four layers is none, so that every layer of Mix-LN is Pre-LN.
SHALLOW = {("mix_ln", 2): "pre_ln", ("mix_ln", 3): "pre_ln"}


@functools.cache
def diagnose_wiring(wiring, kind, depth, **options):
    sizes = {"vocab": 50, "dim": 32, "heads": 2}
    model = addnorm.build(kind=kind, wiring=wiring, depth=depth, seed=0, **sizes, **options)
    tokens = torch.randint(1, 50, (2, 9), generator=torch.Generator().manual_seed(0))
    example = (tokens, tokens[:, :7]) if kind == "seq2seq" else tokens
    return addnorm.doctor(model, example)


def split_blocks(report):
    """Return the adds of the sub-layers, and those beside them."""
    extra = [b for b in report.blocks if {"long-skip", "dual"} & set(b.tags)]
    return [b for b in report.blocks if b not in extra], extra


def check_adds(wiring, kind, depth):
    """Compare position of the norms, tags and kind of every add with the formula."""
    report = diagnose_wiring(wiring, kind, depth)
    blocks, extra = split_blocks(report)
    sites = expected_sites(kind, depth)
    expected = [FORMULAS[wiring].site(site) for site in sites]
    assert [b.kind for b in blocks] == [site.kind for site in sites]
    assert [b.wiring for b in blocks] == [each.wiring for each in expected]
    assert [set(b.tags) for b in blocks] == [each.tags for each in expected]
    others = expected_extra(wiring, kind, depth)
    assert len(extra) == len(others)
    for tag in {tag for each in others for tag in each.tags}:
        assert sum(tag in b.tags for b in extra) == sum(tag in each.tags for each in others)
    assert report.arrangement.split("(")[0] == SHALLOW.get(
        (wiring, depth), SAME_GRAPH.get(wiring, wiring)
    )
    assert wiring in report.fits
    alarming = {f.rule for f in report.findings if f.severity != "info"}
    assert alarming == ({"skip_after_norm"} if wiring == "false_pre_ln" else set())


def check_scales(wiring, kind, depth):
    """Compare the factors on skips and branches with the formula."""
    blocks, extra = split_blocks(diagnose_wiring(wiring, kind, depth))
    expected = [FORMULAS[wiring].site(site) for site in expected_sites(kind, depth)]
    for block, each in zip(blocks, expected, strict=True):
        assert block.shortcut_scale == pytest.approx(each.skip)
        assert block.branch_scale == pytest.approx(each.branch)
    others = expected_extra(wiring, kind, depth)
    for reported, formula in (
        ([b.branch_scale for b in extra], [each.branch for each in others]),
        ([b.shortcut_scale for b in extra], [each.skip for each in others]),
    ):
        if any(value is not None for value in formula):
            assert sorted(reported) == pytest.approx(sorted(formula))


def check_norms(wiring, kind, depth):
    """Compare the position of every norm, and the add that it belongs to, with the formula."""
    report = diagnose_wiring(wiring, kind, depth)
    blocks, _ = split_blocks(report)
    owners = {b.index for b in blocks}
    positions = {index: [] for index in owners}
    counts = Counter()
    for norm in report.norms:
        own = norm.block in owners and norm.place != "final"
        if own:
            positions[norm.block].append(norm.place)
        counts[norm.place if own or norm.place == "final" else "other"] += 1
    assert counts == expected_norms(wiring, kind, depth)
    assert {n.kind for n in report.norms if n.place == "final"} <= {"layer"}  # the stack's norm
    expected = [FORMULAS[wiring].site(site).norms for site in expected_sites(kind, depth)]
    assert [tuple(sorted(positions[b.index])) for b in blocks] == expected


def test_every_wiring_has_an_expectation():
    assert set(FORMULAS) == set(registry)


@pytest.mark.parametrize("wiring", sorted(registry))
def test_adds_follow_the_formula(wiring):
    check_adds(wiring, "lm", 4)


@pytest.mark.parametrize("wiring", sorted(registry))
def test_scales_follow_the_formula(wiring):
    check_scales(wiring, "lm", 4)


@pytest.mark.parametrize("wiring", sorted(registry))
def test_norms_follow_the_formula(wiring):
    check_norms(wiring, "lm", 4)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 3, 6, 12, 24])
@pytest.mark.parametrize("kind", ["masked_lm", "lm", "seq2seq"])
@pytest.mark.parametrize("wiring", sorted(registry))
def test_expectations_hold_at_every_depth(wiring, kind, depth):
    check_adds(wiring, kind, depth)
    check_scales(wiring, kind, depth)
    check_norms(wiring, kind, depth)
    diagnose_wiring.cache_clear()  # reports of deep models are large


QUICK = (
    "nn.Transformer pre",
    "BERT",
    "x hyper-connections",
    "hidden kernel",
    "toy ResNet",
    "addmm",
)


def check_zoo_model(name):
    make, count, wiring, tags = ZOO[name]
    torch.manual_seed(0)
    model, example = make()
    report = addnorm.doctor(model, example)
    assert len(report.blocks) == count
    assert {b.wiring for b in report.blocks} <= {wiring}
    for block in report.blocks:
        assert tags <= set(block.tags) <= tags | OPTIONAL_TAGS
    return report


@pytest.mark.filterwarnings("ignore")
@pytest.mark.peer
@pytest.mark.parametrize("name", QUICK)
def test_selected_zoo_models(name):
    check_zoo_model(name)


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(ZOO))
def test_zoo_models(name):
    check_zoo_model(name)


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*sorted(FIRST_SET), *sorted(SECOND_SET)])
def test_unseen_models(name):
    make, classes, tags = {**FIRST_SET, **SECOND_SET}[name]
    torch.manual_seed(0)
    model, example = make()
    assert report_error(addnorm.doctor(model, example), classes, tags) == ""


def test_constants_appear_in_the_arrangement():
    report = diagnose_wiring("deepnorm(alpha=2.5)", "lm", 3)
    assert {b.shortcut_scale for b in report.blocks} == {2.5}
    assert report.arrangement == "deepnorm(alpha=2.5)"
    assert diagnose_wiring("mix_ln(post=0.5)", "lm", 4).arrangement == "mix_ln(post=0.5)"


def test_each_stack_has_one_line():
    report = diagnose_wiring("pre_ln", "lm", 3, norm="rms(eps=1e-6)")
    (line,) = report.stacks
    assert line == (
        "3 x [self-attention, feed-forward], Pre-LN with RMSNorm eps 1e-6, causal, final norm, "
        "no scaled residual connections"
    )
    assert len(diagnose_wiring("post_ln", "seq2seq", 2).stacks) == 2
    assert "llama" in report.families


def test_outlier_layers_are_listed():
    torch.manual_seed(0)
    blocks = stack(PreBlock)
    blocks[1] = PreBlock(fault="half skip")
    report = addnorm.doctor(Model(blocks, nn.LayerNorm(DIM)), ids())
    (line,) = report.odd
    assert line == "blocks.1 (feed-forward 3): false_pre_ln, not pre_ln"


def test_norm_positions_of_sandwich():
    report = diagnose_wiring("sandwich", "lm", 2)
    places = [norm.place for norm in report.norms]
    assert places == ["entry", "exit"] * 4 + ["final"]


def test_rows_and_json():
    report = diagnose_wiring("pre_ln", "lm", 2)
    names = {row["measure"] for row in report.rows}
    assert names >= {
        "shortcut_variance", "branch_variance", "stream_variance", "dependency", "dependency_sum",
        "gradient_norm", "growth", "token_similarity", "similarity_rise", "max_logit",
        "attention_entropy", "role_gradient_norm",
    }  # fmt: skip
    entropies = [r["value"] for r in report.rows if r["measure"] == "attention_entropy"]
    assert all(0 <= value <= 1 for value in entropies)
    assert json.loads(report.to_json())["blocks"][0]["wiring"] == "pre_ln"


def test_dependency_is_the_branch_fraction_of_the_variance():
    report = diagnose_wiring("pre_ln", "lm", 2)
    for b in report.blocks:
        assert b.dependency == pytest.approx(b.branch_variance / b.stream_variance)
    with pytest.raises(AttributeError, match="a block has no 'weight'"):
        _ = report.blocks[0].weight


def test_a_gain_of_the_raw_token_belongs_to_its_norm():
    report = diagnose_wiring("pre_ln", "lm", 2, norm="seednorm")
    assert report.arrangement == "pre_ln"
    assert {norm.kind for norm in report.norms} == {"seednorm"}
    assert "Pre-LN with SeeDNorm eps 1e-6" in report.stacks[0]
    gated = diagnose_wiring("post_ln", "lm", 2, norm="gatednorm")
    assert gated.arrangement == "post_ln" and {norm.kind for norm in gated.norms} == {"rms"}
