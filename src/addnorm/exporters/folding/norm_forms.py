"""Norms as data: a call string, a gain, a bias, and the rest of the state."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from addnorm.core.calls import Call
from addnorm.exporters.report import Grade
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import Norm
from addnorm.norms.batch import BatchNorm
from addnorm.norms.detach import DetachNorm
from addnorm.norms.fixnorm import FixNorm
from addnorm.norms.group import GroupNorm
from addnorm.norms.l2 import L2Norm
from addnorm.norms.layer import LayerNorm
from addnorm.norms.none import NoNorm
from addnorm.norms.power import PowerNorm
from addnorm.norms.rms import RMSNorm
from addnorm.norms.scale import ScaleNorm

L2_EPS = 1e-12
"""eps of the RMSNorm that replaces a division by the length, which has a floor instead."""


@dataclass
class NormForm:
    """A norm y = gain * n(x) + bias.

    An affine map (a BatchNorm in evaluation, or no norm) has no `call`: it is y = gain * x + bias.
    """

    call: Call | None
    """The plainest call that computes it; None for an affine map."""
    gain: Tensor | None = None
    bias: Tensor | None = None
    state: dict[str, Tensor] = field(default_factory=dict)
    """Tensors of the norm besides gain and bias."""
    text: str = ""
    """What was rewritten; empty if nothing."""
    grade: Grade = "exact"

    @property
    def is_affine(self) -> bool:
        """Whether it is an affine map, without any statistics of its input."""
        return self.call is None

    @property
    def can_scale(self) -> bool:
        """Whether the output can be scaled."""
        return self.is_affine or self.gain is not None

    def scale_output(self, s: float | Tensor) -> None:
        """Multiply the output by s: gain and bias times s."""
        if self.gain is not None:
            self.gain = self.gain * s
        if self.bias is not None:
            self.bias = self.bias * s

    def tensors(self) -> dict[str, Tensor]:
        """Return the state of the norm that `call` names, except for affine maps."""
        own = {"weight": self.gain, "bias": self.bias}
        return self.state | {name: value for name, value in own.items() if value is not None}


def read_norm(norm: Norm, call: Call) -> NormForm:
    """Return the plainest form of a norm in evaluation mode.

    Args:
        norm: the norm, in float64
        call: the call string that it was built from
    """
    rewrite = REWRITES.get(type(norm))
    form = None if rewrite is None else rewrite(norm)
    return _unchanged(norm, call) if form is None else form


def _unchanged(norm: Norm, call: Call) -> NormForm:
    gain = norm.weight if isinstance(norm, AffineNorm) and not _has_offset(norm) else None
    bias = norm.bias if isinstance(norm, AffineNorm) else None
    named = {"weight": gain, "bias": bias}
    state = {
        name: value.detach().clone()
        for name, value in norm.state_dict().items()
        if named.get(name) is None
    }
    return NormForm(call, _copy(gain), _copy(bias), state)


def _has_offset(norm: Norm) -> bool:
    return isinstance(norm, RMSNorm | LayerNorm) and norm.gain_offset != 0


def _read_layer(norm: Norm) -> NormForm | None:
    """LayerNorm: ones and zeros for what is absent, the biased variance for the unbiased.

    g (x - m) / sqrt(v d / (d - 1) + eps) = g' (x - m) / sqrt(v + eps'),
    g' = g sqrt((d - 1) / d), eps' = eps (d - 1) / d
    """
    assert isinstance(norm, LayerNorm)
    if norm.eps_mode == "outside":
        return None
    gain, bias, eps, texts = _affine(norm)[0], _affine(norm)[1], norm.eps, []
    if norm.gain_offset:
        gain = gain + norm.gain_offset
        texts.append("gain 1 + weight written as one")
    if norm.weight is None or norm.bias is None:
        texts.append("missing gains and biases written as ones and zeros")
    if norm.var == "unbiased" and norm.dim > 1:
        ratio = (norm.dim - 1) / norm.dim
        gain, eps = gain * ratio**0.5, eps * ratio
        texts.append("unbiased variance into gain and eps")
    return NormForm(_call("layer", eps, 1e-5), gain, bias, text="; ".join(texts))


def _read_detach(norm: Norm) -> NormForm | None:
    assert isinstance(norm, DetachNorm)
    plain = LayerNorm(norm.dim, eps=norm.eps, affine=False, var=norm.var, eps_mode=norm.eps_mode)
    form = _read_layer(plain.double())
    if form is not None:
        form.text = "a stop-gradient does nothing in evaluation: it is layer"
    return form


def _read_rms(norm: Norm) -> NormForm | None:
    assert isinstance(norm, RMSNorm)
    if not norm.is_standard:
        return None
    gain = _affine(norm)[0] + (norm.gain_offset if norm.weight is not None else 0.0)
    texts = ["gain 1 + weight written as one"] if norm.gain_offset else []
    texts += ["missing gains written as ones"] if norm.weight is None else []
    bias = _copy(norm.bias)
    call = _call("rms", norm.eps, 1e-6)
    if bias is not None:
        call = Call("rms", {**call.options, "bias": True})
    return NormForm(call, gain, bias, text="; ".join(texts))


def _read_length(norm: Norm) -> NormForm | None:
    """g x / |x| = (g / sqrt(d)) x / rms(x)."""
    if isinstance(norm, ScaleNorm):
        length = norm.g.detach()
    else:
        length = torch.tensor(norm.length if isinstance(norm, FixNorm) else 1.0)
    gain = length.double() * norm.dim**-0.5 * torch.ones(norm.dim, dtype=torch.float64)
    text = f"division by the length is rms with eps {L2_EPS:g}"
    return NormForm(_call("rms", L2_EPS, 1e-6), gain, text=text, grade="rounding")


def _read_group(norm: Norm) -> NormForm | None:
    assert isinstance(norm, GroupNorm)
    if norm.groups > 1:
        return None
    return NormForm(_call("layer", norm.eps, 1e-5), *_affine(norm), text="one group is layer")


def _read_batch(norm: Norm) -> NormForm:
    """BatchNorm in evaluation: y = g (x - mean) / sqrt(var + eps) + b."""
    assert isinstance(norm, BatchNorm)
    gain, bias = _affine(norm)
    gain = gain / (norm.running_var + norm.eps).sqrt()
    text = "running statistics make an affine map"
    return NormForm(None, gain, bias - gain * norm.running_mean, text=text)


def _read_power(norm: Norm) -> NormForm:
    """PowerNorm in evaluation: y = g x / sqrt(psi2 + eps) + b."""
    assert isinstance(norm, PowerNorm)
    gain, bias = _affine(norm)
    text = "running statistics make an affine map"
    return NormForm(None, gain / (norm.psi2 + norm.eps).sqrt(), bias, text=text)


def _affine(norm: AffineNorm) -> tuple[Tensor, Tensor]:
    """Return copies of gain and bias, ones and zeros where they are absent."""
    ones = torch.ones(norm.dim, dtype=torch.float64)
    gain, bias = _copy(norm.weight), _copy(norm.bias)
    return ones if gain is None else gain, torch.zeros_like(ones) if bias is None else bias


def _copy(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _call(name: str, eps: float, default: float) -> Call:
    return Call(name, {} if eps == default else {"eps": eps})


REWRITES: dict[type[Norm], Callable[[Norm], NormForm | None]] = {
    LayerNorm: _read_layer,
    DetachNorm: _read_detach,
    RMSNorm: _read_rms,
    ScaleNorm: _read_length,
    L2Norm: _read_length,
    FixNorm: _read_length,
    GroupNorm: _read_group,
    BatchNorm: _read_batch,
    PowerNorm: _read_power,
    NoNorm: lambda norm: NormForm(None),
}
"""Norms with a plainer form in evaluation; None if this variant has none."""
