"""The coordinate check: slopes of known models, plain modules, the page and the command."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

import addnorm
from addnorm.cli.commands import coordcheck as command
from addnorm.cli.main import main
from addnorm.core.errors import UserError
from addnorm.models import PRESETS
from addnorm.report.transfer.coordcheck_page import render_coordcheck_page
from addnorm.transfer.recording import name_sites
from addnorm.transfer.slopes import Slope, judge


def make_builder(scale, **options):
    fields = {"kind": "lm", "vocab": 64, "tied": False, "bias": False, "positions": "none"}
    fields |= {"activation": "gelu", "embed_scale": "sqrt_dim", "head_dim": 16, "depth": 2}

    def build(dim, depth=2):
        return addnorm.build(
            **fields | {"dim": dim, "depth": depth, "heads": dim // 16} | options, scale=scale
        )

    return build


def test_slope_equals_polyfit():
    sizes = [1, 1, 2, 2, 4, 4]
    values = [1.0, 1.2, 1.5, 1.4, 3.0, 2.5]
    slope = Slope.fit(list(zip(sizes, values, strict=True)))
    expected, covariance = np.polyfit(np.log2(sizes), np.log2(values), 1, cov=True)
    assert slope.value == pytest.approx(expected[0])
    # polyfit scales by chi2 / (n - 2); the 97.5 % quantile of t with 4 degrees of freedom
    assert slope.high - slope.value == pytest.approx(2.776445 * math.sqrt(covariance[0, 0]))


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1.0, 1.05, 0.98), "flat"),
        ((1.0, 2.0, 4.0), "grows"),
        ((4.0, 2.0, 1.0), "falls"),
        ((1.0, 9.0, 1.6), "unclear"),
        ((0.0, 0.0, 0.0), "zero"),
        ((1.0, math.nan, 1.0), "not finite"),
        ((1.0, math.inf, 1.0), "not finite"),
    ],
)
def test_verdicts(values, verdict):
    assert judge(list(zip((32, 64, 128), values, strict=True))) == verdict


def test_site_names():
    """Layers are one site, the places inside of a layer are not; what repeats in a list is one."""
    blocks = [nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.GELU()) for _ in range(3)]
    model = nn.ModuleDict({"blocks": nn.ModuleList(blocks), "head": nn.Linear(4, 2)})
    sites = list(name_sites(model).values())
    assert sites == ["blocks.*.0", "blocks.*.1", "blocks.*.2"] * 3 + ["head"]
    mixed = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    assert list(name_sites(mixed).values()) == ["0", "1", "2", "1", "2"]
    one_layer = nn.ModuleDict({"blocks": nn.ModuleList(blocks[:1])})
    assert set(name_sites(one_layer).values()) == {"blocks.*.0", "blocks.*.1", "blocks.*.2"}


@pytest.mark.slow
def test_width_rules_tell_standard_from_mup():
    options = {"lr": 0.01, "steps": 6, "seeds": 2}
    standard = addnorm.coordcheck(make_builder(None), (32, 64, 128), **options)
    mup = addnorm.coordcheck(make_builder("mup(base_dim=32)"), (32, 64, 128), **options)
    for site in ("stream", "attention branch", "feed-forward branch"):
        assert standard.slope(site).value > 0.3
        assert abs(mup.slope(site).value) < 0.2
    assert mup.ok
    assert not standard.ok


@pytest.mark.slow
def test_depth_rules_differ_in_the_branches():
    """a = 1/2 lets the branches of a deep model learn less; a = 1 does not."""
    options = {"lr": 0.003, "steps": 8, "seeds": 2}
    checks = {
        rule: addnorm.coordcheck(make_builder(rule), (32,), (2, 4, 8), **options)
        for rule in (None, "depth_mup(base_depth=2)", "completep(base_dim=32, base_depth=2)")
    }
    slopes = {
        rule: {site: check.slope(site, axis="depth").value for site in check.sites}
        for rule, check in checks.items()
    }
    assert slopes[None]["stream"] > 0.35
    assert slopes["depth_mup(base_depth=2)"]["feed-forward branch"] < -0.18
    assert abs(slopes["completep(base_dim=32, base_depth=2)"]["feed-forward branch"]) < 0.15
    assert abs(slopes["completep(base_dim=32, base_depth=2)"]["attention branch"]) < 0.15


class PlainModel(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.head(x)


def test_plain_modules_and_their_optimizers():
    def build(width, depth):
        model = PlainModel(width, depth)
        hidden = [parameter for layer in model.layers for parameter in layer.parameters()]
        others = [*model.embed.parameters(), *model.head.parameters()]
        groups = [{"params": hidden, "lr": 0.01 * 16 / width}, {"params": others}]
        return model, torch.optim.Adam(groups, lr=0.01)

    batch = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    check = addnorm.coordcheck(build, (16, 32), (1, 2), batch=batch, steps=2, seeds=1)
    assert check.axes == ("width", "depth")
    assert set(check.sites) == {"embed", "layers.*", "head", "output"}
    assert {row["step"] for row in check.rows} == {0, 1, 2}
    assert not any(row["measure"] == "update" and row["step"] == 0 for row in check.rows)
    assert len({row["value"] for row in check.rows if row["site"] == "output"}) > 4
    json.dumps(check.to_dict())


def test_update_is_the_change_of_the_output():
    """One SGD step of y = w x on (y - t) ** 2 / 3, computed by hand."""
    model = nn.Linear(1, 1, bias=False)
    batch = torch.tensor([[1.0], [2.0], [3.0]])

    def build(width):
        with torch.no_grad():
            model.weight.fill_(width)
        return model

    def loss(output, inputs):
        return (output - 1).square().mean()

    check = addnorm.coordcheck(
        build, (1, 2), batch=batch, loss=loss, optimizer="sgd", lr=0.1, steps=1, seeds=1
    )
    for width, value in check.points("output", axis="width"):
        gradient = sum(2 * (width * x - 1) * x for x in (1, 2, 3)) / 3
        change = math.sqrt(sum((0.1 * gradient * x) ** 2 for x in (1, 2, 3)) / 3)
        assert value == pytest.approx(change, rel=1e-5)


def test_without_steps_the_initial_activations_are_judged():
    def build(width):
        model = nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2))
        for layer in model:
            nn.init.ones_(layer.weight)  # the sum of all features
        return model

    check = addnorm.coordcheck(build, (16, 64, 256), batch=torch.ones(3, 4), steps=0)
    assert (check.verdict("output"), check.ok) == ("grows", False)
    assert check.sentences()[0].startswith("Over width, the activations of")
    page = render_coordcheck_page(check, {})
    assert "slope of activations" in page and "output: activations" in page
    assert "output: updates" not in page


def test_same_seed_gives_the_same_numbers():
    build = make_builder("mup(base_dim=16)")
    results = [addnorm.coordcheck(build, (16, 32), steps=1, seeds=1).rows for _ in range(2)]
    assert results[0] == results[1]


def test_page_is_self_contained():
    check = addnorm.coordcheck(make_builder(None), (16, 32), steps=1, seeds=1)
    page = render_coordcheck_page(check, {"model": "lm"})
    assert "feed-forward branch" in page
    assert "Over width" in page
    assert "<script src=" not in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((),), "widths: expected at least one width"),
        (((32,),), "expected at least two"),
        (((0, 32),), "expected integers from 1"),
    ],
)
def test_sizes_that_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        addnorm.coordcheck(make_builder(None), *arguments)


def test_other_arguments_that_are_refused():
    with pytest.raises(UserError, match="build: expected a function that returns"):
        addnorm.coordcheck(lambda width: width, (1, 2))
    with pytest.raises(UserError, match="steps: expected"):
        addnorm.coordcheck(make_builder(None), (16, 32), steps=-1)
    with pytest.raises(UserError, match='optimizer: expected "adam"'):
        addnorm.coordcheck(make_builder(None), (16, 32), optimizer="lion")


def test_command(tmp_path, capsys):
    arguments = ["coordcheck", "bias=false", "--dim", "16,32", "--depth", "1,2", "--steps", "1"]
    code = main([*arguments, "--seeds", "1", "--json", "-o", str(tmp_path)])
    result = json.loads(capsys.readouterr().out)
    assert code == (0 if result["ok"] else 1)
    assert {row["axis"] for row in result["sites"]} == {"width", "depth"}
    assert (tmp_path / "report.html").stat().st_size > 1000


def test_command_refuses_bad_arguments(capsys):
    assert main(["coordcheck", "dim=32"]) == 2
    assert "expected --dim" in capsys.readouterr().err
    assert main(["coordcheck", "--dim", "a,b"]) == 2
    assert main(["coordcheck", "no_preset"]) == 2


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_can_be_checked(preset):
    build, facts = command._make_builder(preset, [])
    assert facts == {"model": preset}
    assert build(dim=32, depth=1).config.dim == 32
