"""Summary and verdict of comparisons whose outcome is known."""

import json
import math
from dataclasses import replace
from statistics import stdev

import pytest

from addnorm.comparison.analysis.arm_summary import Setting
from addnorm.comparison.analysis.export import study_to_dict
from addnorm.comparison.analysis.significance import describe_chance
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.analysis.summary import _mark_best
from addnorm.comparison.analysis.verdict import build_verdict
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.statistics import Estimate, detectable_difference, simultaneous_half_width
from addnorm.core.errors import UserError
from addnorm.core.files import write_json
from addnorm.report.comparison.page import write_comparison_report
from tests.comparison.synthetic_study import typical_outcome, write_synthetic_study


def make_study(tmp_path, outcome=None, **values):
    defaults = {"wiring": "post_ln,pre_ln,b2t", "depth": "6,12", "lr": "1e-3,3e-3,1e-2", "seeds": 3}
    spec = parse_comparison(defaults | {"warmup": "0,100"} | values)
    return Study.open(write_synthetic_study(tmp_path / "study", spec, outcome, site_rows=False))


def line_of(study, arm, depth):
    return next(each for each in study.summary if (each.arm.name, each.depth) == (arm, depth))


def test_every_cell_is_counted_once(tmp_path):
    study = make_study(tmp_path)
    assert sum(sum(line.states.values()) for line in study.summary) == len(study.cells) == 108
    assert line_of(study, "post_ln", 12).states == {"stuck": 6, "trained": 6, "diverged": 6}
    assert line_of(study, "pre_ln", 6).states == {"trained": 12, "diverged": 6}


def test_stable_ranges_are_those_where_every_seed_trained(tmp_path):
    def outcome(cell):
        unlucky = cell.arm.wiring == "b2t" and cell.lr == 1e-3 and cell.seed == 1
        return "diverged" if unlucky else typical_outcome(cell)

    study = make_study(tmp_path, outcome)
    assert [each.format() for each in line_of(study, "post_ln", 6).stable] == [
        "none",
        "0.001 to 0.003",
    ]
    assert [each.format() for each in line_of(study, "b2t", 6).stable] == ["0.003", "0.003"]


def test_stable_range_with_gap(tmp_path):
    study = make_study(
        tmp_path, lambda cell: "stuck" if cell.lr == 3e-3 else "trained", wiring="pre_ln"
    )
    assert study.summary[0].stable[0].format() == "0.001, 0.01"


def test_best_setting_prefers_trained_seeds_over_lower_loss(tmp_path):
    """A setting in which one of three seeds failed is not the best, despite its lower loss."""

    def outcome(cell):
        if cell.lr == 1e-3:
            return "slow"
        return "stuck" if cell.seed == 2 else "trained"

    study = make_study(tmp_path, outcome, wiring="pre_ln", warmup=0, lr="1e-3,3e-3")
    line = line_of(study, "pre_ln", 6)
    assert line.best == Setting(0, 1e-3)
    assert line.whole


def test_failed_seeds_are_not_averaged(tmp_path):
    study = make_study(
        tmp_path,
        lambda cell: "diverged" if cell.seed == 0 else "trained",
        wiring="pre_ln,b2t",
        warmup=0,
        lr=1e-3,
    )
    line = line_of(study, "pre_ln", 6)
    assert line.states == {"diverged": 1, "trained": 2}
    assert not line.whole
    assert line.stable[0].trained == ()
    assert "(not with every seed)" in study.verdict[0]


def test_verdict_names_arms_that_needed_warmup(tmp_path):
    study = make_study(tmp_path, lr="1e-3,3e-3")
    verdict = " ".join(study.verdict)
    assert (
        "At depth 12 pre_ln and b2t trained at every setting; post_ln trained only with" in verdict
    )
    assert study.verdict[0].startswith("At depth 12 the best is ")


def test_verdict_names_too_high_learning_rates(tmp_path):
    study = make_study(tmp_path, wiring="pre_ln,b2t")
    assert "pre_ln and b2t trained only at learning rates up to 0.003" in study.verdict[1]


def test_no_best_arm_if_none_trained(tmp_path):
    study = make_study(tmp_path, lambda cell: "stuck", wiring="pre_ln", depth=6)
    assert study.summary[0].best is None
    assert study.verdict[0].startswith("At depth 6 no cell trained")
    assert "did not train (18 stuck)" in study.verdict[1]


