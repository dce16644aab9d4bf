"""Dimensions of a search space, for the searchers of scikit-learn and for Optuna.

Every dimension has `rvs`, so that `RandomizedSearchCV` and `HalvingRandomSearchCV` accept it like a
distribution of scipy, and `suggest`, which asks a trial of Optuna.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sklearn.utils import check_random_state

from addnorm.core.errors import UserError


class Dimension(Protocol):
    """Values of one parameter that a search tries."""

    def rvs(self, random_state: Any = None) -> Any:
        """Return a random value, as distributions of scipy.stats do."""

    def suggest(self, trial: Any, name: str) -> Any:
        """Return the value that a trial of Optuna proposes."""


@dataclass(frozen=True)
class Choice:
    """One of several values.

    >>> Choice(("layer", "rms")).rvs(random_state=0)
    'layer'
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise UserError("values: expected at least one value, got none")

    def rvs(self, random_state: Any = None) -> Any:
        """Draw a value; all have the same probability."""
        return self.values[int(check_random_state(random_state).randint(len(self.values)))]

    def suggest(self, trial: Any, name: str) -> Any:
        """Return the value that a trial of Optuna proposes."""
        return trial.suggest_categorical(name, list(self.values))


@dataclass(frozen=True)
class Float:
    """A number from an interval, uniform or log-uniform, and 0 with a given probability.

    >>> 1e-4 <= Float(1e-4, 1e-2, log=True).rvs(random_state=0) <= 1e-2
    True
    """

    low: float
    high: float
    log: bool = False
    zero: float = 0.0
    """Probability of exactly 0."""

    def __post_init__(self) -> None:
        is_interval = math.isfinite(self.low) and self.low < self.high < math.inf
        if not is_interval or (self.log and self.low <= 0) or not 0 <= self.zero < 1:
            raise UserError(
                "expected low < high (above 0 for log) and a probability of 0 below 1, got "
                f"{self!r}"
            )

    def rvs(self, random_state: Any = None) -> float:
        """Return a random number, uniform or log-uniform, or 0 with the probability `zero`."""
        rng = check_random_state(random_state)
        if self.zero and rng.uniform() < self.zero:
            return 0.0
        if not self.log:
            return float(rng.uniform(self.low, self.high))
        value = math.exp(rng.uniform(math.log(self.low), math.log(self.high)))
        return min(max(value, self.low), self.high)

    def suggest(self, trial: Any, name: str) -> float:
        """Return the value that a trial of Optuna proposes."""
        if self.zero and trial.suggest_categorical(f"{name} is 0", [False, True]):
            return 0.0
        return float(trial.suggest_float(name, self.low, self.high, log=self.log))


@dataclass(frozen=True)
class Integer:
    """An integer from an interval that includes both ends.

    >>> Integer(64, 256, step=32).rvs(random_state=0) % 32
    0
    """

    low: int
    high: int
    step: int = 1

    def __post_init__(self) -> None:
        if not self.low < self.high or self.step < 1 or (self.high - self.low) % self.step:
            raise UserError(f"expected low < high, a multiple of step apart, got {self!r}")

    def rvs(self, random_state: Any = None) -> int:
        """Draw an integer; all have the same probability."""
        count = (self.high - self.low) // self.step + 1
        return self.low + self.step * int(check_random_state(random_state).randint(count))

    def suggest(self, trial: Any, name: str) -> int:
        """Return the value that a trial of Optuna proposes."""
        return int(trial.suggest_int(name, self.low, self.high, step=self.step))


@dataclass(frozen=True)
class _Distribution:
    """A distribution of scipy, which Optuna cannot propose values for."""

    distribution: Any

    def rvs(self, random_state: Any = None) -> Any:
        value = self.distribution.rvs(random_state=random_state)
        return value.item() if hasattr(value, "item") else value

    def suggest(self, trial: Any, name: str) -> Any:
        raise UserError(
            f"{name}: expected a list, or a Float, Integer or Choice of addnorm.tabular for "
            "searcher='tpe', got a distribution of scipy"
        )


def to_dimension(name: str, value: Any) -> Dimension:
    """Return a dimension for an entry of a space of scikit-learn: a list or a distribution."""
    if isinstance(value, Choice | Float | Integer):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return Choice(tuple(value))
    if callable(getattr(value, "rvs", None)):
        return _Distribution(value)
    raise UserError(
        f"{name}: expected a list of values or a distribution, such as Float(1e-4, 1e-2, "
        f"log=True), got {value!r}"
    )
