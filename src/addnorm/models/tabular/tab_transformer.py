"""TabTransformer: attention between categories; numbers pass by."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.core.seeds import derive_seed
from addnorm.models.tabular.base import TableModel
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.feature_tokenizer import FeatureTokenizer
from addnorm.models.tabular.ft_transformer import encoder_options, linear_weights
from addnorm.models.tabular.table_batch import TableBatch
from addnorm.stacks import Encoder

SHARED_DIM_DIVISOR = 8
"""The part of a category's vector that tells its column is one in so many."""
MAX_HIDDEN_DIM = 1024
"""Features of the first hidden layer at most."""


class TabTransformer(TableModel):
    """Categories made to know each other, then a plain network on everything.

    y = MLP([stack(e_1, e_2, ...), LayerNorm(x), absent]),    e_j = [c_j ; w_{j, code}]

    e: (dim) each; c_j, dim / 8 features, is shared by all values of column j
    x: numbers; the norm is left out where there are only one or two, of which it would leave
        nothing, or which is larger
    absent: 1 where a number is absent
    MLP: hidden layers of 4 l and 2 l features with relu, l the features it reads
    stack: the paper's is post_ln, dim 32, 6 layers, 8 heads, feed-forwards of 4 * dim with gelu

    Huang, Khetan, Cvitkovic and Karnin, TabTransformer: Tabular Data Modeling Using Contextual
    Embeddings, 2020, arXiv 2012.06678. A table without categories leaves the stack one constant.
    """

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
    unused_fields: ClassVar = ("numeric",)

    # NOTE[DIFF]: tokens have a bias for each column, which the paper's have not; what it adds to
    # every value of a column, the values could hold themselves.
    # NOTE[DIFF]: the paper's MLP grows with the table without a bound; here its first hidden layer
    # has at most 1024 features. The paper has no word for absent numbers: here they stand in
    # the norm as 0, the mean of all scores, and are 0 behind it, with a mark. It norms one or two
    # numbers, too. Texts are ours, as bags of words. There is no code by the authors; AutoGluon's
    # copy, credited to them, has other defaults (dim 128, one layer).
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
        """The encoder of categories."""
        return (self.encoder,)

    @property
    def width(self) -> int:
        """That of the last hidden layer."""
        return self.head.in_features

    @property
    def covered_features(self) -> slice:
        """Only what goes through the stack."""
        return slice(self.config.numbers, self.config.features)

    def states(self, cells: TableBatch) -> Tensor:
        """Categories and texts that know each other, (B, coded, dim)."""
        if not self.num_coded:
            cells = cells._replace(codes=torch.zeros_like(cells.numbers[:, :1], dtype=torch.int64))
        vectors = self.tokens(cells)
        columns = self.columns.expand(len(vectors), -1, -1)
        return self.encoder(torch.cat((columns, vectors), -1))

    def embed(self, cells: TableBatch, memory: Any = None) -> Tensor:
        """The last hidden layer, (B, width)."""
        numbers = self.scale(cells.numbers).masked_fill(cells.absent, 0.0)
        seen = (self.states(cells).flatten(1), numbers, cells.absent.to(numbers.dtype))
        return self.layers(torch.cat(seen, 1))

    def init_weights(
        self, *, scheme: str | None = None, seed: int | None = None
    ) -> "TabTransformer":
        """The columns' part of a vector starts as the rest of it."""
        super().init_weights(scheme=scheme, seed=seed)
        if not self.columns.is_meta:
            with torch.random.fork_rng(enabled=seed is not None):
                if seed is not None:
                    torch.manual_seed(derive_seed(seed, "columns"))
                nn.init.uniform_(self.columns, -(self.config.dim**-0.5), self.config.dim**-0.5)
        if isinstance(self.scale, nn.LayerNorm):
            self.scale.reset_parameters()
        return self

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The plain network."""
        yield from linear_weights(self.layers, self.head)

    def no_decay(self) -> set[str]:
        """Also the columns' part of a vector."""
        return super().no_decay() | {"columns"}
