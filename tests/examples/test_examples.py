"""The worked examples of the guide run, and their answers are plausible."""

import math

import pytest

from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.tasks.function_registry import FUNCTIONS
from tests.comparison.same_process_engine import SameProcessEngine
from tests.source_tree import ROOT


@pytest.fixture(autouse=True)
def forget_tasks():
    known = dict(FUNCTIONS)
    yield
    FUNCTIONS.clear()
    FUNCTIONS.update(known)


def run_example(name, folder, **keys):
    values = {"task": f"{ROOT}/examples/{name}:train", "seeds": 1, "depth": 1} | keys
    return run_comparison(parse_comparison(values), folder, engine=SameProcessEngine())


def test_nano_gpt(tmp_path):
    axes = {"optimizer": "adamw,sgd"}
    keys = {"wiring": "pre_ln,post_ln", "lr": [1e-2], "steps": 12, "dim": 16, "axes": axes}
    study = run_example("nano_gpt.py", tmp_path / "study", **keys)
    states = {each.cell.arm.name: each.state for each in study.cells}
    assert states["pre_ln optimizer=adamw"] == "trained"
    assert states["pre_ln optimizer=sgd"] == "stuck"
    assert 3.5 < study.shared_data.baseline < 5.5  # an untrained model of about 90 characters
    bits = study.cells[0].end.scores["bits_per_character"]
    assert bits == pytest.approx(study.cells[0].loss / math.log(2))


@pytest.mark.slow
def test_hugging_face(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    keys = {"lr": [1e-2], "steps": 8, "dim": 16, "axes": {"activation": "gelu_new,relu"}}
    study = run_example("hugging_face.py", tmp_path / "study", **keys)
    assert [each.state for each in study.cells] == ["trained", "trained"], study.cells
    rows = study.rows(study.cells[0].cell)
    assert [row["step"] for row in rows if row.get("split") == "train"] == list(range(1, 9))
    assert [row["step"] for row in rows if row.get("split") == "valid"] == [2, 4, 6, 8]
