"""Embeddings of numeric features, chosen by call string."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.cards import Card
from addnorm.core.registry import Count, Positive, Registry

registry: "Registry[NumericEmbedding]" = Registry("numeric embedding")
register = registry.register


def make_numeric_embedding(call: str | Call, count: int, dim: int) -> "NumericEmbedding":
    """Build the embedding of `count` numeric columns from a call string.

    >>> make_numeric_embedding("piecewise(bins=4)", 3, 8)(torch.zeros(2, 3)).shape
    torch.Size([2, 3, 8])
    """
    return registry.make(call, count, dim)


class NumericEmbedding(nn.Module, ABC):
    """Embedding of numbers with separate parameters for each column."""

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Embed numbers, (B, columns), as vectors, (B, columns, dim)."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Initialize the parameters."""

    def fit_bins(self, x: Tensor, *, absent: Tensor, weights: Tensor) -> None:
        """Compute buffers such as bins from training rows; does nothing by default.

        Args:
            x: (rows, columns) numbers
            absent: (rows, columns) boolean, True at missing numbers
            weights: (rows) positive weights
        """


def init_uniform_(weight: Tensor, width: int) -> None:
    """Initialize uniformly in +-1 / sqrt(width), as the released code of FT-Transformer does."""
    if not weight.is_meta:
        nn.init.uniform_(weight, -(width**-0.5), width**-0.5)


