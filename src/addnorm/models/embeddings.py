"""Token embedding, patch embedding and output projection."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.kernels.cross_entropy import LossSums, linear_cross_entropy
from addnorm.kernels.inputs import check_index_range, check_tensor, describe_value
from addnorm.kernels.linear import linear
from addnorm.models.config import Config
from addnorm.norms.base import Norm, make_norm
from addnorm.norms.none import NoNorm


class TokenEmbedding(nn.Module):
    """Embedding of tokens, and of their segments if the config has any.

    x = factor * N(table)[ids] + types[type_ids]

    table: (vocab, dim)
    N: table_norm, applied to each row; FixNorm gives all rows the same length
    types: (types, dim); absent without segments

    FixNorm: Nguyen and Salazar, Transformers without Tears, 2019, arXiv 1910.05895, section 2.3.
    """

    # NOTE[DIFF]: with FixNorm the released code initializes the table uniformly in +-0.01; here it
    # is initialized like any other. Only the directions of rows matter, but at a given learning
    # rate the larger raw rows change direction more slowly.
    def __init__(self, config: Config, vocab: int) -> None:
        super().__init__()
        self.vocab, self.factor = vocab, config.embedding_factor
        width = config.embedding_width
        self.table = nn.Parameter(torch.empty(vocab, width))
        self.norm = _row_norm(config)
        self.types = nn.Parameter(torch.empty(config.types, width)) if config.types else None

    def forward(self, ids: Tensor, type_ids: Tensor | None = None) -> Tensor:
        """Embed tokens.

        Args:
            ids: (B, L) token ids
            type_ids: (B, L) segments; all tokens are in segment 0 if None

        Returns:
            (B, L, dim) embeddings.
        """
        _check_ids("ids", ids)
        x = _look_up("ids", ids, self.rows) * self.factor
        if self.types is None:
            if type_ids is not None:
                raise UserError(
                    "type_ids: expected None for a model without segments; leave it out or build "
                    "with types=2"
                )
            return x
        if type_ids is None:
            return x + self.types[0]
        _check_ids("type_ids", type_ids)
        if type_ids.shape != ids.shape:
            raise UserError(
                f"type_ids: expected the shape of ids, {tuple(ids.shape)}, got "
                f"{tuple(type_ids.shape)}"
            )
        return x + _look_up("type_ids", type_ids, self.types)

    @property
    def rows(self) -> Tensor:
        """Normalized embeddings of all tokens, (vocab, dim)."""
        return self.table if self.norm is None else self.norm(self.table)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of the tables."""
        yield "embed", self.table
        if self.types is not None:
            yield "embed", self.types


class PatchEmbedding(nn.Module):
    """Embedding of an image as a sequence: learned class tokens, then one token per patch.

    x = [cls, project(patch_1), project(patch_2), ...]

    project: (dim, channels, patch, patch), a convolution without overlap
    cls: (dim), starts at N(0, 1 / dim)
    more: (class_tokens - 1, dim), further class tokens; absent unless class_tokens > 1

    Dosovitskiy et al., An Image is Worth 16x16 Words, 2020, arXiv 2010.11929, eq. 1; more: Touvron
    et al., DeiT, 2020, arXiv 2012.12877.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        assert config.image is not None and config.patch is not None
        self.side, self.channels = config.image, config.channels
        self.project = nn.Conv2d(config.channels, config.dim, config.patch, stride=config.patch)
        self.cls = nn.Parameter(torch.empty(config.dim))
        more = (config.class_tokens - 1, config.dim)
        self.more = nn.Parameter(torch.empty(more)) if config.class_tokens > 1 else None

    def forward(self, pixels: Tensor) -> Tensor:
        """Embed images.

        Args:
            pixels: (B, channels, side, side) float images

        Returns:
            (B, class tokens + patches, dim) embeddings, patches in row-major order.
        """
        expected = (self.channels, self.side, self.side)
        check_tensor("pixels", pixels, f"floats of shape (B, {', '.join(map(str, expected))})")
        if pixels.shape[1:] != expected or not pixels.is_floating_point():
            raise UserError(
                f"pixels: expected floats of shape (B, {', '.join(map(str, expected))}), got "
                f"{pixels.dtype} of shape {tuple(pixels.shape)}"
            )
        patches = self.project(pixels).flatten(2).transpose(1, 2)
        first = self.cls[None] if self.more is None else torch.cat((self.cls[None], self.more))
        return torch.cat((first.expand(pixels.shape[0], -1, -1), patches), 1)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of the projection and the class tokens."""
        yield "embed", self.project.weight.flatten(1)
        yield "embed", self.cls.unsqueeze(0)
        if self.more is not None:
            yield "embed", self.more
        if self.project.bias is not None:
            yield "bias", self.project.bias


