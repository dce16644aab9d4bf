"""Feed-forward sub-layer: two matrices and an activation, or three with a gate."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from addnorm.core.plan import Plugs, Shape
from addnorm.kernels.dropout import Dropout
from addnorm.kernels.linear import apply_linear
from addnorm.sublayers.activations import (
    Activation,
    FunctionActivation,
    is_gated,
    make_activation,
    resolve_activation,
)
from addnorm.sublayers.attention_options.canon import CanonLayer, check_places, run_canon
from addnorm.sublayers.base import Sublayer, check_dropout, check_input, check_positive_int
from addnorm.sublayers.cache import LayerCache
from addnorm.sublayers.packing import Packing


class FeedForward(Sublayer):
    """The same small network on every token.

    y = down(act(up(x)))              relu, gelu, gelu_tanh, gelu_sigmoid, silu, relu2, star_relu,
                                      poly_norm, poly_relu, xielu
    y = down(up(x) * act(gate(x)))    swiglu, reglu, geglu, geglu_tanh; also swiglu_clamped

    x, y: (B, L, dim)
    up, gate: dim -> hidden
    down: hidden -> dim
    hidden: 4 * dim; gated 8 / 3 * dim, rounded up to a multiple of 8, for as many weights

    canon: places of Canon layers, of "C" (the input) and "D" (up(x) and gate(x)); only these use
        mask, cache and packing of a call

    Dropout follows the activation (and the gate). Plugs of a wiring: `hidden` receives up(x), or
    up(x) and gate(x) concatenated in this order, 2 * hidden features; `inner` receives the input of
    `down`.

    Vaswani et al. 2017, section 3.3; gates: Shazeer, GLU Variants Improve Transformer, 2020, arXiv
    2002.05202. Pitfall: code with one matrix for value and gate splits its product, and not always
    in this order; ReGLU in FT-Transformer is (first half) * relu(second half), as here.

    >>> FeedForward(6, activation="swiglu")(torch.randn(2, 5, 6)).shape
    torch.Size([2, 5, 6])
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        *,
        activation: str = "relu",
        bias: bool = True,
        dropout: float = 0.0,
        canon: str = "",
    ) -> None:
        super().__init__()
        check_positive_int("dim", dim)
        check_dropout("dropout", dropout)
        activation = resolve_activation(activation)
        self.gated = is_gated(activation)
        if hidden is None:
            hidden = -(-dim // 3) * 8 if self.gated else 4 * dim
        check_positive_int("hidden", hidden)
        self.dim, self.hidden, self.activation = dim, hidden, activation
        member = make_activation(activation, hidden)
        # A function without parameters is no module, so that it can be replaced by any other.
        is_function = isinstance(member, FunctionActivation)
        self.act: Callable[..., Tensor] = type(member).function if is_function else member  # type: ignore[attr-defined]
        self.up_proj = nn.Linear(dim, hidden, bias=bias)
        self.gate_proj = nn.Linear(dim, hidden, bias=bias) if self.gated else None
        self.down_proj = nn.Linear(hidden, dim, bias=bias)
        self.dropout = Dropout(dropout)
        check_places(canon, "CD")
        self.canon_c = CanonLayer(dim) if "C" in canon else None
        self.canon_d = CanonLayer(self.shape.hidden) if "D" in canon else None

    @property
    def shape(self) -> Shape:
        hidden = 2 * self.hidden if self.gated else self.hidden
        return Shape(inner=self.hidden, hidden=hidden, dim=self.dim)

    def roles(self) -> Iterator[tuple[str, Tensor]]:
        into = [self.up_proj] if self.gate_proj is None else [self.up_proj, self.gate_proj]
        yield from (("ffn_in", linear.weight) for linear in into)
        yield "ffn_out", self.down_proj.weight
        linears = (*into, self.down_proj)
        yield from (("bias", linear.bias) for linear in linears if linear.bias is not None)

    def forward(
        self,
        x: Tensor,
        *,
        plugs: Plugs | None = None,
        mask: Tensor | None = None,
        cache: LayerCache | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        check_input("the input of a feed-forward", x, self.dim)
        plugs = plugs or Plugs()
        convolve = partial(run_canon, mask=mask, cache=cache, packing=packing)
        if self.canon_c is not None:
            x = convolve(self.canon_c, x, "input")
        value = apply_linear(self.up_proj, x)
        if self.gate_proj is None:
            value = value if self.canon_d is None else convolve(self.canon_d, value, "inner")
            inner = self.act(value if plugs.hidden is None else plugs.hidden(value))
        else:
            gate = apply_linear(self.gate_proj, x)
            if self.canon_d is not None:
                both = convolve(self.canon_d, torch.cat((value, gate), -1), "inner")
                value, gate = both.chunk(2, -1)
            if plugs.hidden is not None:
                value, gate = plugs.hidden(torch.cat((value, gate), -1)).chunk(2, -1)
            inner = self._apply_gate(value, gate)
        inner = self.dropout(inner)
        return apply_linear(self.down_proj, inner if plugs.inner is None else plugs.inner(inner))

    def _apply_gate(self, value: Tensor, gate: Tensor) -> Tensor:
        if isinstance(self.act, Activation):
            return self.act(value, gate)
        return value * self.act(gate)

    def reset_parameters(self) -> None:
        for part in (self.act, self.canon_c, self.canon_d):
            if isinstance(part, Activation | CanonLayer):
                part.reset_parameters()

    def extra_repr(self) -> str:
        return f"activation={self.activation}"
