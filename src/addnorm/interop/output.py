"""What a model answers."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from torch import Tensor


@dataclass(frozen=True)
class Output:
    """What a model answers, under the names of transformers; None where it has none."""

    logits: Tensor | None = None
    """(B, L, vocab) or (B, classes)."""
    last_hidden_state: Tensor | None = None
    """(B, L, dim)."""
    pooler_output: Tensor | None = None
    """(B, dim)."""
    encoder_last_hidden_state: Tensor | None = None
    """(B, S, dim)."""

    def __getitem__(self, key: str | int) -> Tensor:
        given = {part.name: getattr(self, part.name) for part in fields(self)}
        given = {name: value for name, value in given.items() if value is not None}
        return given[key] if isinstance(key, str) else list(given.values())[key]

    def __iter__(self) -> Iterator[Tensor]:
        values = (getattr(self, part.name) for part in fields(self))
        return (value for value in values if value is not None)
