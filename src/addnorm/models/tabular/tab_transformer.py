"""TabTransformer: attention between categories; numbers bypass it."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.core.seeds import derive_seed
from addnorm.models.tabular.base import TableModel, linear_weights
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.feature_tokenizer import FeatureTokenizer
from addnorm.models.tabular.ft_transformer import encoder_options
from addnorm.models.tabular.table_batch import TableBatch
from addnorm.stacks import Encoder

SHARED_DIM_DIVISOR = 8
"""The embedding of the column takes dim / 8 of the features of a category's embedding."""
MAX_HIDDEN_DIM = 1024
"""Largest width of the first hidden layer."""


class TabTransformer(TableModel):
    """TabTransformer: contextual embeddings of categories, then an MLP on all features.

    y = MLP([stack(e_1, e_2, ...), LayerNorm(x), absent]),    e_j = [c_j ; w_{j, code}]

    e: (dim) each; c_j, dim / 8 features, is shared by all values of column j
    x: numbers; one or two numbers are not normalized, because a norm would leave nothing of one
        and only the order of two
    absent: 1 if a number is missing
    MLP: hidden layers of 4 l and 2 l features with relu for l input features
    stack: the paper's is post_ln, dim 32, 6 layers, 8 heads, feed-forwards of 4 * dim with gelu

    Huang, Khetan, Cvitkovic and Karnin, TabTransformer: Tabular Data Modeling Using Contextual
    Embeddings, 2020, arXiv 2012.06678. Without categories, the stack reads one constant token.
    """

    head: nn.Linear
    defaults: ClassVar = {
        "wiring": "post_ln",
        "dim": 32,
        "depth": 6,
        "heads": 8,
        "activation": "gelu",
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "activation_dropout": 0.1,
    }
    unused_fields: ClassVar = ("numeric", "members")

    # NOTE[DIFF]: tokens have a bias for each column, which the paper does not have; it is redundant
    # with the embeddings of the column's values.
    # NOTE[DIFF]: the width of the paper's MLP is unbounded; here its first hidden layer has at most
    # 1024 features. The paper does not treat missing numbers; here they enter the norm as 0, the
    # mean score, and are 0 after it, with an indicator. The paper normalizes one or two numbers,
    # too, and has no texts. The authors published no code; AutoGluon's implementation, credited to
    # them, has other defaults (dim 128, one layer).
    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.num_coded = len(config.categories) + len(config.texts)
        shared = config.dim // SHARED_DIM_DIVISOR
        self.tokens = FeatureTokenizer(
            config.dim - shared,
            numbers=0,
            categories=config.categories or (() if config.texts else (2,)),
            texts=config.texts,
            cls=False,
        )
        self.columns = nn.Parameter(torch.empty(max(1, self.num_coded), shared))
        self.encoder = Encoder(**encoder_options(config, 4 * config.dim))
        self.scale = nn.LayerNorm(config.numbers) if config.numbers > 2 else nn.Identity()
        reads = config.dim * max(1, self.num_coded) + 2 * config.numbers
        first = min(4 * reads, MAX_HIDDEN_DIM)
        self.layers = nn.Sequential(
            nn.Linear(reads, first),
            nn.ReLU(),
            nn.Dropout(config.activation_dropout),
            nn.Linear(first, first // 2),
            nn.ReLU(),
        )
        self.head = nn.Linear(first // 2, config.outputs)
        self.init_weights()

    @property
    def stacks(self) -> tuple[Encoder]:
        return (self.encoder,)

    @property
    def width(self) -> int:
        return self.head.in_features

    @property
    def covered_features(self) -> slice:
        return slice(self.config.numbers, self.config.features)  # numbers bypass the stack

    def states(self, cells: TableBatch) -> Tensor:
        if not self.num_coded:
            cells = cells._replace(codes=torch.zeros_like(cells.numbers[:, :1], dtype=torch.int64))
        vectors = self.tokens(cells)
        columns = self.columns.expand(vectors.shape[0], -1, -1)
        return self.encoder(torch.cat((columns, vectors), -1))

    def embed(self, cells: TableBatch, memory: Any = None) -> Tensor:
        numbers = self.scale(cells.numbers).masked_fill(cells.absent, 0.0)
        features = (self.states(cells).flatten(1), numbers, cells.absent.to(numbers.dtype))
        return self.layers(torch.cat(features, 1))

    def init_weights(
        self, *, scheme: str | None = None, seed: int | None = None
    ) -> "TabTransformer":
        super().init_weights(scheme=scheme, seed=seed)
        # The column embeddings start with the distribution of the value embeddings.
        if not self.columns.is_meta:
            with torch.random.fork_rng(enabled=seed is not None):
                if seed is not None:
                    torch.manual_seed(derive_seed(seed, "columns"))
                nn.init.uniform_(self.columns, -(self.config.dim**-0.5), self.config.dim**-0.5)
        if isinstance(self.scale, nn.LayerNorm):
            self.scale.reset_parameters()
        return self

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from linear_weights(self.layers, self.head)

    def no_decay(self) -> set[str]:
        return super().no_decay() | {"columns"}
