"""Sentences of the verdict in every state of a comparison."""

from dataclasses import replace

import pytest

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.analysis.verdict import build_verdict
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.spec import Extension
from addnorm.comparison.statistics import Estimate
from tests.comparison.synthetic_study import write_synthetic_study


def make_study(tmp_path, outcome, *, extend=None, **values):
    defaults = {"wiring": "pre_ln,b2t", "depth": 6, "lr": "1e-3,3e-3", "seeds": 3, "warmup": 0}
    spec = parse_comparison(defaults | values)
    spec = spec if extend is None else spec.extend(extend(spec))
    return Study.open(write_synthetic_study(tmp_path / "study", spec, outcome, site_rows=False))


def wait_for(wiring, first_seed=0, otherwise="trained"):
    """Return the outcome of a comparison that was interrupted in the cells of one arm."""

    def outcome(cell):
        is_waiting = cell.arm.wiring == wiring and cell.seed >= first_seed
        return "waiting" if is_waiting else otherwise

    return outcome


def test_unfinished_arm_does_not_make_the_other_one_the_only_one_that_trained(tmp_path):
    study = make_study(tmp_path, wait_for("b2t"))
    assert study.verdict[0].startswith("At depth 6 the best so far is pre_ln with ")
    assert study.verdict[0].endswith("; b2t has not trained yet.")


def test_failed_arm_does_make_it(tmp_path):
    study = make_study(tmp_path, lambda c: "stuck" if c.arm.wiring == "b2t" else "trained")
    assert study.verdict[0].startswith("At depth 6 the best is pre_ln with ")
    assert study.verdict[0].endswith("; only this arm trained.")


def test_unfinished_seeds_are_not_failed_ones(tmp_path):
    study = make_study(tmp_path, wait_for("pre_ln", first_seed=1), wiring="pre_ln")
    assert "(2 of its seeds not finished)" in study.verdict[0]
    assert "not with every seed" not in " ".join(study.verdict)
    assert study.summary[0].format_best().endswith("2 of its seeds not finished)")


def test_lower_loss_with_unfinished_seeds_is_not_a_failure(tmp_path):
    study = make_study(tmp_path, wait_for("b2t", first_seed=2), lr=1e-3)
    lower = Estimate(-0.1, 0.01, 2)
    lines = [each if each.leads else replace(each, behind=lower) for each in study.summary]
    first = build_verdict(lines, study.cells, seeds=3)[0]
    assert first.endswith("; b2t has a lower loss, but not all seeds are finished.")


@pytest.mark.parametrize("outcome", ["stuck", "trained"])
def test_unfinished_arms_have_no_open_end(tmp_path, outcome):
    """The second rate is not finished and may be the better one."""
    study = make_study(tmp_path, lambda cell: "waiting" if cell.lr > 1e-3 else outcome)
    assert {line.edge for line in study.summary} == {""}
    assert not any(sentence.startswith("Open end") for sentence in study.verdict)


def test_what_is_known_so_far_is_marked_as_such(tmp_path):
    def outcome(cell):
        if cell.warmup == 0:
            return "stuck" if cell.seed == 0 else "waiting"
        return "trained"

    study = make_study(tmp_path, outcome, wiring="pre_ln", warmup="0,100", lr=1e-3)
    assert study.verdict[1] == (
        "At depth 6 pre_ln so far trained only with warm-up (1 stuck, 2 not finished)."
    )


def test_seeds_that_were_added_count(tmp_path):
    """`--seeds 1 --until decided`: the noise is known as soon as there are several seeds."""

    def extend(spec):
        return Extension(reason="seeds", grids=spec.grids, seeds=(0, 1, 2))

    verdict = make_study(tmp_path, None, extend=extend, seeds=1, lr=1e-3).verdict
    assert not any("one seed" in sentence.lower() for sentence in verdict)
    assert not any("Two seeds" in sentence for sentence in verdict)


def test_nothing_is_known_about_an_arm_that_crashed(tmp_path):
    study = make_study(tmp_path, lambda c: "crashed" if c.arm.wiring == "b2t" else "trained")
    line = next(each for each in study.summary if each.arm.name == "b2t")
    assert line.stable[0].format() == "unknown"
    assert line.format_best() == "none ran to its end"
