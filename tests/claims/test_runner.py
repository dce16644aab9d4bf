"""Running claims: caching, rejected input, crashes."""

import json

import pytest

from addnorm.claims import LayerNormLength, RankCollapse, read_results, registry, run_claims
from addnorm.claims.callbacks import ClaimsCallback
from addnorm.claims.checks import Check
from addnorm.claims.result import RESULT, ROWS, is_claims_folder
from addnorm.claims.runner import find_claims
from addnorm.comparison.run_cell import DiskFullError
from addnorm.comparison.statistics import Estimate
from addnorm.core.errors import UnknownNameError, UserError

TWO = ["layer_norm_length", "rank_collapse"]


class RecordingCallback(ClaimsCallback):
    """Records the order of the hooks."""

    def __init__(self):
        self.results = []

    def on_claim_start(self, claim, *, number, total):
        self.results.append(("began", number, total))

    def on_claim_end(self, claim, result, *, cached):
        self.results.append((result.claim, cached))


def test_finished_claim_is_not_run_again(tmp_path):
    first, second = RecordingCallback(), RecordingCallback()
    run_claims(TWO[:1], tmp_path, budget="smoke", callback=first)
    found = run_claims(TWO, tmp_path, budget="smoke", callback=second)
    assert first.results == [("began", 1, 1), ("layer_norm_length", False)]
    assert second.results == [
        ("layer_norm_length", True),
        ("began", 2, 2),
        ("rank_collapse", False),
    ]
    assert list(read_results(tmp_path)) == list(found) == TWO
    assert is_claims_folder(tmp_path) and not is_claims_folder(tmp_path / "layer_norm_length")


def test_changed_settings_are_run_again(tmp_path, monkeypatch):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    budgets = dict(LayerNormLength.budgets) | {"smoke": {"seeds": 3, "dims": [16, 64]}}
    monkeypatch.setattr(LayerNormLength, "budgets", budgets)
    callback = RecordingCallback()
    found = run_claims(TWO[:1], tmp_path, budget="smoke", callback=callback)
    assert callback.results[-1] == ("layer_norm_length", False)
    assert {row["seed"] for row in found["layer_norm_length"].rows} == {0, 1, 2}


def test_crash_is_a_result_and_other_claims_run(tmp_path, monkeypatch):
    def broken(self, at):
        raise RuntimeError("no such\nthing")
        yield

    with monkeypatch.context() as patch:
        patch.setattr(LayerNormLength, "measure", broken)
        found = run_claims(TWO, tmp_path, budget="smoke")
    assert found["layer_norm_length"].answer == "crashed"
    assert found["layer_norm_length"].why == "RuntimeError: no such thing"
    assert "Traceback" in (tmp_path / "layer_norm_length" / "error.txt").read_text()
    assert found["rank_collapse"].verdict is not None
    assert read_results(tmp_path)["layer_norm_length"].answer == "crashed"
    again = run_claims(TWO, tmp_path, budget="smoke")
    assert again["layer_norm_length"].answer == "held"
    assert not (tmp_path / "layer_norm_length" / "error.txt").exists()


@pytest.mark.parametrize("problem", [KeyboardInterrupt, DiskFullError("full")])
def test_fatal_error_stops_run_and_keeps_results(tmp_path, monkeypatch, problem):
    def stopped(self, at):
        raise problem
        yield

    monkeypatch.setattr(RankCollapse, "measure", stopped)
    with pytest.raises(problem if isinstance(problem, type) else type(problem)):
        run_claims(TWO, tmp_path, budget="smoke")
    assert list(read_results(tmp_path)) == ["layer_norm_length"]


def test_folder_holds_one_budget(tmp_path, monkeypatch):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    with pytest.raises(UserError, match=r"budget: expected 'smoke', .* got 'full'; choose"):
        run_claims(TWO, tmp_path, budget="full")


def test_unknown_names_are_rejected_before_run(tmp_path):
    with pytest.raises(
        UnknownNameError, match="unknown claim 'rank_colapse'; did you mean 'rank_coll"
    ):
        run_claims(["layer_norm_length", "rank_colapse"], tmp_path / "new", budget="smoke")
    with pytest.raises(UnknownNameError, match="unknown budget 'smok'; did you mean 'smoke'"):
        run_claims(TWO, tmp_path / "new", budget="smok")
    assert not (tmp_path / "new").exists()
    assert [type(claim) for claim in find_claims([TWO[0], TWO[0]])] == [LayerNormLength]


def test_file_as_output_folder_is_rejected(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=r"expected a new or empty output folder, .*file, which is a file"
    ):
        run_claims(TWO, tmp_path / "file", budget="smoke")


def test_result_stores_provenance_and_command(tmp_path):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    result = json.loads((tmp_path / TWO[0] / RESULT).read_text())
    assert result["command"] == "addnorm claims run layer_norm_length --budget smoke -o claims"
    assert {"addnorm", "torch", "python", "processor"} <= set(result["made"])
    assert result["rows"] == len((tmp_path / TWO[0] / ROWS).read_text().splitlines())


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (RESULT, '{"claim": "layer_norm_length"}', "KeyError"),
        (RESULT, "{", "is not JSON"),
        (ROWS, '{"name": "sum", "value": 1, "seed": 0, "dim": 16}\n', "expected 12 rows, got 1"),
        (ROWS, None, "there is no such file"),
    ],
)
def test_damaged_result_raises_user_error(tmp_path, file, text, message):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    path = tmp_path / TWO[0] / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(UserError, match=f"is not the result of a claim .*{message}.*; remove it"):
        run_claims(TWO[:1], tmp_path, budget="smoke")


def test_stored_rows_are_judged_by_current_rule(tmp_path, monkeypatch):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    bad = [Check("bad", Estimate(1.0, 0.1, 3), high=0)]
    monkeypatch.setattr(LayerNormLength, "checks", lambda self, rows: bad)
    callback = RecordingCallback()
    assert (
        run_claims(TWO[:1], tmp_path, budget="smoke", callback=callback)[TWO[0]].answer
        == "not held"
    )
    assert callback.results == [(TWO[0], True)]
    result = json.loads((tmp_path / TWO[0] / RESULT).read_text())
    assert result["verdict"]["answer"] == "not held"


def test_changed_revision_is_run_again(tmp_path, monkeypatch):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    before = LayerNormLength().digest("smoke")
    monkeypatch.setattr(LayerNormLength, "revision", 2)
    callback = RecordingCallback()
    found = run_claims(TWO[:1], tmp_path, budget="smoke", callback=callback)
    assert callback.results[-1] == (TWO[0], False)
    assert found[TWO[0]].digest != before


def test_folder_with_other_files_is_rejected(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"which contains thesis\.tex, \.\.\. and no claims"):
        run_claims(TWO, tmp_path, budget="smoke")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


def test_user_error_is_not_a_crash(tmp_path, monkeypatch):
    def refused(self, at):
        raise UserError("wrong")
        yield

    monkeypatch.setattr(RankCollapse, "measure", refused)
    with pytest.raises(UserError, match="wrong"):
        run_claims(TWO, tmp_path, budget="smoke")
    assert list(read_results(tmp_path)) == TWO[:1]


def test_run_restores_torch_generator(tmp_path):
    import torch

    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    run_claims(TWO[:1], tmp_path, budget="smoke")
    assert torch.rand(1) == expected


def test_registry_is_complete():
    assert len(registry) >= 30