class Unembedding(nn.Module):
    """Output projection to logits, with the table of the embedding or a separate one.

    logits = cap(N(table) @ (factor * h) + bias),    cap(a) = c * tanh(a / c) if there is a cap c

    table: (vocab, dim), that of the embedding if tied
    N: table_norm, as in the embedding
    bias: (vocab), starts at 0; absent unless head_bias
    """

    def __init__(self, config: Config, vocab: int) -> None:
        super().__init__()
        self.factor, self.cap = config.head_factor, config.head_cap
        shape = (vocab, config.embedding_width)
        self.table = None if config.tied else nn.Parameter(torch.empty(shape))
        self.norm = None if config.tied else _row_norm(config)
        self.bias = nn.Parameter(torch.empty(vocab)) if config.head_bias else None

    def forward(self, h: Tensor, embedding: TokenEmbedding) -> Tensor:
        """Project hidden states, (B, L, dim), to logits, (B, L, vocab)."""
        table = self.rows(embedding)
        logits = linear(h * self.factor if self.factor != 1 else h, table, self.bias)
        return logits if self.cap is None else self.cap * (logits / self.cap).tanh()

    def loss(
        self, h: Tensor, embedding: TokenEmbedding, targets: Tensor, *, smoothing: float
    ) -> LossSums:
        """Return the cross entropy of the logits without storing all of them.

        Args:
            h: (B, L, dim) hidden states
            embedding: token embedding, whose table is used if tied
            targets: (B, L) token ids; IGNORE (-100) excludes a position
            smoothing: label smoothing
        """
        return linear_cross_entropy(
            h * self.factor if self.factor != 1 else h,
            self.rows(embedding),
            targets,
            bias=self.bias,
            cap=self.cap,
            smoothing=smoothing,
        )

    def rows(self, embedding: TokenEmbedding) -> Tensor:
        """Return the rows of the output projection, (vocab, dim)."""
        if self.table is None:
            return embedding.rows
        return self.table if self.norm is None else self.norm(self.table)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (role, weight) of weights that are not shared with the embedding."""
        if self.table is not None:
            yield "embed", self.table
        if self.bias is not None:
            yield "bias", self.bias


def _check_ids(name: str, ids: Tensor) -> None:
    check_tensor(name, ids, "integers of shape (B, L)")
    if ids.ndim != 2 or ids.dtype not in (torch.int32, torch.int64):
        raise UserError(f"{name}: expected integers of shape (B, L), got {describe_value(ids)}")


def _look_up(name: str, ids: Tensor, table: Tensor) -> Tensor:
    """Return rows of a table; raise `UserError` for ids beyond it, where torch can tell."""
    if torch.compiler.is_compiling():
        return F.embedding(ids, table)
    try:
        return F.embedding(ids, table)
    except IndexError:
        check_index_range(name, ids, len(table), "token ids" if name == "ids" else "segments")
        raise


def _row_norm(config: Config) -> Norm | None:
    """Return the norm of the table rows; None instead of NoNorm, which would cast the table."""
    norm = make_norm(config.table_norm, config.embedding_width)
    return None if isinstance(norm, NoNorm) else norm
