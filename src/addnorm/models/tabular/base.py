"""What every model of tables has in common."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.models.base import WiredModule
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.feature_tokenizer import FeatureTokenizer
from addnorm.models.tabular.table_batch import TableBatch


class TableModel(WiredModule):
    """From cells to answers: tokens, a stack, and a head on what stands for the row.

    y = head(embed(cells))
    """

    tokens: FeatureTokenizer
    head: nn.Linear

    defaults: ClassVar[dict[str, Any]]
    """Fields of a `TableConfig` as the model has them where nothing is said."""
    unused_fields: ClassVar[tuple[str, ...]] = ()
    """Fields that mean nothing to it."""

    def __init__(self, config: TableConfig) -> None:
        super().__init__()
        self.config = config

    @property
    def width(self) -> int:
        """Features of `embed`: those of the stream, if nothing follows it."""
        return self.config.dim

    @abstractmethod
    def embed(self, cells: TableBatch, memory: Any = None) -> Tensor:
        """What stands for each row, (B, width)."""

    @abstractmethod
    def states(self, cells: TableBatch) -> Tensor:
        """What stands for each cell, (B, features, dim), where pre-training asks about cells."""

    @property
    def states_width(self) -> int:
        """Features of `states`."""
        return self.config.dim

    @property
    def covered_features(self) -> slice:
        """Features that `states` can say anything of."""
        return slice(0, self.config.features)

    def encode_reference(self, cells: TableBatch) -> Any:
        """What rows to come are to see of these, in models where rows see each other."""
        return None

    def apply_head(self, embedding: Tensor) -> Tensor:
        """The head, (B, width) to (B, outputs)."""
        return self.head(embedding)

    def forward(self, cells: TableBatch, memory: Any = None) -> Tensor:
        """(B, outputs)."""
        return self.apply_head(self.embed(cells, memory))

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The head."""
        yield "ffn_in", self.head.weight
        yield "bias", self.head.bias

    def init_weights(self, *, scheme: str | None = None, seed: int | None = None) -> "TableModel":
        """Start anew; tokens start by their own rule, times the wiring's gain."""
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            super().init_weights(scheme=scheme)
            self.tokens.reset_parameters()
            gain = self.stacks[-1].wiring.gain("embed")
            if gain != 1 and not self.head.weight.is_meta:
                with torch.no_grad():
                    for parameter in self.tokens.parameters():
                        parameter.mul_(gain)
        return self

    def calibrate_on(self, cells: TableBatch) -> None:
        """Give the stacks their data-dependent start, where their wiring has one (Admin)."""
        self.calibrate(cells)  # type: ignore[arg-type] # a tuple of tensors

    def no_decay(self) -> set[str]:
        """Also the tokens, as in the released code of FT-Transformer."""
        own = {f"tokens.{name}" for name, _ in self.tokens.named_parameters()}
        return super().no_decay() | own
