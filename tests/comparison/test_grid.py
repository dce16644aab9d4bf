"""Axes, arms and cells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from addnorm.comparison.grid import (
    SWEEP_LRS,
    Arm,
    Cell,
    Grid,
    has_norms,
    parse_axis,
    split_list,
    write_value,
)
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.tasks import get_task
from addnorm.core.errors import UserError
from addnorm.wirings.base import registry as wirings


@given(st.lists(st.sampled_from(["pre_ln", "mix_ln(post=0.25, init=gpt2)", "dlcl", "a(b=(1, 2))"])))
def test_split_list_ignores_commas_in_brackets(names):
    assert split_list(", ".join(names)) == names


def test_wiring_without_norms_is_one_arm():
    grid = Grid(wiring="rezero,pre_ln", norm="layer,rms")
    assert [arm.name for arm in grid.arms()] == ["rezero", "pre_ln", "pre_ln rms"]


def test_has_norms():
    without = {name for name in wirings if not has_norms(name)}
    assert {"rezero", "none"} <= without
    assert not without & {"pre_ln", "post_ln", "sub_ln", "normformer", "deepnorm", "b2t"}


def test_recommended_schedules_are_separate_arms():
    grid = Grid(wiring="post_ln", warmup="0,own", lr="1e-3")
    common, own = list(grid.cells([0]))
    assert common.arm.name == "post_ln"
    assert own.arm.name == "post_ln (own schedule)"
    assert common.schedule("constant") == "constant(warmup=0)"
    assert own.schedule("constant").startswith("inverse_sqrt")


def test_sweep_expands_to_learning_rates():
    assert Grid(lr="sweep").lr == SWEEP_LRS
    assert Grid(lr=["1e-3", 3e-3]).lr == (1e-3, 3e-3)  # YAML reads 1e-3 as text


def test_cell_names_are_unique():
    arms = [Arm("pre_ln"), Arm("pre_ln", "rms"), Arm("pre_ln", own=True), Arm("mix_ln(post=0.5)")]
    cells = [
        Cell(arm, depth, warmup, lr, seed)
        for arm in arms
        for depth in (6, 66)
        for warmup in (None, 0, 100)
        for lr in (1e-3, 0.00100000001, 3e-3)
        for seed in (0, 1)
    ]
    names = [cell.name for cell in cells]
    assert len(set(names)) == len(names)
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-") for name in names)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"depth": 0}, "depth: expected a number greater than or equal to 1, got 0"),
        ({"depth": "six"}, "depth: expected a valid integer, got 'six'"),
        ({"depth": 2.5}, "depth: expected a valid integer, got 2.5"),
        ({"lr": "-1"}, "lr: expected a number greater than 0, got -1"),
        ({"lr": "nan"}, "lr: expected a finite number, got nan"),
        ({"lr": []}, "lr: expected at least one value"),
        ({"wiring": ""}, "wiring: expected at least one value"),
        ({"wiring": "pre_ln,pre_ln"}, "wiring: expected distinct values, got pre_ln twice"),
        ({"wiring": "preln"}, "did you mean 'pre_ln'"),
        ({"wiring": "b2t(alpha=2)"}, "has no option 'alpha'"),
        ({"norm": "layr"}, "did you mean 'layer'"),
        ({"warmup": "-3"}, "warmup: expected a number greater than or equal to 0"),
        ({"warmup": "soon"}, "warmup: expected a valid integer"),
        ({"seeds": 0}, "seeds: expected a number greater than or equal to 1"),
        ({"steps": 0}, "steps: expected a number greater than or equal to 1"),
        ({"task": "sing"}, "unknown task 'sing'"),
        ({"seed": 3}, "takes a number of seeds"),
        ({"dimm": 3}, "did you mean 'dim'"),
        ({"valid_every": 0}, "compared by validation loss"),
        ({"on_spike": "rewind"}, "gives some cells other data"),
        ({"encoder_wiring": "post_ln"}, "one wiring and one norm"),
        ({"keys": {"lr": 5}}, "keys: expected recipe keys only"),
        ({"steps": "many", "schedule": "cosine(warmup=0.1)"}, "steps: expected a valid integer"),
        ({"grids": [{"warmup": 3}], "schedule": "cosine(warmup=9)"}, "expected no warm-up beside"),
        ({"seeds": 10**6}, "expected at most 5,000 cells"),
        ({"patience": 3}, "gives some cells fewer steps"),
        ({"mode": "quick"}, "mode: expected 'fair' or 'halving', got 'quick'"),
        ({"grids": [], "task": "lm"}, "expected at least one grid"),
        ({"grids": 3}, "grids: expected a list"),
        ({"grids": [{"wiring": "pre_ln"}], "lr": 1e-3}, "axes inside the grids"),
        ({"grids": [{"wirings": "pre_ln"}]}, "unknown comparison field 'wirings'"),
        ({"lr": [i / 1e5 for i in range(1, 3000)], "seeds": 9}, "expected at most 5,000 cells"),
    ],
)
def test_invalid_keys_raise_user_error(axes, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        parse_comparison(axes)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"warmup": 300, "steps": 200}, "300"),
        ({"schedule": "none", "warmup": 5}, "has no warm-up"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"dim": 30, "heads": 4}, "heads"),
        ({"batch_tokens": 8}, "batch_tokens: expected at least"),
        ({"mode": "halving", "log_every": 100}, "a quarter of the steps, for halving"),
        ({"task": "lm", "norm": "batch"}, "later tokens"),
    ],
)
def test_invalid_cells_are_rejected_by_check(values, message):
    with pytest.raises(UserError, match=message):
        spec = parse_comparison(values)
        get_task(spec.task).check(spec)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('plain,"a,b"', ("plain", "a,b")),
        ("'a, b' , c", ("a, b", "c")),
        ('"1",1.5,"true"', ("1", 1.5, "true")),
        ("it's,Bob's", ("it's", "Bob's")),
        ('"open,b', ('"open', "b")),
        ("f('x,y'),\"it's, so\"", ("f('x,y')", "it's, so")),
        ("[1, 2],x", ("[1, 2]", "x")),
    ],
)
def test_quotes_keep_commas_and_texts_that_look_like_numbers(text, values):
    assert parse_axis("name", text) == values
    written = ",".join(write_value(value) for value in values)
    assert parse_axis("name", written) == values
