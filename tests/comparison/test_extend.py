"""Learning rates and seeds that a comparison adds by itself."""

import math
import random

import pytest
import yaml

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.engines.base import Engine, Event
from addnorm.comparison.extend import Budget, next_learning_rate
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import Estimate, sequential_level
from addnorm.core.errors import UserError
from tests.train.cases import write_number_corpus

KEYS = {"task": "translate", "depth": 1, "seeds": 2, "dim": 8, "heads": 2, "steps": 5, "score": 0}


class ScriptedEngine(Engine):
    """Writes results of known loss instead of training."""

    workers = 1

    def __init__(self, loss_of):
        super().__init__()
        self.loss_of, self.trained = loss_of, []

    def run(self, jobs, on_event, stop_flag):
        for job in jobs:
            job.folder.mkdir(parents=True, exist_ok=True)
            loss = self.loss_of(job.name)
            ending = "done" if math.isfinite(loss) else "diverged"
            result = CellResult(ending, step=5, loss=loss, lowest=loss, recent=loss, seconds=60)
            result.save(job.folder)
            self.trained.append(job.name)
            on_event(Event(job, "ended", 5, loss, result))


def run(tmp_path, loss_of, *, until=None, budget=None, **keys):
    write_number_corpus(tmp_path / "corpus")
    spec = parse_comparison(KEYS | {"data": str(tmp_path / "corpus")} | keys)
    engine = ScriptedEngine(lambda name: loss_of(*parse_name(name)))
    study = run_comparison(spec, tmp_path / "study", engine=engine, until=until, budget=budget)
    return study, engine


def parse_name(name):
    """Return wiring, learning rate and seed from the name of a cell."""
    wiring, rest = name.split("-d1-w0-lr")
    lr, seed = rest.rsplit("-s", 1)
    return wiring, float(lr), int(seed)


def bowl(best_lr):
    """Return a loss with its lowest value at one learning rate."""
    return lambda wiring, lr, seed: 0.1 + 0.1 * abs(math.log10(lr / best_lr)) + 1e-3 * seed


@pytest.mark.parametrize(
    "best_lr, added, edge",
    [
        (1e-3, [], ""),
        (3e-2, [0.03, 0.1], ""),
        (1e-4, [1e-4, 3e-5], ""),
        (100.0, [0.03, 0.1, 0.3], "highest"),
        (1e-9, [1e-4, 3e-5, 1e-5], "lowest"),
    ],
)
def test_sweep_goes_on_until_the_best_rate_is_inside(tmp_path, best_lr, added, edge):
    study, _ = run(tmp_path, bowl(best_lr), wiring="pre_ln", lr="sweep")
    assert [each.grids[0].lr[0] for each in study.spec.extensions] == added
    assert study.summary[0].edge == edge
    assert any("Open end" in sentence for sentence in study.verdict) == bool(edge)
    if edge:
        assert f"({edge} lr tried)" in study.summary[0].format_best()


def test_chosen_rates_are_not_extended_but_the_open_end_is_named(tmp_path):
    study, engine = run(tmp_path, bowl(1.0), wiring="pre_ln,b2t", lr="1e-3,3e-3")
    assert not study.spec.extensions and len(engine.trained) == 8
    expected = (
        "Open end at depth 1: the best learning rate of pre_ln (0.003) and b2t (0.003) is the "
        "highest that was tried; a higher one may be better."
    )
    assert expected in study.verdict


def test_a_single_rate_has_no_end(tmp_path):
    study, _ = run(tmp_path, bowl(1.0), wiring="pre_ln", lr="1e-3")
    assert study.summary[0].edge == ""


def test_only_the_open_arm_is_extended_with_all_its_seeds(tmp_path):
    def loss(wiring, lr, seed):
        return bowl(3e-2 if wiring == "b2t" else 1e-3)(wiring, lr, seed)

    study, _ = run(tmp_path, loss, wiring="pre_ln,b2t", lr="sweep")
    added = [cell for each in study.spec.extensions for cell in each.cells()]
    assert {cell.arm.wiring for cell in added} == {"b2t"}
    assert {cell.seed for cell in added} == {0, 1}
    assert {line.edge for line in study.summary} == {""}


