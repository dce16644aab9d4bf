"""FT-Transformer: attention between the columns of a row and a row token."""

from typing import Any, ClassVar

from torch import Tensor

from addnorm.models.tabular.base import TableModel
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.feature_tokenizer import FeatureTokenizer
from addnorm.models.tabular.first_token_encoder import FirstTokenEncoder
from addnorm.models.tabular.members import MemberScale, make_head
from addnorm.models.tabular.table_batch import TableBatch
from addnorm.sublayers.activations import is_gated


class FTTransformer(TableModel):
    """FT-Transformer: attention between columns; the prediction is read from the first token.

    y = W relu(cls) + b,    cls = first token of stack([cls, t_1, t_2, ...])

    t: tokens of the cells
    stack: the paper's is pre_ln(first_norm=False), whose final norm precedes the relu

    Gorishniy, Rubachev, Khrulkov and Babenko, Revisiting Deep Learning Models for Tabular Data,
    2021, arXiv 2106.11959, section 3.3. The hidden width of the feed-forward is 4 / 3 * dim with a
    gate, 2 * dim without.
    """

    # NOTE[DIFF]: smaller than the paper's default (dim 192, 3 layers), to train on two cores, and
    # with a piecewise linear embedding of numbers, which the paper does not have.
    defaults: ClassVar = {
        "wiring": "pre_ln(first_norm=False)",
        "dim": 96,
        "depth": 2,
        "heads": 8,
        "activation": "reglu",
        "numeric": "piecewise",
    }

    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.tokens = make_feature_tokenizer(config)
        gated = is_gated(config.activation)
        hidden = int(config.dim * 4 / 3) if gated else 2 * config.dim
        self.encoder = FirstTokenEncoder(**encoder_options(config, hidden))
        if config.members > 1:
            self.member_scale = MemberScale(config.members, 1 + config.features, config.dim)
        self.head = make_head(config.members, config.dim, config.outputs)
        self.init_weights()

    @property
    def stacks(self) -> tuple[FirstTokenEncoder]:
        return (self.encoder,)

    def embed(self, cells: TableBatch, memory: Any = None) -> Tensor:
        if self.member_scale is not None:
            return self.embed_members(cells).mean(1)
        return self.encoder(self.tokens(cells))[:, 0]

    def embed_members(self, cells: TableBatch, memory: Any = None) -> Tensor:
        if self.member_scale is None:
            return super().embed_members(cells)
        tokens = self.member_scale(self.tokens(cells))  # (B, members, 1 + features, dim)
        return self.encoder(tokens.flatten(0, 1))[:, 0].unflatten(0, tokens.shape[:2])

    def apply_head(self, embedding: Tensor) -> Tensor:
        return self.head(embedding.relu())

    def states(self, cells: TableBatch) -> Tensor:
        tokens = self.tokens(cells)
        if self.member_scale is None:
            return self.encoder.all_tokens(tokens)[:, 1:]
        scaled = self.member_scale(tokens)
        encoded = self.encoder.all_tokens(scaled.flatten(0, 1)).unflatten(0, scaled.shape[:2])
        return encoded[:, :, 1:].mean(1)


def make_feature_tokenizer(
    config: TableConfig, *, cls: bool = True, dim: int | None = None
) -> FeatureTokenizer:
    """Build the feature tokenizer of a config, with or without a row token."""
    return FeatureTokenizer(
        dim or config.dim,
        numbers=config.numbers,
        categories=config.categories,
        texts=config.texts,
        numeric=config.numeric,
        cls=cls,
    )


def encoder_options(config: TableConfig, hidden: int) -> dict[str, Any]:
    """Return the arguments of the encoder of a config.

    Columns have no order, so there are no positions.

    Args:
        config: config of the model
        hidden: hidden width of the feed-forward if the config has none
    """
    return {
        "dim": config.dim,
        "depth": config.depth,
        "heads": config.heads,
        "wiring": config.wiring,
        "norm": config.norm,
        "dropout": config.dropout,
        "ffn_dim": config.ffn_dim or hidden,
        "activation": config.activation,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
    }
