"""State of a run between two steps, and how a run ended."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

from addnorm.core.rows import RowsMark
from addnorm.core.validation import parse_dataclass
from addnorm.data.batches import DataPosition


@dataclass
class TrainState:
    """Counters of a run. A checkpoint stores them beside weights and optimizer state."""

    step: int = 0
    """Optimizer steps done, skipped ones included."""
    position: DataPosition = field(default_factory=DataPosition)
    """Position in the data after the last batch."""
    best: float = float("inf")
    """Lowest validation loss."""
    best_step: int = 0
    """Step of the lowest validation loss; 0 before the first validation."""
    stale: int = 0
    """Validations since the lowest loss."""
    skipped: int = 0
    """Consecutive skipped updates."""
    rewinds: int = 0
    """Rewinds so far."""
    tokens: int = 0
    """Target tokens so far; input tokens for classification."""
    seconds: float = 0.0
    """Training time in all processes that worked on the run, one after the other."""
    detector: dict[str, Any] = field(default_factory=dict)
    """State of the spike detector."""
    rows: int = 0
    """Length of `rows.jsonl` in bytes; resuming removes what follows."""
    rows_checksum: str = RowsMark().checksum
    """Checksum of these bytes, verified by resuming."""

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "TrainState":
        """Build a state from the result of `to_dict`.

        Raises:
            UserError: a field has another type
        """
        return parse_dataclass(cls, data, "the state of a checkpoint")

    @property
    def rows_mark(self) -> RowsMark:
        """Length and checksum of `rows.jsonl`."""
        return RowsMark(self.rows, self.rows_checksum)

    @rows_mark.setter
    def rows_mark(self, mark: RowsMark) -> None:
        self.rows, self.rows_checksum = mark.size, mark.checksum


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    ending: str
    """`done`, `stopped` (by `patience`), `diverged` or `interrupted`."""
    state: TrainState
    reason: str = ""
    """Why, if the ending is not `done`."""

    def __str__(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        best = f", best validation loss {self.state.best:.4f}" if self.state.best_step else ""
        return f"{self.ending}{reason}: step {self.state.step}{best}"


class Throughput:
    """Training time, and tokens per second since the last call."""

    def __init__(self, state: TrainState) -> None:
        self.previous_seconds, self.start = state.seconds, time.monotonic()
        self.window_start, self.tokens = self.start, 0

    def add_tokens(self, tokens: int) -> float:
        """Count tokens; return the training time of the run, earlier processes included."""
        self.tokens += tokens
        return self.previous_seconds + time.monotonic() - self.start

    def tokens_per_second(self) -> float:
        """Return the rate since the last call, and start a new window."""
        now = time.monotonic()
        rate = self.tokens / max(now - self.window_start, 1e-9)
        self.window_start, self.tokens = now, 0
        return rate
