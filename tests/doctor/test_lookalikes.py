"""Healthy models that resemble a mistake, each with the mistake planted as a control."""

import copy
from typing import Literal

import pytest
import torch
from torch import nn

import addnorm
from tests.doctor.models.tiny import (
    DIM,
    LENGTH,
    VOCAB,
    FeedForward,
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


# Position of the batch axis


class WithLayout(Model):
    """A model whose output is rearranged."""

    def __init__(self, way, norm=nn.LayerNorm, **options):
        super().__init__(stack(PreBlock, norm=norm, **options), nn.LayerNorm(DIM))
        self.way = way

    def forward(self, tokens, mask=None):
        return self.way(super().forward(tokens, mask))


LAYOUTS = {
    "flat": lambda y: y.reshape(-1, VOCAB),
    "flat, tokens first": lambda y: y.transpose(0, 1).reshape(-1, VOCAB),
    "tokens first": lambda y: y.transpose(0, 1),
    "vocabulary first": lambda y: y.mT,
    "as many layers as examples": lambda y: torch.stack([y, 2 * y]),
    "more layers than examples": lambda y: torch.stack([y, 2 * y, 3 * y]),
}


@pytest.mark.parametrize("way", LAYOUTS)
def test_batch_axis_is_found_in_any_position(way):
    assert rules(WithLayout(LAYOUTS[way])) == set()
    assert "batch_leak" in rules(WithLayout(LAYOUTS[way], norm=lambda d: HandNorm(d, axis=0)))


@pytest.mark.parametrize("way", [way for way in LAYOUTS if way != "vocabulary first"])
def test_token_axis_is_found_in_any_position(way):
    assert rules(WithLayout(LAYOUTS[way], causal=True)) == set()
    model = WithLayout(LAYOUTS[way], causal=True)
    model.blocks[1].attention.causal = False
    assert rules(model) == {"future_leak"}


@pytest.mark.parametrize("way", LAYOUTS)
def test_masked_token_may_change_its_own_output(way):
    example = (ids(), torch.ones_like(ids()))
    assert rules(WithLayout(LAYOUTS[way]), example) == set()


def test_one_example_suffices_for_future_leak():
    model = WithLayout(LAYOUTS["flat"], causal=True)
    assert rules(model, ids()[:1]) == set()
    model.blocks[1].attention.causal = False
    assert rules(model, ids()[:1]) == {"future_leak"}


# Token-mixing matrices


class Mixing(nn.Module):
    """x + mix(norm(x)), tokens mixed by a matrix; then a feed-forward."""

    def __init__(self, way, norm):
        super().__init__()
        length = DIM if "square" in way else LENGTH
        self.one, self.two, self.way = norm(DIM), norm(DIM), way
        self.mix = nn.Parameter(torch.randn(length, length) / length)
        self.ffn = FeedForward()

    def forward(self, x, mask=None):
        h = self.one(x)
        if "einsum" in self.way:
            h = torch.einsum("btd,ts->bsd", h, self.mix)
        elif "turned" in self.way:
            h = (h.transpose(1, 2) @ self.mix).transpose(1, 2)
        else:
            h = self.mix @ h
        x = x + h
        return x + self.ffn(self.two(x))


@pytest.mark.parametrize("square", ["", " square"])
@pytest.mark.parametrize("way", ["before", "einsum", "turned"])
def test_norm_before_token_mixing_matrix_is_not_reported(way, square):
    x = torch.randn(2, DIM if square else LENGTH, DIM)
    for norm, expected in ((nn.LayerNorm, []), (lambda d: HandNorm(d, axis=1), ["0.two", "1.two"])):
        model = nn.Sequential(*[Mixing(way + square, norm) for _ in range(2)], nn.LayerNorm(DIM))
        found = [f.path for f in findings(model, x, rules=["wrong_axis"])]
        assert found == ([] if square else expected)  # equal sizes leave the axis ambiguous


# Masks


class Masked(Model):
    """Model with a padding mask, which attention may ignore, and token types."""

    def __init__(self, ignores_mask=False, padding=False):
        super().__init__(stack(PreBlock), nn.LayerNorm(DIM))
        self.types, self.ignores_mask, self.padding = nn.Embedding(2, DIM), ignores_mask, padding

    def forward(self, tokens, types=None, mask=None):
        x = self.table(tokens) + (self.types(types) if types is not None else 0)
        for block in self.blocks:
            keep = mask if not self.padding or mask is None else ~mask.bool()
            x = block(x) if self.ignores_mask or keep is None else block(x, keep)
        return self.head(self.final(x))


def length_mask(*lengths):
    return torch.stack([torch.arange(LENGTH) < length for length in lengths])


MASKS = {
    "all valid": (length_mask(LENGTH, LENGTH), False),
    "ones": (length_mask(LENGTH, LENGTH).long(), False),
    "no padding": (~length_mask(LENGTH, LENGTH), True),
    "some valid": (length_mask(4, LENGTH).long(), False),
    "some valid, both short": (length_mask(4, 6), False),
    "some padding": (~length_mask(4, LENGTH), True),
    "floats": (length_mask(4, LENGTH).float(), False),
}


@pytest.mark.parametrize("ignores_mask", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_all_forms_of_masks_are_checked(name, ignores_mask):
    mask, padding = MASKS[name]
    found = rules(Masked(ignores_mask, padding), {"tokens": ids(), "mask": mask})
    assert found == ({"padding_leak"} if ignores_mask else set())


@pytest.mark.parametrize("fill", [0, 1])
def test_token_types_are_not_a_mask(fill):
    example = {"tokens": ids(), "types": torch.full_like(ids(), fill)}
    assert rules(Masked(), example) == set()
    example["mask"] = torch.ones_like(ids())
    assert rules(Masked(), example) == set()
    assert rules(Masked(ignores_mask=True), example) == {"padding_leak"}


def test_binary_ids_are_not_a_mask():
    model = WithLayout(LAYOUTS["flat"], norm=lambda d: HandNorm(d, axis=0))
    assert "batch_leak" in rules(model, ids() % 2)


def test_unchecked_leaks_are_noted():
    report = addnorm.doctor(Masked(), {"tokens": ids()[:1]})
    assert report.notes == ("leaks between examples were not checked: the batch has one example",)
    example = {"tokens": ids(), "mask": torch.zeros(ids().shape)}
    assert (
        "leaks from padding were not checked for the mask 'mask'"
        in addnorm.doctor(Masked(), example, rules=["padding_leak"]).notes
    )


def test_unchecked_future_leak_is_noted():
    model = WithLayout(lambda y: y.mean(1), causal=True)
    (note,) = addnorm.doctor(model, ids()).notes
    assert note.startswith("leaks from the future were not checked: no axis of the output")


def test_unchecked_options_are_noted():
    def build(depth=1, names=()):
        if depth != 1:
            raise ValueError("one only")
        return WithLayout(LAYOUTS["flat"])

    report = addnorm.doctor(build(), ids(), config={"depth": 1, "names": ()}, build=build)
    assert [n for n in report.notes if "effect" in n] == [
        "the effect of option depth was not checked: no other value gives a model that runs",
        "the effect of option names was not checked: no other value gives a model that runs",
    ]
    report = addnorm.doctor(build(), ids(), config={"depth": 2}, build=build)
    assert (
        "options without effect were not checked: the model built from the config does not run"
        in report.notes
    )


# Scales and initial weights


class Learned(PostBlock):
    """Post-LN with a learned scalar on the branch."""

    def __init__(self):
        super().__init__()
        self.beta = nn.Parameter(torch.tensor(1.2))


def test_trained_scale_on_branch_is_not_reported():
    model = Model(stack(Learned))
    assert rules(model) == {"scale_on_branch"}  # a mistake at initialization
    with torch.no_grad():
        model.blocks[0].one.weight[0] += 0.1
    assert rules(model) == set()
    found = findings(Model(stack(PostBlock, beta=1.2)))
    assert {(f.rule, f.severity) for f in found} == {("scale_on_branch", "error")}


@pytest.mark.parametrize("trained", [False, True])
def test_trained_weights_are_not_checked_for_initialization(trained):
    model = Model(stack(PostBlock, alpha=2.2))
    if trained:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(3):
            nn.functional.cross_entropy(model(ids()).flatten(0, 1), ids().flatten()).backward()
            optimizer.step()
    report = addnorm.doctor(model, ids(), rules=["scale_without_init"])
    assert bool(report.findings) is not trained
    assert any("the weights are trained" in note for note in report.notes) is trained


def test_table_added_after_norm_is_not_its_bias():
    class Placed(Model):
        def forward(self, tokens, mask=None):
            x = self.embed_norm(self.table(tokens)) + self.place
            for block in self.blocks:
                x = block(x)
            return self.head(self.final(x))

    model = Placed(stack(PreBlock), nn.LayerNorm(DIM), embed_norm=nn.LayerNorm(DIM))
    tables = [w for w in model.parameters() if w.dim() > 1]
    gains = [w for w in model.parameters() if w.dim() < 2]
    groups = [{"params": gains, "weight_decay": 0.0}, {"params": tables, "weight_decay": 0.1}]
    assert rules(model, optimizer=torch.optim.AdamW(groups)) == set()
    groups[0]["weight_decay"] = 0.1
    assert rules(model, optimizer=torch.optim.AdamW(groups)) == {"decayed_gain"}


def test_teacher_copy_is_not_reported():
    class Taught(nn.Module):
        def __init__(self, student):
            super().__init__()
            self.student, self.teacher = student, copy.deepcopy(student)

        def forward(self, tokens):
            return self.student(tokens), self.teacher(tokens)

    assert rules(Taught(Model(stack(PreBlock), nn.LayerNorm(DIM)))) == set()
    assert rules(Taught(Model(clones(PreBlock()), nn.LayerNorm(DIM)))) == {"cloned_layers"}


# Epsilon


class Root(nn.Module):
    """RMS norm in half precision, with separate dtypes for the statistics and eps."""

    def __init__(self, exact, eps, late=False):
        super().__init__()
        self.gain, self.exact, self.eps = nn.Parameter(torch.ones(DIM)), exact, eps
        self.late = late

    def forward(self, x):
        size = x.to(self.exact).pow(2).mean(-1, keepdim=True)
        size = size if self.eps is None else size + self.eps
        if self.late:
            return (x.float() * torch.rsqrt(size)).type_as(x) * self.gain
        return x * torch.rsqrt(size).type_as(x) * self.gain


@pytest.mark.parametrize(
    ("exact", "eps", "late", "expected"),
    [
        (torch.float32, 1e-8, False, None),
        (torch.float16, 1e-8, True, "warning"),
        (torch.float32, None, False, "error"),
        (torch.float32, 0.0, True, "error"),
    ],
)
def test_eps_is_checked_in_the_dtype_of_its_addition(exact, eps, late, expected):
    norm = lambda d=DIM: Root(exact, eps, late)  # noqa: E731
    found = findings(Model(stack(PreBlock, 1, norm=norm), norm()).half(), rules=["eps_too_small"])
    assert {f.severity for f in found} == ({expected} if expected else set())


@pytest.mark.parametrize("way", ["clamp", "maximum", "one more"])
def test_other_guards_replace_eps(way):
    class Kept(nn.Module):
        def forward(self, x):
            size = x.pow(2).mean(-1, keepdim=True).sqrt()
            if way == "clamp":
                size = size.clamp(min=1e-3)
            elif way == "maximum":
                size = torch.maximum(size, torch.tensor(1e-3))
            else:
                size = size + 1
            return x / size

    model = Model(stack(PreBlock, 1, norm=lambda d: Kept()), Kept())
    assert findings(model, rules=["eps_too_small"]) == ()


# Options


class Rated(Model):
    """Options with an effect in train mode only, and one without any."""

    def __init__(self, rate=0.1, skipped=0.1, unused=0.1, depth=1, width=3, seed=3, place="first"):
        super().__init__(stack(PreBlock, depth), nn.LayerNorm(DIM))
        self.rate, self.skipped = rate, skipped
        if place == "last":
            self.place.data.mul_(2)

    def forward(self, tokens, mask=None):
        x = self.table(tokens)[:, None]
        p = self.rate if self.training else 0.0
        x = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=p)[:, 0] + self.place
        for block in self.blocks:
            if not self.training or torch.rand(()) >= self.skipped:
                x = block(x)
        return self.head(self.final(x))


def test_options_with_effect_in_training_are_not_reported():
    config = {"rate": 0.1, "skipped": 0.1, "unused": 0.1, "depth": 1, "width": 3, "seed": 3}
    config["place"] = "first"
    found = findings(Rated(), config=config, build=Rated, rules=["ineffective_option"])
    assert [(f.path, f.severity) for f in found] == [
        ("unused", "warning"),
        ("width", "warning"),  # a size of the network
        ("seed", "info"),
    ]


def test_literal_annotation_values_are_tried():
    def build(place: Literal["pre", "post"] = "pre"):
        return Rated()

    found = findings(Rated(), config={"place": "pre"}, build=build, rules=["ineffective_option"])
    assert [f.evidence["tried"] for f in found] == [["'pre'", "'post'"]]


# Dropout called in train mode only


@pytest.mark.parametrize("place", ["behind the norm", "before the norm"])
def test_dropout_called_in_train_mode_only_is_found(place):
    class Late(Model):
        def forward(self, tokens, mask=None):
            x = self.table(tokens)
            for block in self.blocks:
                x = block(x)
            if self.training and place == "before the norm":
                x = nn.functional.dropout(x, 0.2)
            x = self.final(x)
            if self.training and place == "behind the norm":
                x = nn.functional.dropout(x, 0.2)
            return self.head(x)

    model = Late(stack(PreBlock), nn.LayerNorm(DIM))
    found = findings(model)
    assert {f.rule for f in found} == ({"dropout_after_norm"} if "behind" in place else set())
    assert model.training and all(f.evidence["rate"] == 0.2 for f in found)


# Norms of embeddings


@pytest.mark.parametrize("norm", [nn.RMSNorm, HandRMS, HandNorm])
def test_norm_of_the_embedding_is_read_by_the_skip_too(norm):
    model = Model(stack(PreBlock, norm=norm), norm(DIM), embed_norm=norm(DIM))
    assert rules(model) == set()
    model.embed_norm = nn.Sequential(norm(DIM), norm(DIM))
    assert rules(model) == {"double_norm"}


# Parts that these inputs do not need


class Window(PreBlock):
    """Block with a summary of long inputs, whose norm short ones do not reach."""

    def __init__(self, size):
        super().__init__()
        self.summary, self.summary_norm, self.size = nn.Linear(DIM, DIM), nn.LayerNorm(DIM), size

    def forward(self, x, mask=None):
        windows = self.summary(x)[:, : x.shape[1] // self.size * self.size]
        if windows.shape[1]:
            x = x + self.summary_norm(windows).mean(1, keepdim=True)
        return super().forward(x, mask)


def test_norm_of_long_inputs_is_a_remark():
    found = findings(Model([Window(50) for _ in range(2)], nn.LayerNorm(DIM)))
    assert {(f.rule, f.severity) for f in found} == {("inert_norm", "info")}
    assert "inert_norm" not in rules(Model([Window(3) for _ in range(2)], nn.LayerNorm(DIM)))


class GlobalTokens(nn.Module):
    """Global tokens with blocks of their own, which end with the last layer (Pegasus-X)."""

    def __init__(self, returned):
        super().__init__()
        self.table, self.tokens = nn.Embedding(VOCAB, DIM), nn.Parameter(torch.randn(1, 3, DIM))
        self.blocks, self.others = (nn.ModuleList(stack(PreBlock)) for _ in range(2))
        self.final, self.returned = nn.LayerNorm(DIM), returned

    def forward(self, tokens):
        x, g = self.table(tokens), self.tokens.expand(len(tokens), -1, -1)
        for block, other in zip(self.blocks, self.others, strict=True):
            x = block(x + g.mean(1, keepdim=True))
            g = other(g + x.mean(1, keepdim=True))
        return (self.final(x), g) if self.returned else self.final(x)


@pytest.mark.parametrize("returned", [False, True])
def test_stream_that_ends_unused_needs_no_final_norm(returned):
    found = {f.rule for f in findings(GlobalTokens(returned)) if f.severity != "info"}
    assert found == ({"missing_final_norm"} if returned else set())
