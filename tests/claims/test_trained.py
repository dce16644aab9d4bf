"""Claims by training: rows of studies, choice of settings, shared cells."""

import math
from dataclasses import replace

import pytest

from addnorm.claims import ClaimWorkspace
from addnorm.claims.catalogue.admin_trains_deep import AdminTrainsDeep
from addnorm.claims.catalogue.post_ln_needs_warmup import PostLnNeedsWarmup
from addnorm.claims.catalogue.rezero_is_faster import RezeroIsFaster
from addnorm.claims.catalogue.rms_norm_equals_layer_norm import RmsNormEqualsLayerNorm
from addnorm.claims.catalogue.t_fixup_trains_deep import TFixupTrainsDeep
from addnorm.claims.cell_cache import (
    cell_commits,
    copy_finished_cells,
    read_shared_rows,
    record_commits,
    relocate_data,
    shared_settings,
    small_demo_corpus,
    split_shared_cells,
)
from addnorm.claims.claim import claim_name
from addnorm.claims.progress_scale import best_setting_rows, best_setting_values, raw_progress
from addnorm.claims.result import Result
from addnorm.claims.training_claims import cell_rows, sweep_inside_and_edges
from addnorm.comparison import Study
from addnorm.comparison.analysis.study import read_comparison
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.parse import parse_comparison
from addnorm.core.errors import UserError
from addnorm.data.corpus import Corpus
from tests.claims.synthetic_rows import cells
from tests.comparison.synthetic_study import BASELINE, write_synthetic_study

SPEC = {"wiring": "post_ln,pre_ln", "lr": "1e-3,1e-2", "depth": 2, "seeds": 2, "steps": 50}


def test_raw_progress_is_the_removed_fraction_of_the_baseline():
    assert raw_progress(0.0, baseline=4.0) == 1.0
    assert raw_progress(3.0, baseline=4.0) == 0.25
    assert raw_progress(5.0, baseline=4.0) == 0.0
    assert raw_progress(math.nan, baseline=4.0) == 0.0


def test_arm_is_judged_at_best_setting():
    rows = [*cells({"a": 0.2, "b": 0.9}, lr=1e-3), *cells({"a": 0.8, "b": 0.1}, lr=1e-2)]
    assert best_setting_values(rows, arm="a") == dict.fromkeys(range(4), 0.8)
    assert {row["lr"] for row in best_setting_rows(rows, arm="b")} == {1e-3}
    assert best_setting_values(rows, arm="c") == {}


def test_other_rows_use_setting_with_most_progress():
    rows = [*cells({"a": 0.2}, lr=1e-3), *cells({"a": 0.8}, lr=1e-2)]
    rows += [*cells({"a": 7.0}, lr=1e-3, name="loss"), *cells({"a": 9.0}, lr=1e-2, name="loss")]
    assert best_setting_values(rows, "loss", arm="a") == dict.fromkeys(range(4), 9.0)


def test_every_cell_becomes_rows(tmp_path):
    study = Study.open(write_synthetic_study(tmp_path, parse_comparison(SPEC), site_rows=False))
    rows = list(cell_rows(study, "one", ("progress", "valid")))
    final = [row for row in rows if row["name"] == "progress"]
    assert len(final) == 8 and {row["study"] for row in rows} == {"one"}
    by_state = {row["state"]: row["value"] for row in final}
    assert by_state["diverged"] == 0.0 and by_state["trained"] > 0.5
    steps = {row["step"] for row in rows if row["name"] == "valid"}
    assert max(steps) == 50


def test_finished_cells_are_copied_from_other_studies(tmp_path):
    def outcome(cell):
        return "crashed" if (cell.lr, cell.seed) == (1e-3, 1) else "trained"

    theirs = write_synthetic_study(
        tmp_path / "theirs", parse_comparison(SPEC), outcome, site_rows=False
    )
    (theirs / "tokenizer.json").write_text("{}")
    ours = parse_comparison(SPEC | {"wiring": "pre_ln,b2t"})
    assert copy_finished_cells(ours, tmp_path / "ours") == 3
    ends = {
        cell.name: CellResult.read(tmp_path / "ours" / "cells" / cell.name) for cell in ours.cells()
    }
    taken = [name for name, end in ends.items() if end is not None]
    assert sorted(taken) == sorted(
        name for name in ends if name.startswith("pre_ln") and "lr0.001-s1" not in name
    )
    study = Study.open(tmp_path / "ours")
    assert study.shared_data.baseline == BASELINE and study.rows(study.cells[0].cell)
    assert copy_finished_cells(ours, tmp_path / "ours") == 0


