"""Claims from names to results: what is repeated, what is refused, what survives a crash."""

import json

import pytest

from addnorm.claims import LayerNormLength, RankCollapse, read_results, registry, run_claims
from addnorm.claims.callbacks import ClaimsCallback
from addnorm.claims.checks import Check
from addnorm.claims.result import RESULT, ROWS, is_claims_folder
from addnorm.claims.runner import find_claims
from addnorm.comparison.cell import DiskFullError
from addnorm.comparison.statistics import Estimate
from addnorm.core.errors import UnknownNameError, UserError

TWO = ["layer_norm_length", "rank_collapse"]


class Heard(ClaimsCallback):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def on_claim_start(self, claim, *, number, total):
        self.told.append(("began", number, total))

    def on_claim_end(self, claim, result, *, cached):
        self.told.append((result.claim, cached))


def test_what_has_a_verdict_is_not_run_again(tmp_path):
    first, second = Heard(), Heard()
    run_claims(TWO[:1], tmp_path, budget="smoke", callback=first)
    found = run_claims(TWO, tmp_path, budget="smoke", callback=second)
    assert first.told == [("began", 1, 1), ("layer_norm_length", False)]
    assert second.told == [
        ("layer_norm_length", True),
        ("began", 2, 2),
        ("rank_collapse", False),
    ]
    assert list(read_results(tmp_path)) == list(found) == TWO
    assert is_claims_folder(tmp_path) and not is_claims_folder(tmp_path / "layer_norm_length")


def test_other_settings_are_run_again(tmp_path, monkeypatch):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    budgets = dict(LayerNormLength.budgets) | {"smoke": {"seeds": 3, "dims": [16, 64]}}
    monkeypatch.setattr(LayerNormLength, "budgets", budgets)
    heard = Heard()
    found = run_claims(TWO[:1], tmp_path, budget="smoke", callback=heard)
    assert heard.told[-1] == ("layer_norm_length", False)
    assert {row["seed"] for row in found["layer_norm_length"].rows} == {0, 1, 2}


def test_a_crash_is_a_result_and_the_others_go_on(tmp_path, monkeypatch):
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
def test_what_is_everybodys_ends_it_and_leaves_what_is_done(tmp_path, monkeypatch, problem):
    def stopped(self, at):
        raise problem
        yield

    monkeypatch.setattr(RankCollapse, "measure", stopped)
    with pytest.raises(problem if isinstance(problem, type) else type(problem)):
        run_claims(TWO, tmp_path, budget="smoke")
    assert list(read_results(tmp_path)) == ["layer_norm_length"]


def test_a_folder_is_of_one_budget(tmp_path, monkeypatch):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    with pytest.raises(UserError, match="holds claims of budget 'smoke', wanted 'full'; choose"):
        run_claims(TWO, tmp_path, budget="full")


def test_names_that_are_none_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(
        UnknownNameError, match="unknown claim 'rank_colapse'; did you mean 'rank_coll"
    ):
        run_claims(["layer_norm_length", "rank_colapse"], tmp_path / "new", budget="smoke")
    with pytest.raises(UnknownNameError, match="unknown budget 'smok'; did you mean 'smoke'"):
        run_claims(TWO, tmp_path / "new", budget="smok")
    assert not (tmp_path / "new").exists()
    assert [type(claim) for claim in find_claims([TWO[0], TWO[0]])] == [LayerNormLength]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file is a file; wanted a new folder"):
        run_claims(TWO, tmp_path / "file", budget="smoke")


def test_a_result_says_who_made_it_and_how_to_do_it_again(tmp_path):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    told = json.loads((tmp_path / TWO[0] / RESULT).read_text())
    assert told["command"] == "addnorm claims run layer_norm_length --budget smoke -o claims"
    assert {"addnorm", "torch", "python", "processor"} <= set(told["made"])
    assert told["rows"] == len((tmp_path / TWO[0] / ROWS).read_text().splitlines())


@pytest.mark.parametrize(
    ("file", "text", "told"),
    [
        (RESULT, '{"claim": "layer_norm_length"}', "KeyError"),
        (RESULT, "{", "is not JSON"),
        (ROWS, '{"name": "sum", "value": 1, "seed": 0, "dim": 16}\n', "has 1 rows of 12"),
        (ROWS, None, "there is no such file"),
    ],
)
def test_a_damaged_result_is_told(tmp_path, file, text, told):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    path = tmp_path / TWO[0] / file
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(UserError, match=f"does not tell .*{told}.*; remove it, and run the claim"):
        run_claims(TWO[:1], tmp_path, budget="smoke")


def test_a_verdict_is_given_again_by_the_rule_of_today(tmp_path, monkeypatch):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    bad = [Check("bad", Estimate(1.0, 0.1, 3), high=0)]
    monkeypatch.setattr(LayerNormLength, "checks", lambda self, rows: bad)
    heard = Heard()
    assert (
        run_claims(TWO[:1], tmp_path, budget="smoke", callback=heard)[TWO[0]].answer == "not held"
    )
    assert heard.told == [(TWO[0], True)]
    told = json.loads((tmp_path / TWO[0] / RESULT).read_text())
    assert told["verdict"]["answer"] == "not held"


def test_another_revision_is_run_again(tmp_path, monkeypatch):
    run_claims(TWO[:1], tmp_path, budget="smoke")
    before = LayerNormLength().digest("smoke")
    monkeypatch.setattr(LayerNormLength, "revision", 2)
    heard = Heard()
    found = run_claims(TWO[:1], tmp_path, budget="smoke", callback=heard)
    assert heard.told[-1] == (TWO[0], False)
    assert found[TWO[0]].digest != before


def test_a_folder_of_others_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match=r"holds other things \(thesis.tex, ...\) and no claims"):
        run_claims(TWO, tmp_path, budget="smoke")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


def test_what_the_user_must_mend_is_no_crash(tmp_path, monkeypatch):
    def refused(self, at):
        raise UserError("wrong")
        yield

    monkeypatch.setattr(RankCollapse, "measure", refused)
    with pytest.raises(UserError, match="wrong"):
        run_claims(TWO, tmp_path, budget="smoke")
    assert list(read_results(tmp_path)) == TWO[:1]


def test_seeds_leave_the_generator_alone(tmp_path):
    import torch

    torch.manual_seed(5)
    wanted = torch.rand(1)
    torch.manual_seed(5)
    run_claims(TWO[:1], tmp_path, budget="smoke")
    assert torch.rand(1) == wanted


def test_the_registry_is_the_list():
    assert len(registry) >= 30
