"""FT-Transformer: attention between the columns of a row and a row token."""

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn

from addnorm.models.tabular.base import TableModel
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.feature_tokenizer import FeatureTokenizer
from addnorm.models.tabular.first_token_encoder import FirstTokenEncoder
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
        self.head = nn.Linear(config.dim, config.outputs)
        self.init_weights()

    @property
    def stacks(self) -> tuple[FirstTokenEncoder]:
        return (self.encoder,)

    def embed(self, cells: TableBatch, memory: Any = None) -> Tensor:
        return self.encoder(self.tokens(cells))[:, 0]

    def apply_head(self, embedding: Tensor) -> Tensor:
        return self.head(embedding.relu())

    def states(self, cells: TableBatch) -> Tensor:
        return self.encoder.all_tokens(self.tokens(cells))[:, 1:]


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


def linear_weights(*modules: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (role, weight) of all linear layers inside modules."""
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                yield "ffn_in", layer.weight
                yield "bias", layer.bias