def test_one_seed_has_caution_and_no_interval(tmp_path):
    study = make_study(tmp_path, seeds=1)
    line = line_of(study, "pre_ln", 6)
    assert line.loss.half is None
    assert "noise is unknown" in study.verdict[0]
    assert study.verdict[-1].startswith("One seed gives no estimate of the noise")


def test_arm_with_failed_seeds_does_not_lead(tmp_path):
    def outcome(cell):
        if cell.arm.wiring == "pre_ln":
            return "slow"
        return "stuck" if cell.seed == 2 else "trained"

    study = make_study(tmp_path, outcome, wiring="pre_ln,b2t", depth=6, lr=1e-3, warmup=0)
    assert line_of(study, "pre_ln", 6).leads
    assert "b2t had a lower loss, but not with every seed" in study.verdict[0]


def test_cut_and_crashed_cells_are_ignored(tmp_path):
    def outcome(cell):
        return {1e-3: "trained", 3e-3: "cut", 1e-2: "crashed"}[cell.lr]

    study = make_study(tmp_path, outcome, wiring="pre_ln", depth=6, warmup="0,100")
    assert study.summary[0].stable[0].tried == (1e-3,)
    assert (
        "pre_ln trained in all 6 cells that ran to the end (6 crashed, 6 stopped by halving)"
        in study.verdict[1]
    )


def test_unfinished_comparison_has_caution(tmp_path):
    study = make_study(tmp_path, lambda cell: "waiting" if cell.seed else typical_outcome(cell))
    assert not study.complete
    assert "72 of 108 cells are not finished" in " ".join(study.verdict)
    nothing = make_study(tmp_path / "b", lambda cell: "waiting")
    assert "no cell has trained yet" in nothing.verdict[0]


def test_crashes_are_counted(tmp_path):
    study = make_study(tmp_path, lambda cell: "crashed" if cell.depth == 12 else "trained")
    assert line_of(study, "b2t", 12).states == {"crashed": 18}
    assert "54 of 108 cells crashed" in " ".join(study.verdict)


def test_speed_is_relative_to_pre_ln_or_first_arm(tmp_path):
    study = make_study(tmp_path)
    assert line_of(study, "pre_ln", 6).speed == 1
    assert line_of(study, "post_ln", 6).reference == "pre_ln"
    other = make_study(tmp_path / "b", wiring="b2t,rezero")
    assert line_of(other, "rezero", 6).reference == "b2t"


def test_speed_is_unknown_if_no_rate_was_measured(tmp_path):
    """A task of one's own that ends within moments has a rate of 0."""
    study = make_study(tmp_path)
    cells = [replace(each, end=replace(each.end, rate=0.0)) for each in study.cells]
    assert all(math.isnan(line.speed) for line in replace(study, cells=tuple(cells)).summary)


def test_differences_are_paired_by_seed(tmp_path):
    study = make_study(tmp_path, lr=1e-3, warmup=100)
    for depth in (6, 12):
        lines = [line for line in study.summary if line.depth == depth]
        best = next(line for line in lines if line.behind is None)
        for line in lines:
            if line is not best:
                mean = sum(line.losses[s] - best.losses[s] for s in range(3)) / 3
                assert line.behind.mean == pytest.approx(mean)


def test_result_is_plain_json(tmp_path):
    study = make_study(tmp_path, lambda cell: "diverged" if cell.seed else "waiting")
    write_json(tmp_path / "result.json", study_to_dict(study))
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result["cells"]) == 108
    assert result["spec"] == study.spec.model_dump(mode="json")
    assert parse_comparison(result["spec"]) == study.spec
    assert {cell["state"] for cell in result["cells"]} == {"diverged", "waiting"}


def test_folder_without_comparison_is_rejected(tmp_path):
    with pytest.raises(UserError, match="expected the output folder of `addnorm compare`"):
        Study.open(tmp_path)


def test_nan_loss_round_trip(tmp_path):
    study = make_study(
        tmp_path, lambda cell: "diverged", wiring="pre_ln", depth=6, lr=1e-3, seeds=1
    )
    assert math.isnan(study.cells[0].loss)
    assert study.cells[0].end.why.startswith("loss nan")


