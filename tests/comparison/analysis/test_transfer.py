"""Transfer of the best learning rate, on losses that are known."""

import math
from dataclasses import dataclass, replace

import pytest

from addnorm.comparison.analysis.transfer import analyze_transfer
from addnorm.comparison.grid import Arm, Cell


@dataclass(frozen=True)
class Ended:
    cell: Cell
    loss: float
    state: str = "trained"
    end: None = None


def make_cells(best, *, rates=(1e-3, 2e-3, 4e-3, 8e-3, 16e-3), wiring="pre_ln"):
    """Return cells whose loss is a parabola in log2(lr), lowest at best[depth, dim]."""
    return [
        Ended(
            Cell(Arm(wiring, extras=(("dim", dim),)), depth, 0, rate, seed),
            1.0 + 0.1 * (math.log2(rate) - math.log2(lowest)) ** 2 + 0.001 * seed,
        )
        for (depth, dim), lowest in best.items()
        for rate in rates
        for seed in range(2)
    ]


def test_rate_that_stays():
    (result,) = analyze_transfer(make_cells({(4, 64): 4e-3, (8, 64): 4e-3, (4, 128): 4.4e-3}))
    assert [curve.name for curve in result.curves] == [
        *("depth 4, dim 64", "depth 8, dim 64", "depth 4, dim 128")
    ]
    assert result.base.best[0] == 4e-3
    assert result.curves[2].vertex == pytest.approx(4.4e-3, rel=1e-6)
    assert not result.moved()
    assert "stays the best of all 2 larger sizes" in result.sentence()
    assert result.to_dict()["stays_best"]


def test_rate_that_moves_and_its_cost():
    (result,) = analyze_transfer(make_cells({(4, 64): 8e-3, (16, 64): 2e-3}))
    ((curve, cost),) = result.costs()
    assert curve.depth == 16
    assert cost == pytest.approx(0.1 * 2**2)
    assert "is not the best of 1 of 1 larger sizes (0.002 at depth 16, dim 64)" in result.sentence()
    assert "+0.400" in result.sentence()


def test_rates_that_fail_are_left_out():
    cells = make_cells({(4, 64): 8e-3, (16, 64): 8e-3})
    cells = [
        Ended(each.cell, math.nan, "diverged")
        if each.cell.depth == 16 and each.cell.lr >= 8e-3
        else each
        for each in cells
    ]
    (result,) = analyze_transfer(cells)
    assert result.curves[1].failed == (8e-3, 16e-3)
    assert result.curves[1].best[0] == 4e-3
    assert result.curves[1].vertex is None  # at an end of what trained
    assert "it fails there" in result.sentence()


def test_arms_are_separate_and_nothing_trains():
    cells = make_cells({(4, 64): 4e-3}) + make_cells({(4, 64): 4e-3}, wiring="post_ln")
    assert [each.arm for each in analyze_transfer(cells)] == ["pre_ln", "post_ln"]
    dead = [Ended(each.cell, math.inf, "diverged") for each in cells[:10]]
    assert "no learning rate trains" in analyze_transfer(dead)[0].sentence()


def test_warmups_are_not_averaged():
    cells = make_cells({(4, 64): 2e-3, (8, 64): 2e-3})
    others = make_cells({(4, 64): 8e-3, (8, 64): 8e-3})
    others = [replace(each, cell=replace(each.cell, warmup=100)) for each in others]
    first, second = analyze_transfer(cells + others)
    assert (first.arm, second.arm) == ("pre_ln warmup=0", "pre_ln warmup=100")
    assert (first.base.best[0], second.base.best[0]) == (2e-3, 8e-3)


def test_cells_that_did_not_end_are_not_failures():
    cells = make_cells({(4, 64): 4e-3, (8, 64): 4e-3})
    waiting = [Ended(each.cell, math.nan, "waiting") for each in cells[-2:]]
    (result,) = analyze_transfer(cells[:-2] + waiting)
    assert not result.curves[1].failed and len(result.curves[1].losses) == 4


def test_best_rate_at_the_end_of_the_grid_is_said():
    (inside,) = analyze_transfer(make_cells({(4, 64): 4e-3, (8, 64): 4e-3}))
    assert not inside.warning()
    (outside,) = analyze_transfer(make_cells({(4, 64): 4e-3, (8, 64): 1e-4}))
    assert "a better rate may lie beyond" in outside.warning()
    assert "depth 8, dim 64" in outside.warning() and "depth 4" not in outside.warning()


def test_sizes_that_did_not_train_are_said():
    """All rates of 8 layers are stuck: that their best rate is that of 4 layers says nothing."""
    cells = make_cells({(4, 64): 4e-3, (8, 64): 4e-3})
    cells = [replace(each, state="stuck") if each.cell.depth == 8 else each for each in cells]
    (result,) = analyze_transfer(cells)
    assert "no learning rate trains at depth 8, dim 64, so that" in result.warning()
    assert not result.moved() and not result.to_dict()["stays_best"]
    (nothing,) = analyze_transfer([replace(each, state="stuck") for each in cells])
    assert "no learning rate trains at any size" in nothing.warning()
