"""Baseline without attention: residual feed-forwards on the concatenated cells of a row."""

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn

from addnorm.models.tabular.base import TableModel, linear_weights
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.ft_transformer import make_feature_tokenizer
from addnorm.models.tabular.members import MemberScale, make_head
from addnorm.models.tabular.table_batch import TableBatch
from addnorm.stacks import Stack
from addnorm.sublayers import FeedForward

CELL_DIM = 8
"""Width of a cell embedding before concatenation."""


class TableMLP(TableModel):
    """MLP: concatenated cell embeddings, then feed-forwards on a stream of one token.

    y = W relu(h) + b,    h = stack(W_in [t_1, t_2, ...] + b_in)

    t: tokens of the cells, (B, features, 8)
    stack: pre_ln is the paper's "ResNet"

    Gorishniy et al. 2021, section 3.2.
    """

    defaults: ClassVar = {
        "wiring": "pre_ln",
        "dim": 96,
        "depth": 2,
        "activation": "relu",
        "numeric": "piecewise",
    }
    unused_fields: ClassVar = ("heads", "attention_dropout")

    # NOTE[DIFF]: the paper's ResNet has batch norm (norm="batch" here) and reads raw numbers; here
    # numbers have a numeric embedding, which can represent missing ones.
    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.tokens = make_feature_tokenizer(config, cls=False, dim=CELL_DIM)
        self.join = nn.Linear(CELL_DIM * config.features, config.dim)
        hidden = config.ffn_dim or 2 * config.dim
        self.stack = Stack(
            [
                FeedForward(
                    config.dim,
                    hidden,
                    activation=config.activation,
                    dropout=config.activation_dropout,
                )
                for _ in range(config.depth)
            ],
            dim=config.dim,
            wiring=config.wiring,
            norm=config.norm,
            kinds=("ffn",),
            dropout=config.dropout,
        )
        if config.members > 1:
            self.member_scale = MemberScale(config.members, config.features, CELL_DIM)
        self.head = make_head(config.members, config.dim, config.outputs)
        self.init_weights()

    @property
    def stacks(self) -> tuple[Stack]:
        return (self.stack,)

    def embed(self, cells: TableBatch, memory: Any = None) -> Tensor:
        return self.embed_members(cells).mean(1)

    def embed_members(self, cells: TableBatch, memory: Any = None) -> Tensor:
        tokens = self.tokens(cells)
        if self.member_scale is None:
            return self.stack(self.join(tokens.flatten(1))[:, None])
        return self.stack(self.join(self.member_scale(tokens).flatten(2)))  # members are the tokens

    def apply_head(self, embedding: Tensor) -> Tensor:
        return self.head(embedding.relu())

    def states(self, cells: TableBatch) -> Tensor:
        row = self.embed(cells)  # cells have no states of their own: all get that of the row
        return row[:, None].expand(-1, self.config.features, -1)

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from linear_weights(self.join, self.head)
