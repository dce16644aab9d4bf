"""Activations without parameters."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.core.cards import Card
from addnorm.sublayers.activations.base import FunctionActivation, register

_tanh_gelu = partial(F.gelu, approximate="tanh")


def _sigmoid_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x), the "quick GELU" of CLIP."""
    return x * torch.sigmoid(1.702 * x)


def _squared_relu(x: Tensor) -> Tensor:
    return F.relu(x).square()


PLAIN_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": _tanh_gelu,
    "gelu_sigmoid": _sigmoid_gelu,
    "silu": F.silu,
    "relu2": _squared_relu,
}
"""Plain activations without parameters."""
GATED_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "swiglu": F.silu,
    "reglu": F.relu,
    "geglu": F.gelu,
    "geglu_tanh": _tanh_gelu,
}
"""Gated activations without options: the function of the gate."""


def _register_function(
    name: str,
    title: str,
    formula: str,
    paper: str,
    summary: str,
) -> None:
    """Register an activation without parameters and without options."""
    gated = name in GATED_ACTIVATIONS
    function: Any = GATED_ACTIVATIONS[name] if gated else PLAIN_ACTIVATIONS[name]
    members = {"function": staticmethod(function), "is_gated": gated, "__doc__": f"{summary}"}
    member = type(f"{title.replace(' ', '')}Activation", (FunctionActivation,), members)
    member.__module__ = __name__
    register(Card(name=name, title=title, formula=formula, paper=paper, summary=summary))(member)


_HENDRYCKS = "Hendrycks and Gimpel, Gaussian Error Linear Units (GELUs), 2016, arXiv 1606.08415"
_SHAZEER = "Shazeer, GLU Variants Improve Transformer, 2020, arXiv 2002.05202"
for _row in (
    ("relu", "ReLU", "max(u, 0)", "Vaswani et al., Attention Is All You Need, 2017, arXiv "
     "1706.03762", "The activation of the original Transformer."),
    ("gelu", "GELU", "u * Phi(u)", _HENDRYCKS, "ReLU made smooth; BERT and GPT-2."),
    ("gelu_tanh", "GELU tanh", "u / 2 * (1 + tanh(sqrt(2 / pi) (u + 0.044715 u^3)))", _HENDRYCKS,
     "The approximation of GPT-2's code."),
    ("gelu_sigmoid", "GELU sigmoid", "u * sigmoid(1.702 u)", _HENDRYCKS,
     "The approximation of CLIP's code."),
    ("silu", "SiLU", "u * sigmoid(u)", _HENDRYCKS, "Swish with slope 1."),
    ("relu2", "Squared ReLU", "max(u, 0) ** 2",
     "So et al., Primer: Searching for Efficient Transformers, 2021, arXiv 2109.08668",
     "Nemotron, Arcee, nanochat and modded-nanogpt use it."),
    ("swiglu", "SwiGLU", "u * silu(g)", _SHAZEER, "The feed-forward of LLaMA and most since."),
    ("reglu", "ReGLU", "u * relu(g)", _SHAZEER, "A gate of ReLU."),
    ("geglu", "GEGLU", "u * gelu(g)", _SHAZEER, "A gate of GELU; T5 v1.1 and Gemma."),
    ("geglu_tanh", "GEGLU tanh", "u * gelu_tanh(g)", _SHAZEER, "GEGLU with GPT-2's approximation."),
):  # fmt: skip
    _register_function(*_row)
