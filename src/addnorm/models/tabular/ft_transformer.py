"""FT-Transformer: a token for each column, and one that stands for the row."""

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn

from addnorm.models.tabular.base import TableModel
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.feature_tokenizer import FeatureTokenizer
from addnorm.models.tabular.first_token import FirstTokenEncoder
from addnorm.models.tabular.table_batch import TableBatch


class FTTransformer(TableModel):
    """Attention between the columns of a row; the answer is read from the first token.

    y = W relu(cls) + b,    cls = first token of stack([cls, t_1, t_2, ...])

    t: tokens of the cells
    stack: the paper's is pre_ln(first_norm=False), whose final norm stands before the relu

    Gorishniy, Rubachev, Khrulkov and Babenko, Revisiting Deep Learning Models for Tabular Data,
    2021, arXiv 2106.11959, section 3.3. The hidden width of the feed-forward is 4 / 3 * dim with a
    gate, 2 * dim without.
    """

    # NOTE[DIFF]: smaller than the paper's default (dim 192, 3 layers), so that two cores are
    # enough, and numbers go through bins, which the paper does not have.
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
        gated = config.activation.endswith("glu")
        hidden = int(config.dim * 4 / 3) if gated else 2 * config.dim
        self.encoder = FirstTokenEncoder(**encoder_options(config, hidden))
        self.head = nn.Linear(config.dim, config.outputs)
        self.init_weights()

    @property
    def stacks(self) -> tuple[FirstTokenEncoder]:
        """The encoder."""
        return (self.encoder,)

    def embed(self, cells: TableBatch, memory: Any = None) -> Tensor:
        """The first token of what the encoder returns, (B, dim)."""
        return self.encoder(self.tokens(cells))[:, 0]

    def apply_head(self, embedding: Tensor) -> Tensor:
        """W relu(embedding) + b."""
        return self.head(embedding.relu())

    def states(self, cells: TableBatch) -> Tensor:
        """The other tokens of what the encoder returns."""
        return self.encoder.all_tokens(self.tokens(cells))[:, 1:]


def make_feature_tokenizer(
    config: TableConfig, *, cls: bool = True, dim: int | None = None
) -> FeatureTokenizer:
    """Tokens of all columns, as the config wants them."""
    return FeatureTokenizer(
        dim or config.dim,
        numbers=config.numbers,
        categories=config.categories,
        texts=config.texts,
        numeric=config.numeric,
        cls=cls,
    )


def encoder_options(config: TableConfig, hidden: int) -> dict[str, Any]:
    """An encoder as the config wants it; columns have no order, so there are no positions.

    hidden: features inside the feed-forward, if the config does not say
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


def linear_weights(*modules: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(role, weight) of plain linear layers."""
    for module in modules:
        for part in module.modules():
            if isinstance(part, nn.Linear):
                yield "ffn_in", part.weight
                yield "bias", part.bias