def test_cells_with_other_settings_are_not_copied(tmp_path):
    write_synthetic_study(tmp_path / "theirs", parse_comparison(SPEC), site_rows=False)
    assert copy_finished_cells(parse_comparison(SPEC | {"steps": 60}), tmp_path / "ours") == 0
    assert copy_finished_cells(parse_comparison(SPEC | {"dim": 16}), tmp_path / "ours") == 0
    assert not (tmp_path / "ours").exists()
    assert shared_settings(parse_comparison(SPEC)) == shared_settings(
        parse_comparison(SPEC | {"wiring": "b2t"})
    )


def test_small_corpus_is_written_once(tmp_path):
    made = small_demo_corpus(tmp_path, "translate", 7)
    corpus = Corpus.open(made, "translate")
    assert corpus.counts == {"train": 7, "valid": 100, "test": 100}
    before = (made / "corpus.json").stat().st_mtime_ns
    assert small_demo_corpus(tmp_path, "translate", 7) == made
    assert (made / "corpus.json").stat().st_mtime_ns == before


def test_crashed_cells_raise(tmp_path, monkeypatch):
    claim = RmsNormEqualsLayerNorm()

    def run(spec, folder, **rest):
        return Study.open(
            write_synthetic_study(folder, spec, lambda cell: "crashed", site_rows=False)
        )

    monkeypatch.setattr("addnorm.claims.training_claims.run_comparison", run)
    with pytest.raises(RuntimeError, match=r"2 of 2 cells crashed, pre_ln-d1-.* out of memory"):
        claim.rows("smoke", ClaimWorkspace(tmp_path / "own", tmp_path / "studies"))


def test_interrupted_comparison_raises_keyboard_interrupt(tmp_path, monkeypatch):
    def run(spec, folder, **rest):
        study = Study.open(
            write_synthetic_study(folder, spec, lambda cell: "waiting", site_rows=False)
        )
        return replace(study, interrupted=True)

    monkeypatch.setattr("addnorm.claims.training_claims.run_comparison", run)
    with pytest.raises(KeyboardInterrupt):
        RmsNormEqualsLayerNorm().rows(
            "smoke", ClaimWorkspace(tmp_path / "own", tmp_path / "studies")
        )


def test_unfinished_cells_raise_user_error(tmp_path, monkeypatch):
    def run(spec, folder, **rest):
        return Study.open(
            write_synthetic_study(folder, spec, lambda cell: "waiting", site_rows=False)
        )

    monkeypatch.setattr("addnorm.claims.training_claims.run_comparison", run)
    with pytest.raises(
        UserError, match=r"2 of 2 cells in .* are not finished, another process may"
    ):
        RmsNormEqualsLayerNorm().rows(
            "smoke", ClaimWorkspace(tmp_path / "own", tmp_path / "studies")
        )


def test_setting_of_a_seed_is_chosen_by_other_seeds():
    rows = cells({"a": 0.5}, lr=1e-3)
    lucky = [{**row, "lr": 1e-2, "value": 0.9 * (row["seed"] == 0)} for row in rows]
    assert best_setting_values([*rows, *lucky], arm="a") == dict.fromkeys(range(4), 0.5)


def test_inside_and_edges_of_sweep():
    rates = {1e-4: 0.1, 1e-3: 0.6, 1e-2: 0.9}
    rows = [row for lr, value in rates.items() for row in cells({"a": value}, lr=lr)]
    inside, edges = sweep_inside_and_edges(rows, arm="a")
    assert inside == dict.fromkeys(range(4), 0.6) and edges == dict.fromkeys(range(4), 0.9)
    assert sweep_inside_and_edges([], arm="a") == ({}, {})


def test_diverged_arm_is_not_fast():
    rows = [
        *cells({"rezero": 0.9, "pre_ln": 0.9}),
        *({**row, "step": 80, "steps": 80} for row in cells({"pre_ln": 0.9}, name="valid")),
        *({**row, "step": 10, "steps": 80} for row in cells({"rezero": 0.1}, name="valid")),
    ]
    *_, reached, _, steps = RezeroIsFaster().checks(rows)
    assert (reached.answer, steps.answer) == ("not held", "not held")
    assert steps.found.mean == pytest.approx(math.log(80 / 40))


