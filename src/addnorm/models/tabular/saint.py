"""SAINT: attention between the columns of a row, and between the rows."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from addnorm.core.plan import Plugs, Shape
from addnorm.models.tabular.base import TableModel
from addnorm.models.tabular.config import TableConfig
from addnorm.models.tabular.ft_transformer import linear_weights, make_feature_tokenizer
from addnorm.models.tabular.table_batch import TableBatch
from addnorm.stacks import Stack
from addnorm.sublayers import FeedForward, SelfAttention
from addnorm.sublayers.base import Sublayer

ROWS_PER_CHUNK = 32
"""Rows that are answered at once beside reference rows."""
COLUMN_HEAD_DIM, ROW_HEAD_DIM = 16, 64
"""Features of a head of the attention between columns, and between rows, as in the released code.
"""
HEAD_HIDDEN_DIM = 1000
"""Hidden features of the head."""


class ReferenceCache:
    """What one attention between rows remembers: keys and values of reference rows."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None


class RowAttention(Sublayer):
    """Attention between the rows of a batch, each row one long vector.

    Y = attention(X),    X = rows of (tokens * dim) features

    x, y: (B, tokens, dim)

    With a slot that remembers reference rows, a row attends to those and itself, so that its answer
    depends on no other row of the batch; with an empty slot, rows attend to each other and are
    remembered.

    Somepalli et al. 2021, section 3.2 ("MISA").
    """

    def __init__(self, tokens: int, dim: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = SelfAttention(
            tokens * dim, heads, head_dim=ROW_HEAD_DIM, bias=False, out_bias=True, dropout=dropout
        )

    @property
    def shape(self) -> Shape:
        """Widths of the heads; it fits any stream that has its tokens."""
        return replace(self.attention.shape, dim=0)

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        """Those of the attention inside."""
        return self.attention.roles()

    def forward(
        self, x: Tensor, *, cache: ReferenceCache | None = None, plugs: Plugs | None = None
    ) -> Tensor:
        """(B, tokens, dim) to the same."""
        plugs, inside, rows = plugs or Plugs(), self.attention, x.flatten(1)
        if cache is None or cache.keys is None or cache.values is None:
            together = rows[None]  # (1, B, tokens * dim)
            if cache is not None:
                cache.keys, cache.values = inside.project_keys_values(together, plugs)
            answer = inside(together, plugs=plugs)[0]
        else:
            known = cache.keys, cache.values
            # Every row has keys and values of its own beside those: a few rows at a time.
            answer = torch.cat(
                [
                    self._attend_reference(part, known, plugs)
                    for part in torch.split(rows, ROWS_PER_CHUNK)
                ]
            )
        return answer.view_as(x)

    def _attend_reference(
        self, rows: Tensor, reference: tuple[Tensor, Tensor], plugs: Plugs
    ) -> Tensor:
        """Each row among those that are known, (B, tokens * dim)."""
        inside, alone = self.attention, rows[:, None]  # (B, 1, tokens * dim)
        k, v = (
            torch.cat((theirs.expand(len(rows), -1, -1, -1), own), 2)
            for theirs, own in zip(reference, inside.project_keys_values(alone, plugs), strict=True)
        )
        q = inside.project_queries(alone, plugs)
        if plugs.match is not None:
            q, k = plugs.match(q, k)
        answer = inside.attend(q, k, v, plugs=plugs)
        assert isinstance(answer, Tensor)
        return answer[:, 0]


class Saint(TableModel):
    """Columns see each other, then rows do.

    y = W_2 relu(W_1 cls + b_1) + b_2,    cls = first token of the last stage
    stage: columns attend, feed-forward, rows attend, feed-forward

    W_1: (1000, dim)
    stack: the paper's formula, z + LN(f(z)), is the wiring `res_post`
    depth: stages; one, of dim 32 with 4 heads, as the released code has it with rows that attend
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

    # NOTE[DIFF]: `res_post` ends with a norm, which neither the paper's formula nor the released
    # code has.
    # NOTE[DIFF]: the gate of the feed-forwards is the released code's; the paper has gelu alone.
    # NOTE[DIFF]: the released script sets dropout inside feed-forwards to 0.8, and declares one of
    # attention that it never applies; here both are what the estimator says.
    # NOTE[DIFF]: the released code is wired otherwise than the paper, LN(z) + f(LN(z)): here that
    # is the wiring `false_pre_ln`.
    # NOTE[DIFF]: in the released code norm and feed-forward around the attention between rows have
    # the width of a whole row; here that of a token, as everywhere in a stack. The paper does not
    # say.
    # NOTE[DIFF]: a number goes through the released code's small network, 1 -> 100 -> dim for each
    # column; the paper's has one layer with relu.
    # NOTE[DIFF]: in the released code a prediction depends on the rows it is made with; here rows
    # to be predicted see reference rows of the training and themselves.
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
        """The stages."""
        return (self.stack,)

    def encode_reference(self, cells: TableBatch) -> list[ReferenceCache | None]:
        """Keys and values of reference rows, which see each other."""
        slots = [
            ReferenceCache() if site.kind == "rows" else None for site in self.stack.plan.sites
        ]
        self.stack(self.tokens(cells), cache=slots)
        return slots

    def embed(self, cells: TableBatch, memory: Any = None) -> Tensor:
        """The first token of what the stack returns, (B, dim)."""
        return self.stack(self.tokens(cells), cache=memory)[:, 0]

    def apply_head(self, embedding: Tensor) -> Tensor:
        """W_2 relu(W_1 embedding + b_1) + b_2."""
        return self.head(self.hidden(embedding).relu())

    def outer_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Both layers of the head."""
        yield from linear_weights(self.hidden, self.head)

    def states(self, cells: TableBatch) -> Tensor:
        """The other tokens of what the stack returns."""
        return self.stack(self.tokens(cells))[:, 1:]
