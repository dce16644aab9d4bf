"""Activations of the feed-forward, chosen by call string."""

from addnorm.sublayers.activations.base import (
    Activation,
    FunctionActivation,
    is_gated,
    make_activation,
    registry,
    resolve_activation,
)
from addnorm.sublayers.activations.functions import GATED_ACTIVATIONS, PLAIN_ACTIVATIONS
from addnorm.sublayers.activations.poly_norm import PolyNorm
from addnorm.sublayers.activations.poly_relu import PolyReLU
from addnorm.sublayers.activations.star_relu import StarReLU
from addnorm.sublayers.activations.swiglu_clamped import ClampedSwiGLU
from addnorm.sublayers.activations.xielu import XIELU

__all__ = [
    "GATED_ACTIVATIONS",
    "PLAIN_ACTIVATIONS",
    "XIELU",
    "Activation",
    "ClampedSwiGLU",
    "FunctionActivation",
    "PolyNorm",
    "PolyReLU",
    "StarReLU",
    "is_gated",
    "make_activation",
    "registry",
    "resolve_activation",
]
