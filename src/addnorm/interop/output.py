"""Output of a converted model."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

from torch import Tensor


@dataclass(frozen=True)
class Output:
    """Outputs of a model under the names of transformers; None if the class has no such output.

    Like the outputs of transformers, it can be indexed by name or number and unpacked.
    """

    logits: Tensor | None = None
    """(B, L, vocab) or (B, classes)."""
    last_hidden_state: Tensor | None = None
    """(B, L, dim)."""
    pooler_output: Tensor | None = None
    """(B, dim)."""
    encoder_last_hidden_state: Tensor | None = None
    """(B, S, dim)."""

    def __getitem__(self, key: str | int) -> Tensor:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values = {name: value for name, value in values.items() if value is not None}
        return values[key] if isinstance(key, str) else list(values.values())[key]

    def __iter__(self) -> Iterator[Tensor]:
        values = (getattr(self, field.name) for field in fields(self))
        return (value for value in values if value is not None)
