"""Norms of a CTranslate2 model, which has one epsilon for all of them.

A norm with another epsilon is exact if its input can be scaled, N(c z; c^2 eps) = N(z; eps): query-
key norms, outer norms and the norm of the embedding follow matrices, which take the factor c.

The engine adds the residual only where a sub-layer has a norm. A wiring without norms gets
stand-ins: RMS norms of so large an epsilon that they are the identity up to rounding,
g x / sqrt(mean(x^2) + g^2) with g = 1e4.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from addnorm.exporters.ctranslate2.library import import_ctranslate2
from addnorm.exporters.ctranslate2.refusal import refuse, to_array
from addnorm.models import Model
from addnorm.norms.layer import LayerNorm
from addnorm.norms.none import NoNorm
from addnorm.norms.rms import RMSNorm

STAND_IN_GAIN = 1e4


@dataclass(frozen=True)
class PlainNorm:
    """LayerNorm or RMSNorm with its parameters written out; `bias` is None for RMSNorm."""

    gain: Tensor
    bias: Tensor | None
    eps: float


def read_norm(norm: nn.Module, site: str) -> PlainNorm | None:
    """Return the parameters of a norm, or None if it is the identity; refuse other norms."""
    if isinstance(norm, NoNorm):
        return None
    params = norm.kernel_params() if isinstance(norm, LayerNorm | RMSNorm) else None
    if params is None or not isinstance(norm, LayerNorm | RMSNorm):
        name = str(norm) if isinstance(norm, LayerNorm | RMSNorm) else type(norm).__name__
        raise refuse(site, f"the norm {name}")
    gain = torch.ones(norm.dim) if params.weight is None else params.weight.detach()
    bias = None if params.bias is None else params.bias.detach()
    if isinstance(norm, RMSNorm):
        if bias is not None:
            raise refuse(site, "an RMSNorm with a bias")
        return PlainNorm(gain, None, norm.eps)
    return PlainNorm(gain, torch.zeros(norm.dim) if bias is None else bias, norm.eps)


@dataclass(frozen=True)
class NormWriter:
    """Writer of norms with the epsilon of a model."""

    eps: float
    """The `layer_norm_epsilon` of the engine."""
    has_stand_ins: bool
    """Whether the sites have no norms."""

    @classmethod
    def from_model(cls, model: Model) -> "NormWriter":
        """Return the writer for a model whose site norms agree in their epsilon."""
        epsilons: dict[float, str] = {}
        without_norm = []
        for stack in model.stacks:
            modules = [*getattr(stack.wiring, "norms", ())]
            final = getattr(stack.wiring, "final_norm", None)
            sites = [f"{stack.side} norm {index}" for index in range(len(modules))]
            modules += [] if final is None else [final]
            norms = map(read_norm, modules, [*sites, f"{stack.side}.final_norm"])
            for site, norm in zip([*sites, f"{stack.side}.final_norm"], norms, strict=False):
                if norm is None:
                    without_norm.append(site)
                else:
                    epsilons.setdefault(norm.eps, stack.side)
            without_norm += [] if sites else [stack.side]
        if without_norm and epsilons:
            other = next(iter(epsilons.values()))
            raise refuse(without_norm[0], f"no norm, with norms elsewhere in the {other}")
        if len(epsilons) > 1:
            listed = " and ".join(f"{eps:g} in {site}" for eps, site in epsilons.items())
            raise refuse("norms", f"epsilons of {listed}, where it has one for a model")
        return cls(next(iter(epsilons), STAND_IN_GAIN**2), bool(without_norm))

    def input_scale(self, norm: nn.Module, site: str) -> float:
        """Return the factor c on the input of a norm that makes its epsilon that of the model."""
        plain = read_norm(norm, site)
        if plain is None or plain.eps == self.eps:
            return 1.0
        if plain.eps == 0:
            raise refuse(site, "a norm without an epsilon")
        return (self.eps / plain.eps) ** 0.5

    def make(self, norm: nn.Module | None, site: str, dim: int) -> Any:
        """Return the specification of a norm; None and the identity give a stand-in."""
        plain = None if norm is None else read_norm(norm, site)
        spec_class = import_ctranslate2().specs.common_spec.LayerNormSpec
        if plain is None:
            spec = spec_class(rms_norm=True)
            spec.gamma = np.full(dim, STAND_IN_GAIN, np.float32)
            return spec
        spec = spec_class(rms_norm=plain.bias is None)
        spec.gamma = to_array(plain.gain)
        if plain.bias is not None:
            spec.beta = to_array(plain.bias)
        return spec