def test_best_arm_without_common_seeds(tmp_path):
    """Only seed 0 of one arm and seed 1 of the other trained: no pair, but one arm leads."""

    def outcome(cell):
        good = cell.seed == (0 if cell.arm.wiring == "pre_ln" else 1)
        return "trained" if good else "stuck"

    study = make_study(tmp_path, outcome, wiring="pre_ln,b2t", depth=6, lr=1e-3, warmup=0, seeds=2)
    leading = [line for line in study.summary if line.leads]
    assert len(leading) == 1
    assert leading[0].loss.mean == min(line.loss.mean for line in study.summary)
    assert f"the best is {leading[0].arm.name} " in study.verdict[0]
    assert all(line.behind is None for line in study.summary)


@pytest.mark.parametrize("text", ["[1, 2]", "{}", "3"])
def test_invalid_cell_result_is_rejected(tmp_path, text):
    study = make_study(tmp_path, wiring="pre_ln", depth=2, lr=1e-3, seeds=1, warmup=0)
    name = study.cells[0].cell.name
    (study.folder / "cells" / f"{name}.json").write_text(text)
    with pytest.raises(UserError, match="is not the result of a cell"):
        Study.open(study.folder)


def test_verdict_names_reason_of_crashes(tmp_path):
    study = make_study(tmp_path, lambda cell: "crashed", wiring="pre_ln", depth=2)
    assert study.verdict[0] == "At depth 2 no cell ran to its end."
    assert "cells crashed (the first: out of memory)" in " ".join(study.verdict)


@pytest.mark.parametrize(("state", "advice"), [("stuck", "other"), ("diverged", "lower")])
def test_advice_at_a_single_learning_rate(tmp_path, state, advice):
    study = make_study(tmp_path, lambda cell: state, wiring="pre_ln", depth=2, lr="1e-3", warmup=0)
    assert f"no cell trained: try more steps, {advice} learning rates" in study.verdict[0]


def test_counts_of_several_arms_are_those_of_each(tmp_path):
    study = make_study(tmp_path, lambda cell: "stuck", wiring="pre_ln,b2t", depth=6)
    assert study.verdict[1] == "At depth 6 pre_ln and b2t did not train (18 stuck each)."


def test_finished_cells_of_several_arms_are_those_of_each(tmp_path):
    study = make_study(
        tmp_path,
        lambda cell: "waiting" if cell.seed else "trained",
        wiring="pre_ln,b2t",
        depth=6,
        warmup=0,
    )
    assert study.verdict[1] == (
        "At depth 6 pre_ln and b2t each trained in all 3 cells that ran to the end "
        "(6 not finished)."
    )


def test_unfinished_arms_are_not_said_to_fail(tmp_path):
    def outcome(cell):
        if cell.arm.wiring == "post_ln" or cell.seed > 0:
            return "waiting"
        return "stuck" if cell.arm.wiring == "b2t" else "trained"

    study = make_study(tmp_path, outcome, depth=6, warmup=0)
    assert study.verdict[1] == (
        "At depth 6 post_ln has not trained yet (9 not finished); pre_ln trained in all 3 cells "
        "that ran to the end (6 not finished); b2t has not trained yet (3 stuck, 6 not finished)."
    )
    assert line_of(study, "b2t", 6).stable[0].format() == "none yet"
    assert line_of(study, "b2t", 6).format_best() == "not finished"
    assert not any("did not train" in sentence for sentence in study.verdict)


def test_several_unfinished_arms_have_not_trained_yet(tmp_path):
    study = make_study(tmp_path, lambda cell: "waiting", wiring="pre_ln,b2t", depth=6, warmup=0)
    assert study.verdict[1] == (
        "At depth 6 pre_ln and b2t have not trained yet (9 not finished each)."
    )


def test_power_of_the_seeds_is_stated(tmp_path):
    study = make_study(tmp_path, wiring="pre_ln,b2t", depth=6, warmup=0, lr="1e-3")
    ours, theirs = (line_of(study, arm, 6) for arm in ("pre_ln", "b2t"))
    smallest = detectable_difference(
        stdev([ours.losses[seed] - theirs.losses[seed] for seed in ours.losses]), 3
    )
    lines = [replace(each, behind=Estimate(0.0, 1.0, 3)) for each in (ours, theirs)]
    verdict = build_verdict(lines, study.cells, seeds=3)
    assert any(f"3 seeds probably miss differences below {smallest:.2g};" in e for e in verdict)
    equal = [replace(ours, losses=ours.losses), replace(lines[1], losses=ours.losses)]
    equal = [replace(each, leads=index == 0) for index, each in enumerate(equal)]
    assert not any("probably miss" in e for e in build_verdict(equal, study.cells, seeds=3))
    nearly = {seed: loss + 1e-15 * seed for seed, loss in ours.losses.items()}
    equal[1] = replace(equal[1], losses=nearly)
    assert not any("probably miss" in e for e in build_verdict(equal, study.cells, seeds=3))
    decided = [replace(each, behind=Estimate(1.0, 0.1, 3)) for each in (ours, theirs)]
    assert not any("probably miss" in e for e in build_verdict(decided, study.cells, seeds=3))


