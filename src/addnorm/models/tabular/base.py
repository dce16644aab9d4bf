"""Base class of table models."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.models.base import WiredModule
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.feature_tokenizer import FeatureTokenizer
from addnorm.models.tabular.members import MemberLinear, MemberScale, average_members
from addnorm.models.tabular.table_batch import TableBatch


class TableModel(WiredModule):
    """Feature tokenizer, stack and head.

    y = head(embed(cells))

    With several members, each has an embedding, a head and an output of its own, and y is their
    average.
    """

    tokens: FeatureTokenizer
    head: nn.Linear | MemberLinear

    defaults: ClassVar[dict[str, Any]]
    """Default values of `TableConfig` fields for this model."""
    unused_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of `TableConfig` that this model does not use."""

    def __init__(self, config: TableConfig) -> None:
        super().__init__()
        self.config = config
        self.member_scale: MemberScale | None = None
        """Scale of the members; None with a single one."""

    @property
    def width(self) -> int:
        """Width of the row embeddings that `embed` returns."""
        return self.config.dim

    @abstractmethod
    def embed(self, cells: TableBatch, memory: Any = None) -> Tensor:
        """Return row embeddings, (B, width); the mean over members.

        Args:
            cells: rows
            memory: output of `encode_reference`
        """

    def embed_members(self, cells: TableBatch, memory: Any = None) -> Tensor:
        """Return the row embeddings of each member, (B, members, width)."""
        return self.embed(cells, memory)[:, None]

    @abstractmethod
    def states(self, cells: TableBatch) -> Tensor:
        """Return cell embeddings for pre-training, (B, covered features, dim)."""

    @property
    def states_width(self) -> int:
        """Width of the cell embeddings that `states` returns."""
        return self.config.dim

    @property
    def covered_features(self) -> slice:
        """Features for which `states` returns an embedding."""
        return slice(0, self.config.features)

    def encode_reference(self, cells: TableBatch) -> Any:
        """Encode reference rows for models with attention between rows (SAINT); None otherwise."""
        return None

    def apply_head(self, embedding: Tensor) -> Tensor:
        """Map row embeddings to outputs: (B, width) to (B, outputs), with an axis for members."""
        return self.head(embedding)

    def forward(self, cells: TableBatch, memory: Any = None) -> Tensor:
        """Return outputs, (B, outputs); arguments as in `embed`."""
        if self.config.members == 1:
            return self.apply_head(self.embed(cells, memory))
        outputs = self.forward_members(cells, memory)
        return average_members(outputs, self.config.member_average)

    def forward_members(self, cells: TableBatch, memory: Any = None) -> Tensor:
        """Return the outputs of each member, (B, members, outputs).

        The loss of a fit is the mean of their losses: members that are trained on the loss of
        their average do not predict well alone, and their average is worse.
        """
        if self.config.members == 1:
            return self.forward(cells, memory)[:, None]
        return self.apply_head(self.embed_members(cells, memory))

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from linear_weights(self.head)

    def init_weights(self, *, scheme: str | None = None, seed: int | None = None) -> "TableModel":
        # The tokenizer has an initialization of its own, scaled by the wiring's embedding gain.
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            super().init_weights(scheme=scheme)
            self.tokens.reset_parameters()
            if self.member_scale is not None:
                self.member_scale.reset_parameters()
            gain = self.stacks[-1].wiring.gain("embed")
            if gain != 1 and not self.head.weight.is_meta:
                with torch.no_grad():
                    for parameter in self.tokens.parameters():
                        parameter.mul_(gain)
        return self

    def calibrate_on(self, cells: TableBatch) -> None:
        """Run the data-dependent initialization of wirings that have one (Admin)."""
        self.calibrate(cells)  # type: ignore[arg-type] # a tuple of tensors

    def no_decay(self) -> set[str]:
        # The tokenizer is not decayed either, as in the released code of FT-Transformer.
        own = {f"tokens.{name}" for name, _ in self.tokens.named_parameters()}
        if self.config.members > 1:
            own |= {"member_scale.weight", "head.bias"}
        return super().no_decay() | own


def linear_weights(*modules: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (role, weight) of all linear layers inside modules, and of each member's own."""
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                yield "ffn_in", layer.weight
                yield "bias", layer.bias
            elif isinstance(layer, MemberLinear):
                for weight, bias in zip(layer.weight, layer.bias, strict=True):
                    yield "ffn_in", weight
                    yield "bias", bias
