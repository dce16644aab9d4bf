"""Specs: parsing, YAML round trip, digests and folders."""

from pathlib import Path

import pytest

from addnorm.comparison.analysis.study import read_comparison
from addnorm.comparison.demo import DEMO_SPEC
from addnorm.comparison.folder_layout import FACTS
from addnorm.comparison.grid import Grid
from addnorm.comparison.parse import parse_comparison, parse_task_option, read_spec
from addnorm.comparison.run import claim_folder
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks import get_task
from addnorm.core.errors import UserError
from addnorm.core.files import write_json

SPECS = [
    Comparison(),
    parse_comparison(
        {"task": "lm", "wiring": "b2t,mix_ln(post=0.25)", "dim": 32, "optimizer": "muon"}
    ),
    parse_comparison({"warmup": "0,own", "norm": "rms", "lr": "sweep", "mode": "halving"}),
    parse_comparison(DEMO_SPEC),
]


@pytest.mark.parametrize("spec", SPECS, ids=["default", "lm", "own", "demo"])
def test_yaml_round_trip(spec, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(spec.to_yaml(), encoding="utf-8")
    parsed = parse_comparison(read_spec(path))
    assert parsed == spec
    assert parsed.digest == spec.digest
    assert parsed.cells() == spec.cells()


def test_digest_depends_on_every_field():
    spec = Comparison()
    others = [
        parse_comparison(change)
        for change in ({"seeds": 3}, {"lr": 1e-3}, {"steps": 201}, {"dim": 65}, {"score": 0})
    ]
    assert len({each.digest for each in (spec, *others)}) == 6


def test_all_arms_share_data_budget_and_seeds():
    spec = parse_comparison(
        {"wiring": "post_ln,b2t", "depth": 2, "lr": [1e-3, 3e-3], "warmup": "0,9"}
    )
    task = get_task(spec.task)
    recipes = [task.recipe(spec, cell, data="d", tokenizer="t.json") for cell in spec.cells()]
    varied = {"wiring", "lr", "schedule", "seed"}
    common = [
        {name: value for name, value in recipe.to_flat_dict().items() if name not in varied}
        for recipe in recipes
    ]
    assert all(each == common[0] for each in common)
    assert {recipe.seed for recipe in recipes} == {0, 1}
    assert {recipe.schedule for recipe in recipes} == {"constant(warmup=0)", "constant(warmup=9)"}


def test_common_cells_of_grids_run_once():
    spec = Comparison(
        grids=(Grid(wiring="pre_ln", lr=1e-3), Grid(wiring="pre_ln,b2t", lr=1e-3)), seeds=1
    )
    assert [cell.arm.wiring for cell in spec.cells()] == ["pre_ln", "b2t"]


def test_recipe_file_as_task(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("task: lm\ndata: corpus\nwiring: b2t\ndim: 32\nseed: 4\n", encoding="utf-8")
    spec = parse_comparison(parse_task_option(str(path)) | {"lr": 1e-3})
    assert (spec.task, Path(spec.data).name, spec.keys) == ("lm", "corpus", {"dim": 32})
    assert Path(spec.data).is_absolute()
    assert spec.grids[0].wiring == ("b2t",)
    path.write_text("task: lm\ndata: corpus\nschedule: cosine\nsteps: 50\n", encoding="utf-8")
    spec = parse_comparison(parse_task_option(str(path)))
    assert (spec.schedule, spec.grids[0].warmup) == ("cosine", (5,))  # a recipe's default is 0.1
    path.write_text("task: lm\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"data: expected a corpus folder in .*, got none"):
        parse_task_option(str(path))
    with pytest.raises(UserError, match="no recipe at"):
        parse_task_option(str(tmp_path / "none.yaml"))


def test_warmup_of_schedule_becomes_axis():
    keys = {"schedule": "cosine(warmup=0.1, floor=0.2)", "steps": 300}
    spec = parse_comparison(keys)
    assert (spec.schedule, spec.grids[0].warmup) == ("cosine(floor=0.2)", (30,))
    other = parse_comparison(keys | {"warmup": "0,7"})
    assert (other.schedule, other.grids[0].warmup) == ("cosine(floor=0.2)", (0, 7))
    assert other.cells()[-1].schedule(other.schedule) == "cosine(warmup=7, floor=0.2)"


def test_duplicate_yaml_keys_are_rejected(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("steps: 3\nsteps: 4\n", encoding="utf-8")
    with pytest.raises(UserError, match="'steps' appears twice"):
        read_spec(path)


def test_folder_belongs_to_one_spec(tmp_path):
    folder = tmp_path / "runs"
    with claim_folder(folder, Comparison()):
        assert read_comparison(folder) == Comparison()
        with (
            pytest.raises(UserError, match="another process is comparing"),
            claim_folder(folder, Comparison()),
        ):
            pass
    with claim_folder(folder, Comparison(steps=100)):  # not prepared yet: replaces the spec
        assert read_comparison(folder).steps == 100
    with claim_folder(folder, Comparison()):
        write_json(folder / FACTS, {})
    with (
        pytest.raises(UserError, match="steps was 200, now 100"),
        claim_folder(folder, Comparison(steps=100)),
    ):
        pass


def test_folder_with_other_files_is_rejected_and_unchanged(tmp_path):
    (tmp_path / "thesis.tex").write_text("dear", encoding="utf-8")
    with (
        pytest.raises(UserError, match=r"which contains thesis\.tex"),
        claim_folder(tmp_path, Comparison()),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with (
        pytest.raises(UserError, match="which is a file"),
        claim_folder(tmp_path / "thesis.tex", Comparison()),
    ):
        pass


def test_damaged_spec_raises_user_error(tmp_path):
    (tmp_path / "comparison.yaml").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=r"is damaged: .* start again in another folder"):
        read_comparison(tmp_path)


def test_first_seed():
    spec = parse_comparison({"seeds": 3, "first_seed": 100, "wiring": "pre_ln", "lr": 1e-3})
    assert [cell.seed for cell in spec.cells()] == [100, 101, 102]
    assert parse_comparison(spec.to_flat_dict()) == spec
    with pytest.raises(UserError, match="first_seed"):
        parse_comparison({"task": "lm", "first_seed": -1})


def test_default_first_seed_does_not_change_digest():
    spec = parse_comparison({"task": "lm", "seeds": 2})
    assert "first_seed" not in spec.canonical_dict() and "first_seed" in spec.to_flat_dict()
    assert spec.model_copy(update={"first_seed": 7}).digest != spec.digest


@pytest.mark.parametrize("keys", [5, "dim", [1], True])
def test_keys_of_another_type_are_one_line(keys):
    with pytest.raises(UserError, match=r"keys: expected recipe keys with their values, got"):
        parse_comparison({"task": "lm", "keys": keys})