def test_differences_of_many_arms_are_corrected(tmp_path):
    study = make_study(tmp_path, wiring="pre_ln,b2t,rezero,post_ln", depth=6, warmup=0, lr="1e-3")
    shifts = {"pre_ln": (0.0, 0.0, 0.0), "b2t": (0.02, 0.03, 0.04), "rezero": (1.05, 1.0, 1.02)}
    lines = []
    for name, values in shifts.items():
        losses = {seed: 0.5 + shift for seed, shift in enumerate(values)}
        line = replace(line_of(study, name, 6), losses=losses)
        lines.append(replace(line, loss=Estimate.from_values(list(losses.values()))))
    lines = _mark_best([replace(each, leads=False, behind=None) for each in lines], 0.95)
    assert all(each.behind.excludes_zero for each in lines[1:])
    half = simultaneous_half_width([each.losses for each in lines])
    assert 0.03 < half < 1
    assert describe_chance(lines, 0.95) == [
        "With 3 arms at depth 6, some may differ by chance: if the intervals are to hold for all "
        f"pairs together (± {half:.3f}), b2t is within noise, too."
    ]
    assert describe_chance(lines[:2], 0.95) == []  # one pair needs no correction
    assert describe_chance(lines, 0.95)[0] in build_verdict(lines, study.cells, seeds=3)


def test_power_is_that_of_the_seeds_of_undecided_arms(tmp_path):
    """`--until decided` gives more seeds to close arms only."""
    study = make_study(tmp_path, wiring="pre_ln,b2t,post_ln", depth=6, warmup=0, lr="1e-3")
    best, close, worse = (line_of(study, arm, 6) for arm in ("pre_ln", "b2t", "post_ln"))
    losses = {seed: 0.5 + 0.01 * (seed % 3) for seed in range(9)}
    noise = {seed: (seed * 7 % 5 - 2) * 0.01 for seed in range(9)}
    lines = [
        replace(best, losses=losses, leads=True, behind=None),
        replace(
            close,
            losses={seed: losses[seed] + noise[seed] for seed in losses},
            leads=False,
            behind=Estimate(0.0, 1.0, 9),
        ),
        replace(
            worse,
            losses={0: 2.0, 1: 2.5, 2: 3.0},
            loss=Estimate(2.5, 0.5, 3),
            leads=False,
            behind=Estimate(2.0, 0.5, 3),
        ),
    ]
    smallest = detectable_difference(stdev(noise.values()), 9)
    verdict = build_verdict(lines, study.cells, seeds=3)
    assert any(f"9 seeds probably miss differences below {smallest:.2g};" in e for e in verdict)


def test_study_with_an_unregistered_wiring_can_be_read(tmp_path):
    """A wiring that was registered where the comparison ran, and not here."""
    study = make_study(tmp_path, wiring="pre_ln,b2t", depth=6, warmup=0)
    for path in [study.folder / "comparison.yaml", *study.folder.rglob("config.yaml")]:
        path.write_text(path.read_text().replace("b2t", "mine(scale=2)"))
    for path in sorted((study.folder / "cells").iterdir()):
        cell = next(c for c in study.spec.cells() if path.name.startswith(c.name))
        own = replace(cell, arm=replace(cell.arm, wiring="mine(scale=2)"))
        if cell.arm.wiring == "b2t":
            path.rename(path.with_name(path.name.replace(cell.name, own.name)))
    again = Study.open(study.folder)
    assert [line.arm.name for line in again.summary] == ["pre_ln", "mine(scale=2)"]
    assert [each.state for each in again.cells] == [each.state for each in study.cells]
    page = write_comparison_report(study.folder).read_text()
    assert "not drawn: the wiring is not registered in this process" in page
    with pytest.raises(UserError, match="unknown wiring 'mine'"):
        parse_comparison({"wiring": "mine(scale=2)"})
