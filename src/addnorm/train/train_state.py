"""How far a run is: plain data that a checkpoint holds, and what is told to whoever watches."""

from dataclasses import asdict, dataclass, field
from typing import Any

from addnorm.core.rows import Row
from addnorm.data.batches import DataPosition


@dataclass
class TrainState:
    """What must be known to go on as if nothing had happened, beside weights and optimizer."""

    step: int = 0
    """Updates done."""
    position: DataPosition = field(default_factory=DataPosition)
    """Where the data go on."""
    best: float = float("inf")
    """The lowest loss of a validation."""
    best_step: int = 0
    """Where that was; 0 before the first."""
    stale: int = 0
    """Validations since then."""
    skipped: int = 0
    """Updates in a row that were skipped."""
    rewinds: int = 0
    """Times it went back to a checkpoint."""
    tokens: int = 0
    """Predicted so far; read, where labels are predicted."""
    seconds: float = 0.0
    """Time spent so far, over all sittings."""
    detector: dict[str, Any] = field(default_factory=dict)
    """What the spike detector remembers."""
    rows: int = 0
    """Bytes of `rows.jsonl` at this step; what a killed run wrote behind them is cut off."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TrainState":
        """From plain data."""
        return cls(**data | {"position": DataPosition(**data["position"])})


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    ending: str
    """done, stopped (nothing got better), diverged or interrupted."""
    progress: TrainState
    reason: str = ""
    """The reason in words, where it is not done."""


class TrainCallback:
    """Whoever follows a run; every method may stay as it is."""

    def on_train_start(self, progress: TrainState, facts: dict[str, Any]) -> None:
        """The run begins, or goes on from a checkpoint."""

    def on_message(self, text: str) -> None:
        """Something a person should know."""

    def on_step_end(self, progress: TrainState, loss: float) -> None:
        """An update was done."""

    def on_rows(self, rows: list[Row]) -> None:
        """Rows were written."""

    def on_train_end(self, outcome: Outcome) -> None:
        """It is over."""
