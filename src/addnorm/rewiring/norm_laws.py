"""Norm modules of any model, found by the doctor and read by what they compute.

A module is a norm if it maps a token x to gain * n(x) + bias, with

    n(x) = (x - mean(x)) / s   (kind layer)  or  x / s   (kind rms)
    s    = sqrt(mean square + eps)  or  root mean square + eps

`read_law` calls it on a few vectors, which determine gain, bias and eps, and then compares it with
the formula on others. Class and attribute names are not looked at.
"""

import contextlib
import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.doctor.analysis.norms import is_query_key
from addnorm.doctor.model_trace import CallArguments, trace_model
from addnorm.doctor.trace.errors import USER_CODE_ERRORS
from addnorm.norms.base import Norm, make_norm
from addnorm.norms.statistics import EpsMode
from addnorm.rewiring.batches import Batch, find_dtype
from addnorm.rewiring.proof import CastWatcher

FEATURE_NORMS = ("layer", "rms")
MIN_FEATURES = 3
"""Of two features, LayerNorm returns nothing but their order."""
TOLERANCE = 1e-9
FLOAT32_TOLERANCE = 1e-5
"""Of a module that computes in float32 whatever its input is."""


@dataclass(frozen=True)
class NormLaw:
    """What a norm computes on one token."""

    kind: Literal["layer", "rms"]
    gain: Tensor
    """Factor of each feature, (dim), in float64; ones for a norm without a gain."""
    bias: Tensor
    eps: float
    eps_mode: EpsMode = "inside"

    @property
    def dim(self) -> int:
        """Features of a token."""
        return self.gain.shape[0]

    @property
    def has_constant_gain(self) -> bool:
        """Whether all features have the same gain."""
        return bool((self.gain - self.gain[0]).abs().max() <= 1e-12 * self.gain.abs().max())

    def normalize(self, x: Tensor) -> Tensor:
        """Return n(x), without gain and bias."""
        x = x - x.mean(-1, keepdim=True) if self.kind == "layer" else x
        square = x.square().mean(-1, keepdim=True)
        inside = self.eps_mode == "inside"
        return x / ((square + self.eps).sqrt() if inside else square.sqrt() + self.eps)

    def __call__(self, x: Tensor) -> Tensor:
        gain, bias = self.gain.to(x), self.bias.to(x)
        return self.normalize(x) * gain + bias

    def to_call(self, name: str = "rms") -> Call:
        """Return the call string of a norm with this gain, bias and eps."""
        options: dict[str, object] = {"eps": self.eps}
        if self.eps_mode != "inside":
            options["eps_mode"] = self.eps_mode
        if bool((self.bias != 0).any()) and name == "rms":
            options["bias"] = True
        return Call(name, options)


@dataclass(frozen=True)
class NormSite:
    """A norm module inside a model."""

    path: str
    law: NormLaw
    before: str = ""
    """Kind of the norm in the original, if its law has been simplified since."""
    is_query_key: bool = False
    """Whether it normalizes queries or keys, not the stream."""

    @property
    def kind(self) -> str:
        """Kind of the norm in the original."""
        return self.before or self.law.kind

    @property
    def dim(self) -> int:
        """Features of a token."""
        return self.law.dim


def read_law(module: nn.Module, dim: int, rank: int = 3) -> NormLaw | None:
    """Return what a module computes, or None if it is not a norm of single tokens.

    Args:
        module: any module
        dim: features of a token
        rank: number of axes of the inputs that it gets in the model
    """
    if dim < MIN_FEATURES or sum(p.numel() for p in module.parameters()) > 4 * dim:
        return None
    probe = copy.deepcopy(module).double().eval()

    def call(x: Tensor) -> Tensor:
        out = probe(x.view(*[1] * (rank - x.ndim), *x.shape) if rank > x.ndim else x)
        if not isinstance(out, Tensor) or out.numel() != x.numel():
            raise ValueError
        return out.detach().view(x.shape).double()

    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, dim, generator=generator, dtype=torch.float64) + 0.3
    try:
        with torch.no_grad():
            return _match_law(call, x)
    except USER_CODE_ERRORS:
        return None