def test_an_arm_that_diverges_everywhere_gets_lower_rates(tmp_path):
    def loss(wiring, lr, seed):
        return bowl(1e-4)(wiring, lr, seed) if wiring == "b2t" and lr < 2e-4 else math.nan

    study, _ = run(tmp_path, loss, wiring="b2t,pre_ln", lr="sweep")
    best = {line.arm.wiring: line.best for line in study.summary}
    assert best["b2t"].lr == 1e-4
    assert best["pre_ln"] is None
    tried = {cell.lr for cell in study.spec.cells() if cell.arm.wiring == "pre_ln"}
    assert min(tried) == 1e-5  # bounded


def test_an_arm_that_is_stuck_goes_on_where_its_loss_falls(tmp_path):
    """As with few steps: no rate trained, and the highest one came closest."""
    best, slow = bowl(3e-3), bowl(10.0)

    def loss(wiring, lr, seed):
        return best(wiring, lr, seed) if wiring == "pre_ln" else 20 + slow(wiring, lr, seed)

    study, _ = run(tmp_path, loss, wiring="pre_ln,rezero", lr="sweep")
    added = [(each.grids[0].wiring[0], each.grids[0].lr[0]) for each in study.spec.extensions]
    assert added == [("rezero", 0.03), ("rezero", 0.1), ("rezero", 0.3)]
    line = study.summary[1]
    assert (line.best, line.closest.lr, line.edge) == (None, 0.3, "highest")
    assert line.format_best() == "none trained (lowest loss at the highest lr tried)"
    (sentence,) = [each for each in study.verdict if each.startswith("Open end")]
    assert "the learning rate with the lowest loss of rezero (0.3) is the highest" in sentence
    assert sentence.endswith("a higher one may train.")


def test_advice_follows_the_end_with_the_lowest_loss(tmp_path):
    slow = bowl(10.0)
    study, _ = run(tmp_path, lambda *cell: 20 + slow(*cell), wiring="pre_ln", lr="1e-3,3e-3")
    assert "no cell trained: try more steps, higher learning rates" in study.verdict[0]
    assert any(sentence.startswith("Open end") for sentence in study.verdict)


def test_extensions_are_recorded_and_resumed(tmp_path):
    study, engine = run(tmp_path, bowl(3e-2), wiring="pre_ln", lr="sweep")
    stored = yaml.safe_load((study.folder / "comparison.yaml").read_text())
    assert [each["reason"] for each in stored["extensions"]] == ["lr", "lr"]
    again, engine = run(tmp_path, bowl(3e-2), wiring="pre_ln", lr="sweep")
    assert engine.trained == [] and again.spec == study.spec
    repeated = parse_comparison(stored)  # as `addnorm compare -c comparison.yaml` reads it
    assert repeated == study.spec and Study.open(study.folder).spec == study.spec


def noisy(gap):
    """Return a loss that differs by `gap` between two arms; the seeds alternate around it."""

    def loss(wiring, lr, seed):
        return 0.5 + ((0.01 * (-1) ** seed + gap) if wiring == "b2t" else 0.0)

    return loss


def test_seeds_are_added_until_decided(tmp_path):
    keys = {"wiring": "pre_ln,b2t", "lr": "1e-3"}
    first, _ = run(tmp_path, noisy(0.01), **keys)
    assert first.summary[1].is_undecided and not first.spec.extensions
    budget = Budget(cells=400)
    study, engine = run(tmp_path, noisy(0.01), until="decided", budget=budget, **keys)
    assert study.spec.num_looks > 1 and not any(line.is_undecided for line in study.summary)
    assert study.spec.confidence_level == 1 - 0.05 / 2 ** (study.spec.num_looks + 1)
    counts = {line.loss.count for line in study.summary}
    assert len(counts) == 1 and len(engine.trained) == 2 * counts.pop() - 4


