"""The committed results match the claims of the current code."""

import json
import re
from pathlib import Path

import pytest

from addnorm.claims import read_results, registry, run_claims
from addnorm.claims.deep_training_claims import VeryDeepClaim
from addnorm.claims.result import RESULT
from addnorm.report.claims_page import TABLE_FILE, render_claims_markdown
from tools.claims_docs import copy_results

DOCS = Path(__file__).parents[2] / "docs" / "claims"
COMMITTED = sorted(path.parent.name for path in DOCS.glob(f"*/{RESULT}"))
WAITING: set[str] = {
    "rate_transfers_with_deepnorm",
    "rate_transfers_with_post_ln",
    "rate_transfers_with_pre_ln",
}
"""Claims whose standard budget has not been run yet by the current settings."""


def test_every_claim_is_committed_or_listed_as_waiting():
    assert set(COMMITTED) | WAITING == set(registry)
    assert not set(COMMITTED) & WAITING


def round_floats(value):
    """Round all numbers in nested lists and dicts to twelve digits."""
    if isinstance(value, dict):
        return {key: round_floats(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [round_floats(each) for each in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_verdict_follows_from_rows(name):
    result, claim = read_results(DOCS)[name], registry.member(name)()
    assert result.budget == "standard"
    assert claim.is_current(result.digest, "standard"), "its settings were changed: run it again"
    stored = json.loads((DOCS / name / RESULT).read_text())["verdict"]
    # Versions of NumPy and SciPy differ in the last digit.
    assert round_floats(claim.judge(result.rows).to_dict()) == round_floats(stored)
    assert not any("with changes" in row.get("commit", "") for row in result.rows)
    assert result.made["commit"] and "with changes" not in result.made["commit"]


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_summary_has_all_numbers(name):
    claim, result = registry.member(name)(), read_results(DOCS)[name]
    assert "?" not in claim.summarize(result.verdict)
    assert claim.discussion or result.answer != "not held", "say what was different here"


def test_claims_of_a_field_agree_about_post_ln():
    """The same cells of Post-LN get the same judgement in every claim at the same depth."""
    checks = {
        (check.answer, round(check.found.mean, 6), round(check.found.half, 6))
        for name in COMMITTED
        if issubclass(registry.member(name), VeryDeepClaim)
        for check in read_results(DOCS)[name].verdict.checks
        if check.what == "progress of post_ln"
    }
    assert len(checks) <= 1


@pytest.mark.parametrize("family", ["wirings", "norms"])
def test_catalogue_pages_link_to_the_claims_about_them(family):
    table = (DOCS / TABLE_FILE).read_text(encoding="utf-8")
    for path in (DOCS.parent / "catalogue" / family).glob("*.md"):
        text = path.read_text(encoding="utf-8")
        about = {name for name in registry if path.stem in registry.member(name).about}
        links = re.findall(r"\]\(../../claims/claims\.md(?:#(\w+))?\)", text)
        assert len(links) == max(1, len(about)), path
        assert {link for link in links if link} == about & set(COMMITTED), path
        assert all(f"\n### {link}\n" in table for link in links if link)


def test_committed_files_are_small():
    for path in DOCS.rglob("*"):
        if path.is_file():
            assert path.stat().st_size < 200_000, path
    kinds = {path.name for path in DOCS.glob("*/*")}
    assert kinds <= {RESULT, "rows.jsonl"}


def test_committed_table_matches_results():
    assert (DOCS / TABLE_FILE).read_text(encoding="utf-8") == render_claims_markdown(
        read_results(DOCS)
    )


def test_copy_results_writes_table(tmp_path, monkeypatch):
    run_claims(["layer_norm_length"], tmp_path / "claims", budget="smoke")
    monkeypatch.setattr("tools.claims_docs.DOCS", tmp_path / "docs")
    assert copy_results(tmp_path / "claims") == ["layer_norm_length"]
    assert {path.name for path in (tmp_path / "docs").rglob("*") if path.is_file()} == {
        *(RESULT, "rows.jsonl", TABLE_FILE)
    }
    assert (
        "| [`layer_norm_length`](#layer_norm_length) | held |"
        in (tmp_path / "docs" / TABLE_FILE).read_text()
    )


def test_results_by_earlier_settings_are_not_copied(tmp_path, monkeypatch):
    run_claims(["layer_norm_length"], tmp_path / "claims", budget="smoke")
    monkeypatch.setattr("tools.claims_docs.DOCS", tmp_path / "docs")
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(registry.member("layer_norm_length"), "revision", 2)
    assert copy_results(tmp_path / "claims") == []