def _match_law(call: "object", x: Tensor) -> NormLaw | None:
    assert callable(call)
    bias = call(torch.zeros_like(x[:1]))[0]
    shifted = call(x + 5.0) - call(x)
    kind: Literal["layer", "rms"] = "layer" if float(shifted.abs().max()) < 1e-4 else "rms"
    # Far from zero in every feature, also without the mean, and so large that eps does not matter.
    signs = torch.ones_like(x[:1])
    signs[:, ::2] = -1.0
    large = signs * (1.0 + 0.1 * x[:1].abs()) * 1e10
    if kind == "layer":
        large = large - large.mean()
    gain = ((call(large)[0] - bias) / (large / large.square().mean().sqrt())[0]).clone()
    used = int(gain.abs().argmax())
    if float(gain.abs().max()) == 0:
        return None
    eps: dict[EpsMode, list[float]] = {"inside": [], "outside": []}
    for size in (1e-2, 1e-3):
        small = size * x[:1]
        centered = small - small.mean() if kind == "layer" else small
        ratio = float(gain[used] * centered[0, used] / (call(small)[0, used] - bias[used]))
        mean_square = float(centered.square().mean())
        eps["inside"].append(ratio**2 - mean_square)
        eps["outside"].append(ratio - mean_square**0.5)
    for mode in ("inside", "outside"):
        second = max(eps[mode][1], 0.0)
        for candidate in (float(f"{second:.2g}"), float(f"{second:.4g}"), second):
            law = NormLaw(kind, gain, bias, candidate, mode)
            if _fits(law, call, x):
                return law
    return None


def _fits(law: NormLaw, call: "object", x: Tensor) -> bool:
    assert callable(call)
    tests = [x, 1e-3 * x, 1e3 * x + 7, torch.cat((x[1:], x[:1])) * 0.1 - 1]
    with CastWatcher() as watcher:
        outputs = [call(test) for test in tests]
    pairs = zip(tests, outputs, strict=True)
    differences = [float((law(test) - output).abs().max()) for test, output in pairs]
    tolerance = FLOAT32_TOLERANCE if watcher.has_casts else TOLERANCE
    return max(differences) <= tolerance * max(1.0, float(law.gain.abs().max()))


def find_norm_sites(
    model: nn.Module, batch: Batch, kinds: tuple[str, ...] = FEATURE_NORMS
) -> list[NormSite]:
    """Return the norm modules of a model, in the order of execution.

    Args:
        model: any model
        batch: inputs for one forward pass
        kinds: kinds of norms to look for

    Raises:
        UserError: a norm of these kinds is written inside the forward of a larger module, is used
            at several sites, or is not over the features of a token
    """
    args, kwargs = batch.prepare(*find_dtype(model))
    with trace_model(model, CallArguments(args, kwargs), backward=False) as trace:
        graph = trace.analysis.graph
        uses = [
            (norm.path, norm.kind, graph[norm.source].shape, norm.axes, is_query_key(graph, norm))
            for norm in sorted(trace.analysis.norms.values(), key=lambda each: each.node)
            if norm.kind in kinds
        ]
        counts = trace.recording.call_counts
    sites: dict[str, NormSite] = {}
    for path, kind, shape, axes, is_own in uses:
        if path in sites:
            raise UserError(
                f"{path}: expected one use of a norm, got several in one forward; give every site "
                "a norm of its own"
            )
        if shape and shape[-1] < MIN_FEATURES:
            raise UserError(
                f"{path}: expected a norm over at least {MIN_FEATURES} features, got {shape[-1]}"
            )
        module = model.get_submodule(path) if path else model
        law = read_law(module, shape[-1], len(shape)) if shape else None
        if law is None:
            where = f"over the axes {axes}" if axes and axes != (-1,) else "by hand or functionally"
            raise UserError(
                f"{path or type(model).__name__}: expected every {kind} norm as a module of its "
                f"own, got one computed {where} inside the forward of {type(module).__name__}; "
                "make it a module over the last axis first"
            )
        if counts.get(path, 1) > 1:
            raise _shared_error(path, f"{counts[path]} calls in one forward")
        sites[path] = NormSite(path, law, is_query_key=is_own)
    return list(sites.values())


def find_all_sites(module: nn.Module, batch: Batch) -> list[NormSite]:
    """Return all LayerNorms, and the RMSNorms that are modules; others of these may stay."""
    found = find_norm_sites(module, batch, ("layer",))
    with contextlib.suppress(UserError):
        found += find_norm_sites(module, batch, ("rms",))
    return found


def _shared_error(path: str, what: str) -> UserError:
    return UserError(
        f"{path}: expected a norm of one site, got {what}; give every site a norm of its own"
    )


def make_rms(law: NormLaw, call: Call | None = None) -> Norm:
    """Return an RMSNorm with gain, bias and eps of a law."""
    norm = make_norm(law.to_call("rms") if call is None else call, law.dim).double()
    with torch.no_grad():
        if getattr(norm, "weight", None) is not None:
            norm.get_parameter("weight").copy_(law.gain)
        if getattr(norm, "bias", None) is not None:
            norm.get_parameter("bias").copy_(law.bias)
    return norm


def set_module(model: nn.Module, path: str, module: nn.Module) -> None:
    """Replace the module at a path."""
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