@pytest.mark.parametrize("cells", [1, 3, 10])
def test_budget_of_cells_is_kept(tmp_path, cells):
    keys = {"wiring": "pre_ln,b2t", "lr": "1e-3", "until": "decided"}
    _, engine = run(tmp_path, noisy(0.0), budget=Budget(cells=cells), **keys)
    assert cells - 2 < len(engine.trained) - 4 <= cells
    _, engine = run(tmp_path, noisy(0.0), budget=Budget(cells=cells), **keys)
    assert engine.trained == []  # also by a second call


def test_budget_of_minutes_is_kept(tmp_path):
    keys = {"wiring": "pre_ln,b2t", "lr": "1e-3", "until": "decided"}
    _, engine = run(tmp_path, noisy(0.0), budget=Budget(minutes=1.5), **keys)
    assert len(engine.trained) == 4  # the next two cells would take two minutes


def test_decided_arms_get_no_seeds(tmp_path):
    def loss(wiring, lr, seed):
        return noisy(0.0)(wiring, lr, seed) + (0.3 if wiring == "rezero" else 0.0)

    study, _ = run(tmp_path, loss, wiring="pre_ln,b2t,rezero", lr="1e-3", seeds=3, until="decided")
    counts = {line.arm.wiring: line.loss.count for line in study.summary}
    assert counts["rezero"] == 3 and counts["pre_ln"] == counts["b2t"] > 3


def test_looking_repeatedly_keeps_the_error_rate():
    """Two equal arms, looked at after 3, 4, 6, 9, ... seeds: rarely called different."""
    rng, wrong = random.Random(0), 0
    for _ in range(400):
        differences, looks = [rng.gauss(0, 1) for _ in range(3)], 0
        while len(differences) < 40:
            level = sequential_level(looks)
            if Estimate.from_values(differences, level=level).excludes_zero:
                wrong += 1
                break
            differences += [rng.gauss(0, 1) for _ in range(len(differences) // 2)]
            looks += 1
    assert wrong <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_best_setting_is_chosen_on_the_common_seeds(tmp_path):
    """Seeds that only one setting has do not change which setting is best."""

    def loss(wiring, lr, seed):
        level = {1e-3: 0.50, 3e-3: 0.51}[lr] + (0.2 if wiring == "b2t" and seed > 1 else 0.0)
        return level + random.Random(f"{wiring}{lr}{seed}").gauss(0, 1e-3)

    keys = {"wiring": "pre_ln,b2t", "lr": "1e-3,3e-3", "until": "decided"}
    study, _ = run(tmp_path, loss, budget=Budget(cells=8), **keys)
    assert {line.best.lr for line in study.summary} == {1e-3}


@pytest.mark.parametrize("text", ["", "0", "-3", "many", "3 weeks", "1.5h", "5 cells per arm"])
def test_invalid_budgets(text):
    with pytest.raises(UserError, match="budget: expected"):
        Budget.parse(text)


def test_invalid_until(tmp_path):
    with pytest.raises(UserError, match="until: expected decided"):
        run(tmp_path, noisy(0.0), wiring="pre_ln", lr="1e-3", until="tomorrow")


def test_ladder_of_learning_rates():
    lr, seen = 3e-4, []
    for _ in range(4):
        lr = next_learning_rate(lr, up=True)
        seen.append(lr)
    assert seen == [1e-3, 3e-3, 1e-2, 3e-2]
    assert next_learning_rate(2.5e-3, up=True) == 1e-2  # 3e-3 would be too close
    assert next_learning_rate(2e-3, up=False) == 1e-3


def test_digest_of_a_comparison_without_extensions_is_unchanged():
    spec = Comparison()
    assert spec.digest == spec.without_extensions().digest
    assert "extensions" not in spec.canonical_dict() and "extend_lr" not in spec.canonical_dict()
