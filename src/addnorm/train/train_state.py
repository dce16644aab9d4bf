"""How far a run is: plain data that a checkpoint holds, and what is told to whoever watches."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

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
    state: TrainState
    reason: str = ""
    """The reason in words, where it is not done."""


class Throughput:
    """Adds the seconds of this sitting to a progress; knows the speed since it was last asked."""

    def __init__(self, progress: TrainState) -> None:
        self.previous_seconds, self.start = progress.seconds, time.monotonic()
        self.window_start, self.tokens = self.start, 0

    def add_tokens(self, tokens: int) -> float:
        """Count tokens; all seconds of the run so far."""
        self.tokens += tokens
        return self.previous_seconds + time.monotonic() - self.start

    def tokens_per_second(self) -> float:
        """Tokens a second since the last call."""
        now = time.monotonic()
        rate = self.tokens / max(now - self.window_start, 1e-9)
        self.window_start, self.tokens = now, 0
        return rate