@register(
    Card(
        name="linear",
        title="Linear",
        formula="t_j = x_j * w_j + b_j",
        paper=(
            "Gorishniy et al., Revisiting Deep Learning Models for Tabular Data, 2021, arXiv "
            "2106.11959"
        ),
        summary="The tokenizer of FT-Transformer: one direction per column.",
    )
)
class LinearEmbedding(NumericEmbedding):
    """A direction and an offset for each column.

    t_j = x_j * w_j + b_j

    x_j: the number in column j
    w, b: (columns, dim), start uniform in +-1 / sqrt(dim)

    Gorishniy et al. 2021, section 3.3.
    """

    def __init__(self, count: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, dim))
        self.bias = nn.Parameter(torch.empty(count, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        init_uniform_(self.weight, self.weight.shape[1])
        init_uniform_(self.bias, self.bias.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, x[..., None], self.weight)


@register(
    Card(
        name="piecewise",
        title="Piecewise linear",
        formula="t_j = W_j ple(x_j) + b_j",
        paper=(
            "Gorishniy et al., On Embeddings for Numerical Features in Tabular Deep Learning, 2022,"
            " arXiv 2203.05556"
        ),
        summary="Piecewise linear encoding: position of a number within quantile bins.",
    )
)
class PiecewiseEmbedding(NumericEmbedding):
    """Piecewise linear encoding of a number within quantile bins.

    t_j    = W_j p + b_j + x_j * w_j
    p_k    = clip((x_j - e_k) / (e_{k+1} - e_k), 0, 1)

    e: bins + 1 edges, quantiles of the column in the training rows; equal ones leave a bin without
        width, whose p is 0
    W: (columns, bins, dim), starts at 0; w, b: (columns, dim), as in `linear`
    bins: number of bins

    Gorishniy et al. 2022, section 3.2.
    """

    # NOTE[DIFF]: in the paper the first bin is unbounded below and the last above; here only the
    # linear part is. The estimators pass quantile scores, which end at the limits of the training
    # rows, so that no part of their predictions extrapolates.
    # NOTE[DIFF]: the paper has no linear part and starts W at random; with W at 0 beside a linear
    # part (as the same authors' later rtdl_num_embeddings does it, version "B") training starts
    # as FT-Transformer and becomes nonlinear during training.
    edges: Tensor

    def __init__(self, count: int, dim: int, *, bins: Count = 48) -> None:
        super().__init__()
        self.linear = LinearEmbedding(count, dim)
        self.weight = nn.Parameter(torch.empty(count, bins, dim))
        self.register_buffer("edges", torch.linspace(-3, 3, bins + 1).repeat(count, 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.linear.reset_parameters()
        nn.init.zeros_(self.weight)

    @torch.no_grad()
    def fit_bins(self, x: Tensor, *, absent: Tensor, weights: Tensor) -> None:
        quantiles = torch.linspace(0, 1, self.edges.shape[1], dtype=torch.float64)
        for column in range(x.shape[1]):
            present = ~absent[:, column]
            if not bool(present.any()):
                continue
            values, order = x[present, column].double().sort()
            mass = weights[present][order].double().cumsum(0)
            index = torch.searchsorted(mass, quantiles * mass[-1]).clamp(max=len(values) - 1)
            self.edges[column] = values[index].to(self.edges.dtype)

    def forward(self, x: Tensor) -> Tensor:
        low, width = self.edges[:, None, :-1], self.edges.diff(dim=1)[:, None]  # (columns, 1, bins)
        has_width = width > 0
        # The columns come first, as the product wants them. In place, because new memory for each
        # intermediate result takes longer than the arithmetic.
        p = (x.T[..., None] - low).div_(torch.where(has_width, width, 1.0)).clamp_(0, 1)
        p = p.mul_(has_width)  # (columns, B, bins)
        piecewise = torch.bmm(p, self.weight).transpose(0, 1)  # (B, columns, dim)
        return self.linear(x) + piecewise


@register(
    Card(
        name="periodic",
        title="Periodic",
        formula="t_j = relu(W_j [sin(2 pi c_j x_j), cos(2 pi c_j x_j)] + b_j)",
        paper=(
            "Gorishniy et al., On Embeddings for Numerical Features in Tabular Deep Learning, 2022,"
            " arXiv 2203.05556"
        ),
        summary="Learned sinusoids followed by a linear layer; captures periodic structure.",
    )
)
class PeriodicEmbedding(NumericEmbedding):
    """Periodic embedding of a number.

    t_j = relu(W_j v + b_j),    v = [sin(2 pi c_j x_j), cos(2 pi c_j x_j)]

    c: (columns, waves), learned, starts at N(0, sigma^2)
    W: (columns, 2 * waves, dim); b: (columns, dim); both start uniform in +-1 / sqrt(2 * waves)
    waves: frequencies per column

    Gorishniy et al. 2022, section 3.3 ("PLR").
    """

    def __init__(self, count: int, dim: int, *, waves: Count = 24, sigma: Positive = 0.1) -> None:
        super().__init__()
        self.sigma = sigma
        self.frequencies = nn.Parameter(torch.empty(count, waves))
        self.weight = nn.Parameter(torch.empty(count, 2 * waves, dim))
        self.bias = nn.Parameter(torch.empty(count, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        width = self.weight.shape[1]
        if not self.frequencies.is_meta:
            nn.init.normal_(self.frequencies, std=self.sigma)
        init_uniform_(self.weight, width)
        init_uniform_(self.bias, width)

    def forward(self, x: Tensor) -> Tensor:
        angle = 2 * math.pi * x[..., None] * self.frequencies  # (B, columns, waves)
        waves = torch.cat((angle.sin(), angle.cos()), -1)
        projected = torch.bmm(waves.transpose(0, 1), self.weight).transpose(0, 1)
        return (projected + self.bias).relu()


@register(
    Card(
        name="mlp",
        title="Small network",
        formula="t_j = W_j relu(x_j * w_j + b_j) + c_j",
        paper=(
            "Somepalli et al., SAINT: Improved Neural Networks for Tabular Data via Row Attention "
            "and Contrastive Pre-Training, 2021, arXiv 2106.01342"
        ),
        summary="One hidden layer for each column, as in SAINT.",
    )
)
class ColumnMLP(NumericEmbedding):
    """A network of one hidden layer for each column.

    t_j = W_j relu(x_j * w_j + b_j) + c_j

    w, b: (columns, hidden), start uniform in +-1; W: (columns, hidden, dim) and c: (columns, dim)
        uniform in +-1 / sqrt(hidden)
    hidden: features of the hidden layer

    The released code of Somepalli et al. 2021.
    """

    def __init__(self, count: int, dim: int, *, hidden: Count = 100) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.empty(count, hidden))
        self.inner_bias = nn.Parameter(torch.empty(count, hidden))
        self.weight = nn.Parameter(torch.empty(count, hidden, dim))
        self.bias = nn.Parameter(torch.empty(count, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for weight, width in (
            (self.inner, 1),
            (self.inner_bias, 1),
            (self.weight, self.inner.shape[1]),
            (self.bias, self.inner.shape[1]),
        ):
            init_uniform_(weight, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.addcmul(self.inner_bias, x[..., None], self.inner).relu()
        projected = torch.bmm(hidden.transpose(0, 1), self.weight).transpose(0, 1)
        return projected + self.bias