def test_small_corpus_study_moves_with_folder(tmp_path):
    spec = parse_comparison(SPEC)
    here = spec.model_copy(update={"data": str(tmp_path / "here" / "translate-7")})
    there = spec.model_copy(update={"data": str(tmp_path / "there" / "translate-7")})
    write_synthetic_study(tmp_path / "study", here, site_rows=False)
    relocate_data(there, tmp_path / "study")
    assert read_comparison(tmp_path / "study") == there
    assert shared_settings(here) == shared_settings(there) != shared_settings(spec)
    relocate_data(parse_comparison(SPEC | {"steps": 60}), tmp_path / "study")
    assert read_comparison(tmp_path / "study") == there


def test_copied_cells_keep_their_commit(tmp_path, monkeypatch):
    theirs = write_synthetic_study(tmp_path / "theirs", parse_comparison(SPEC), site_rows=False)
    (theirs / "tokenizer.json").write_text("{}")
    monkeypatch.setattr("addnorm.claims.cell_cache.get_commit", lambda: "old")
    record_commits(Study.open(theirs))
    monkeypatch.setattr("addnorm.claims.cell_cache.get_commit", lambda: "new")
    record_commits(Study.open(theirs))
    ours = parse_comparison(SPEC | {"wiring": "pre_ln,b2t"})
    copy_finished_cells(ours, tmp_path / "ours")
    assert set(cell_commits(tmp_path / "ours").values()) == {"old"}
    rows = cell_rows(Study.open(theirs), "one", ("progress",))
    assert {row["commit"] for row in rows} == {"old"}


def write_result(folder, claim, rows, digest=""):
    name = claim_name(claim)
    Result(
        claim=name,
        budget="standard",
        digest=digest or claim.digest("standard"),
        verdict=claim.judge(rows),
        rows=rows,
    ).save(folder / name)


def rows_of(claim, study, value=0.5):
    """Return a row for each cell of a claim."""
    return [
        {"name": "progress", "value": value, "study": study, "arm": cell.arm.name, "commit": "old"}
        | {"depth": cell.depth, "warmup": cell.warmup, "lr": cell.lr, "seed": cell.seed}
        for cell in claim.comparisons("standard")[study].cells()
    ]


def test_rows_of_finished_claims_are_not_trained_again(tmp_path, monkeypatch):
    theirs, ours = AdminTrainsDeep(), TFixupTrainsDeep()
    write_result(tmp_path, theirs, rows_of(theirs, "deep"))
    trained = []

    def run(spec, folder, **rest):
        trained.extend(cell.arm.name for cell in spec.cells())
        return Study.open(write_synthetic_study(folder, spec, site_rows=False))

    monkeypatch.setattr("addnorm.claims.training_claims.run_comparison", run)
    workspace = ClaimWorkspace(tmp_path / claim_name(ours), tmp_path / "studies")
    rows = ours.rows("standard", workspace)
    assert trained == ["t_fixup"] * 4
    expected = ours.comparisons("standard")["deep"].cells()
    found = [(row["arm"], row["warmup"], row["lr"], row["seed"]) for row in rows]
    assert len(found) == len(expected) == 32
    assert set(found) == {(cell.arm.name, cell.warmup, cell.lr, cell.seed) for cell in expected}
    assert {row["arm"] for row in rows if row["commit"] == "old"} == {"post_ln", "pre_ln"}


@pytest.mark.parametrize("change", ["other settings", "relative to the best", "missing", "stale"])
def test_rows_of_other_experiments_are_not_shared(tmp_path, change):
    ours = TFixupTrainsDeep()
    settings = ours.settings("standard")["deep"]
    theirs = PostLnNeedsWarmup() if change == "other settings" else AdminTrainsDeep()
    rows = rows_of(theirs, "post_ln" if change == "other settings" else "deep")
    if change == "relative to the best":
        rows[0]["value"] = 1.0
    write_result(tmp_path, theirs, rows, digest="0" * 16 if change == "stale" else "")
    names = ("progress", "loss") if change == "missing" else ("progress",)
    assert read_shared_rows(tmp_path, "standard", settings, names) == {}


def test_comparison_without_shared_rows_is_kept():
    spec = parse_comparison(SPEC)
    assert split_shared_cells(spec, {}) == (spec, [])
