"""`print` of every public result is short and readable."""

from pathlib import Path

import numpy as np
import pytest
import torch

import addnorm
from addnorm.claims.result import Result
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.parse import parse_comparison
from addnorm.tabular import Explanation, Reliability
from addnorm.tabular.fit_run import FitConfig, FitResult
from addnorm.train.recipe import Recipe
from addnorm.train.train_state import Outcome, TrainState
from addnorm.train.trained_run import TrainedRun
from tests.comparison.synthetic_study import write_synthetic_study


def make_report(folder):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return addnorm.doctor(torch.nn.TransformerEncoder(layer, 2), torch.randn(2, 5, 16))


def make_study(folder):
    spec = parse_comparison({"wiring": "pre_ln,b2t", "lr": "1e-3", "seeds": 2})
    write_synthetic_study(folder / "study", spec)
    return Study.open(folder / "study")


def make_run(folder):
    recipe = Recipe.from_dict({"task": "lm", "data": "x", "dim": 8, "depth": 1, "heads": 2})
    model = addnorm.build(kind="lm", vocab=9, dim=8, depth=1, heads=2)
    return TrainedRun(folder, recipe, model, None, (), 7, torch.device("cpu"))


def make_fit(folder):
    config = FitConfig(table="t", target="y", task="classify", holdout=0.2, seed=0, params={})
    return FitResult(config, None, 80, 20, {"ours": {"accuracy": 0.5}}, note="no boosting")


MADE = {
    "findings": make_report,
    "cells": make_study,
    "parameters, step 7": make_run,
    "accuracy 0.5": make_fit,
    "interrupted (by me): step 3": lambda _: Outcome("interrupted", TrainState(step=3), "by me"),
    "crashed; no luck": lambda _: Result(
        claim="x", budget="smoke", digest="d", verdict=None, why="no luck"
    ),
    "0.250 predicted": lambda _: Reliability(*(np.array([0.25]) for _ in range(3))),
    "a=1 +0.3": lambda _: Explanation(
        np.full((9, 1), 0.3), np.ones(9), ["a"], [["1"]] * 9, ["yes"] * 9
    ),
}


@pytest.mark.parametrize("expected", MADE)
def test_print_is_readable(tmp_path, expected):
    text = str(MADE[expected](tmp_path))
    assert expected in text or (expected == "findings" and "cloned_layers" in text)
    assert len(text.splitlines()) < 40
    assert max(map(len, text.splitlines())) < 400
    for noise in ("object at 0x", "array(", "PosixPath", "tensor(", type(Path()).__name__ + "("):
        assert noise not in text


def test_report_prints_blocks_and_findings(tmp_path):
    text = str(make_report(tmp_path))
    assert "block 0: layers.0 self-attention post_ln" in text
    assert "warning cloned_layers" in text
