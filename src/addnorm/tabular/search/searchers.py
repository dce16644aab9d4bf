"""Searchers: which parameters to try next, and which trials to stop early.

A searcher is a function of the trials so far and the seed, so that a search that was killed goes on
as if it had not been.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.seeds import derive_seed
from addnorm.tabular.search.dimensions import Dimension
from addnorm.tabular.search.spaces import Space
from addnorm.tabular.search.trials import COMPLETE, FAILED, PRUNED, Trial

STARTUP_TRIALS = 5
"""Complete trials before any is pruned."""
WARMUP_EPOCHS = 2
"""Epochs of a trial before it is pruned."""
RANDOM_TRIALS = 10
"""Trials of "tpe" that are drawn at random."""
HALVING_FACTOR = 3
MIN_ROWS = 200
"""Training rows of the first round of "halving", if there are as many."""


@dataclass(frozen=True)
class Proposal:
    """Parameters to try next."""

    params: dict[str, Any]
    fraction: float = 1.0
    """Fraction of the training rows to use."""
    is_unpromising: Callable[[Sequence[float]], bool] = lambda losses: False
    """Whether to stop, given the validation losses of the epochs so far."""


class Searcher(ABC):
    """Order in which a search tries parameters."""

    def __init__(self, space: Space, *, n_trials: int, seed: int, rows: int) -> None:
        self.space, self.n_trials, self.seed, self.rows = space, n_trials, seed, rows

    @abstractmethod
    def propose(self, trials: Sequence[Trial]) -> Proposal | None:
        """Return what to try after these trials; None ends the search."""

    def draw(self, number: int) -> dict[str, Any]:
        """Return random parameters for a trial; those of the estimator for the first."""
        if not number:
            return {}
        return {
            name: each.rvs(np.random.RandomState(derive_seed(self.seed, name, number) % 2**32))
            for name, each in self.space.items()
        }


class RandomSearcher(Searcher):
    """Independent draws from the space, as in `RandomizedSearchCV`."""

    def propose(self, trials: Sequence[Trial]) -> Proposal | None:
        if len(trials) >= self.n_trials:
            return None
        return Proposal(self.draw(len(trials)), 1.0, _median_rule(trials, 1.0))


class HalvingSearcher(Searcher):
    """Many draws on few rows, then the best third of them on three times as many rows.

    The last round uses all rows, as in `HalvingRandomSearchCV` with `resource="n_samples"`.
    """

    def propose(self, trials: Sequence[Trial]) -> Proposal | None:
        start, candidates = 0, [self.draw(number) for number in range(self.n_trials)]
        for fraction in self.fractions:
            end = start + len(candidates)
            if len(trials) < end:
                params = candidates[len(trials) - start]
                return Proposal(params, fraction, _median_rule(trials, fraction))
            kept = math.ceil(len(candidates) / HALVING_FACTOR)
            complete = [each for each in trials[start:end] if each.state == COMPLETE]
            best = sorted(complete, key=lambda each: -each.score)[:kept]
            candidates, start = [each.params for each in best], end
        return None

    @property
    def fractions(self) -> list[float]:
        """Fraction of the rows in each round."""
        by_trials = math.floor(math.log(self.n_trials, HALVING_FACTOR) + 1e-9)
        by_rows = math.floor(math.log(max(1.0, self.rows / MIN_ROWS), HALVING_FACTOR) + 1e-9)
        rounds = min(by_trials, by_rows)
        return [float(HALVING_FACTOR) ** -(rounds - number) for number in range(rounds + 1)]


class TpeSearcher(Searcher):
    """Tree-structured Parzen estimator of Optuna, with its median pruner."""

    def __init__(self, space: Space, *, n_trials: int, seed: int, rows: int) -> None:
        super().__init__(space, n_trials=n_trials, seed=seed, rows=rows)
        self.optuna = import_optuna()
        for name, each in space.items():  # raises for dimensions that Optuna does not support
            each.suggest(self.optuna.trial.FixedTrial(_to_optuna(name, each, each.rvs(0))), name)

    def propose(self, trials: Sequence[Trial]) -> Proposal | None:
        if len(trials) >= self.n_trials:
            return None
        optuna = self.optuna
        study = optuna.create_study(
            direction="maximize",
            sampler=optuna.samplers.TPESampler(
                seed=derive_seed(self.seed, "tpe", len(trials)) % 2**32,
                n_startup_trials=RANDOM_TRIALS,
            ),
            pruner=optuna.pruners.MedianPruner(
                n_startup_trials=STARTUP_TRIALS, n_warmup_steps=WARMUP_EPOCHS
            ),
        )
        study.add_trials([self._frozen(each) for each in trials])
        if not trials:
            return Proposal({})
        asked = study.ask()
        params = {name: each.suggest(asked, name) for name, each in self.space.items()}

        def is_unpromising(losses: Sequence[float]) -> bool:
            asked.report(-losses[-1], len(losses))
            return bool(asked.should_prune())

        return Proposal(params, 1.0, is_unpromising)

    def _frozen(self, trial: Trial) -> Any:
        """Return a trial of Optuna for a stored one."""
        values = dict[str, Any]()
        for name, value in trial.params.items():
            values |= _to_optuna(name, self.space[name], value)
        fixed = self.optuna.trial.FixedTrial(values)
        for name in trial.params:
            self.space[name].suggest(fixed, name)
        states = self.optuna.trial.TrialState
        state = {COMPLETE: states.COMPLETE, PRUNED: states.PRUNED, FAILED: states.FAIL}
        return self.optuna.trial.create_trial(
            params=fixed.params,
            distributions=fixed.distributions,
            value=trial.score if trial.state == COMPLETE else None,
            state=state[trial.state],
            intermediate_values={n: -loss for n, loss in enumerate(trial.losses, start=1)},
        )


SEARCHERS: dict[str, type[Searcher]] = {
    "random": RandomSearcher,
    "halving": HalvingSearcher,
    "tpe": TpeSearcher,
}


def make_searcher(name: Any, space: Space, *, n_trials: int, seed: int, rows: int) -> Searcher:
    """Return a searcher.

    Args:
        name: a name of `SEARCHERS`
        space: dimensions by parameter
        n_trials: number of trials, or of candidates of the first round of "halving"
        seed: seed of the draws
        rows: training rows of a split
    """
    if not isinstance(name, str) or name not in SEARCHERS:
        raise UserError(unknown_name_message("searcher", str(name), SEARCHERS))
    return SEARCHERS[name](space, n_trials=n_trials, seed=seed, rows=rows)


def has_worse_scores(scores: Sequence[float], trials: Sequence[Trial], fraction: float) -> bool:
    """Return whether the splits so far are worse than the median of the complete trials."""
    earlier = [each.scores for each in trials if _is_complete(each, fraction)]
    if len(earlier) < STARTUP_TRIALS:
        return False
    return float(np.mean(scores)) < float(np.median([np.mean(x[: len(scores)]) for x in earlier]))


def import_optuna() -> Any:
    """Return the module optuna with its log lines turned off."""
    try:
        import optuna
    except ImportError:
        raise UserError(
            "searcher: 'tpe' needs Optuna, which is not installed; run `pip install "
            "'addnorm[tune]'`, or use 'random' or 'halving'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _median_rule(trials: Sequence[Trial], fraction: float) -> Callable[[Sequence[float]], bool]:
    """Return whether the best loss so far is above the median of other trials at that epoch."""
    earlier = [each.losses for each in trials if _is_complete(each, fraction)]

    def is_unpromising(losses: Sequence[float]) -> bool:
        epoch = len(losses)
        others = [each[epoch - 1] for each in earlier if len(each) >= epoch]
        if epoch <= WARMUP_EPOCHS or len(others) < STARTUP_TRIALS:
            return False
        return min(losses) > float(np.median(others))

    return is_unpromising


def _is_complete(trial: Trial, fraction: float) -> bool:
    return trial.state == COMPLETE and trial.fraction == fraction


def _to_optuna(name: str, dimension: Dimension, value: Any) -> dict[str, Any]:
    """Return the parameters of Optuna that make a dimension suggest a value."""
    if not getattr(dimension, "zero", 0):
        return {name: value}
    return {f"{name} is 0": True} if value == 0 else {f"{name} is 0": False, name: value}
