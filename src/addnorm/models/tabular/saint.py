"""SAINT: attention between the columns of a row and between rows.

In training, the rows of a batch attend to each other. At prediction, each row attends to a fixed
set of reference rows from the training data and to itself. Its prediction therefore does not depend
on the other rows of the batch.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.core.plan import Plugs, Shape
from addnorm.models.tabular.base import TableModel, linear_weights
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.ft_transformer import make_feature_tokenizer
from addnorm.models.tabular.table_batch import TableBatch
from addnorm.stacks import Stack
from addnorm.sublayers import FeedForward, SelfAttention
from addnorm.sublayers.base import Sublayer

ROWS_PER_CHUNK = 32
"""Rows per chunk when rows attend to reference rows, to bound memory."""
COLUMN_HEAD_DIM, ROW_HEAD_DIM = 16, 64
"""Head widths of the attention between columns and between rows, as in the released code."""
HEAD_HIDDEN_DIM = 1000
"""Hidden width of the output head."""


class ReferenceCache:
    """Keys and values of reference rows for one `RowAttention`; None until they are stored."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None


class RowAttention(Sublayer):
    """Attention between the rows of a batch, each flattened to one vector.

    Y = attention(X),    X = rows of (tokens * dim) features

    x, y: (B, tokens, dim)

    Without a cache, rows attend to each other. With an empty cache, they also store their keys and
    values in it. With a filled cache, each row attends to the cached rows and to itself.

    Somepalli et al. 2021, section 3.2 ("MISA").
    """

    def __init__(self, tokens: int, dim: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = SelfAttention(
            tokens * dim, heads, head_dim=ROW_HEAD_DIM, bias=False, out_bias=True, dropout=dropout
        )

    @property
    def shape(self) -> Shape:
        return replace(self.attention.shape, dim=0)  # any stream with this number of tokens fits

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        return self.attention.roles()

    def forward(
        self, x: Tensor, *, cache: ReferenceCache | None = None, plugs: Plugs | None = None
    ) -> Tensor:
        """Attend between rows; input and output are (B, tokens, dim)."""
        plugs, attention, rows = plugs or Plugs(), self.attention, x.flatten(1)
        if cache is None or cache.keys is None or cache.values is None:
            sequence = rows[None]  # (1, B, tokens * dim): the rows are one sequence
            if cache is not None:
                cache.keys, cache.values = attention.project_keys_values(sequence, plugs)
            output = attention(sequence, plugs=plugs)[0]
        else:
            reference = cache.keys, cache.values
            # Each row needs its own copy of the reference keys and values, so work in chunks. An
            # exported graph has no loop over an unknown number of them.
            chunks = (
                [rows] if torch.compiler.is_compiling() else list(torch.split(rows, ROWS_PER_CHUNK))
            )
            output = torch.cat([self._attend_reference(each, reference, plugs) for each in chunks])
        return output.view_as(x)

    def _attend_reference(
        self, rows: Tensor, reference: tuple[Tensor, Tensor], plugs: Plugs
    ) -> Tensor:
        """Let each row attend to the reference rows and itself; return (B, tokens * dim)."""
        attention, single = self.attention, rows[:, None]  # (B, 1, tokens * dim)
        own = attention.project_keys_values(single, plugs)
        k, v = (
            torch.cat((shared.expand(rows.shape[0], -1, -1, -1), each), 2)
            for shared, each in zip(reference, own, strict=True)
        )
        q = attention.project_queries(single, plugs)
        if plugs.match is not None:
            q, k = plugs.match(q, k)
        output = attention.attend(q, k, v, plugs=plugs)
        assert isinstance(output, Tensor)
        return output[:, 0]


class Saint(TableModel):
    """SAINT: stages of attention between columns and attention between rows.

    y = W_2 relu(W_1 cls + b_1) + b_2,    cls = first token of the last stage
    stage: attention between columns, feed-forward, attention between rows, feed-forward

    W_1: (1000, dim)
    stack: the paper's formula, z + LN(f(z)), is the wiring `res_post`
    depth: number of stages; 1 by default, of dim 32 with 4 heads, as in the released code
    feed-forwards: geglu, 4 * dim

    Somepalli, Goldblum, Schwarzschild, Bruss and Goldstein, SAINT: Improved Neural Networks for
    Tabular Data via Row Attention and Contrastive Pre-Training, 2021, arXiv 2106.01342, section 3.
    """

    defaults: ClassVar = {
        "wiring": "res_post",
        "dim": 32,
        "depth": 1,
        "heads": 4,
        "activation": "geglu",
        "numeric": "mlp",
    }
    unused_fields: ClassVar = ("members",)

    # NOTE[DIFF]: `res_post` ends with a norm, which neither the paper's formula nor the released
    # code has.
    # NOTE[DIFF]: the feed-forwards are gated as in the released code; the paper has gelu without a
    # gate.
    # NOTE[DIFF]: the released script sets the dropout inside feed-forwards to 0.8 and declares an
    # attention dropout that it never applies; here both are parameters of the estimator.
    # NOTE[DIFF]: the released code computes LN(z) + f(LN(z)) instead of the paper's formula; here
    # this is the wiring `false_pre_ln`.
    # NOTE[DIFF]: in the released code, norm and feed-forward around the attention between rows have
    # the width of a whole row; here they have the width of a token, as everywhere in a stack. The
    # paper leaves it open.
    # NOTE[DIFF]: numbers are embedded by the released code's network, 1 -> 100 -> dim for each
    # column; the paper's has one layer with relu.
    # NOTE[DIFF]: in the released code a prediction depends on the other rows of its batch; here
    # rows attend to reference rows of the training data and to themselves.
    def __init__(self, config: TableConfig) -> None:
        super().__init__(config)
        self.tokens = make_feature_tokenizer(config)
        dim, heads, count = config.dim, config.heads, 1 + config.features

        def ffn() -> FeedForward:
            return FeedForward(
                dim,
                config.ffn_dim or 4 * dim,
                activation=config.activation,
                dropout=config.activation_dropout,
            )

        attention_dropout = config.attention_dropout
        stages = [
            (
                SelfAttention(
                    dim,
                    heads,
                    head_dim=COLUMN_HEAD_DIM,
                    bias=False,
                    out_bias=True,
                    dropout=attention_dropout,
                ),
                ffn(),
                RowAttention(count, dim, heads, dropout=attention_dropout),
                ffn(),
            )
            for _ in range(config.depth)
        ]
        self.stack = Stack(
            [sublayer for stage in stages for sublayer in stage],
            dim=dim,
            wiring=config.wiring,
            norm=config.norm,
            kinds=("self", "ffn", "rows", "ffn"),
            dropout=config.dropout,
        )
        self.hidden = nn.Linear(dim, HEAD_HIDDEN_DIM)
        self.head = nn.Linear(HEAD_HIDDEN_DIM, config.outputs)
        self.init_weights()

    @property
    def stacks(self) -> tuple[Stack]:
        return (self.stack,)

    def encode_reference(self, cells: TableBatch) -> list[ReferenceCache | None]:
        caches = [
            ReferenceCache() if site.kind == "rows" else None for site in self.stack.plan.sites
        ]
        self.stack(self.tokens(cells), cache=caches)
        return caches

    def embed(self, cells: TableBatch, memory: Any = None) -> Tensor:
        return self.stack(self.tokens(cells), cache=memory)[:, 0]

    def apply_head(self, embedding: Tensor) -> Tensor:
        return self.head(self.hidden(embedding).relu())

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from linear_weights(self.hidden, self.head)

    def states(self, cells: TableBatch) -> Tensor:
        return self.stack(self.tokens(cells))[:, 1:]
