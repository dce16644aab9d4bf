"""A step of a deep model from steps of shallow ones, exactly.

The layers of most wirings keep the same number of bytes; those with a history keep one stream more
than the layer before. Bytes and FLOPs are then polynomials of the depth of degree 1 or 2, which two
or three depths determine. A wiring whose layers differ by a fraction of the depth is run as it is.
"""

from dataclasses import dataclass
from fractions import Fraction

import torch

from addnorm.models import Config, build
from addnorm.planning.trace import StepTrace, trace_step
from addnorm.stacks import Stack
from addnorm.wirings.attn_res import AttnRes
from addnorm.wirings.base import Wiring
from addnorm.wirings.mix_ln import MixLN
from addnorm.wirings.u_skips import USkips

FIRST_DEPTHS = (2, 3, 4)
IRREGULAR = (AttnRes, MixLN, USkips)
"""Wirings whose layers depend on their place in the whole stack."""


@dataclass(frozen=True)
class DepthTrace:
    """A step of a model, and the bytes that one layer keeps."""

    activation_bytes: int
    peak_bytes: int
    flops: int
    layer_bytes: int
    """Mean over the layers."""


def trace_depth(
    config: Config, *, batch: int, length: int, dtype: torch.dtype, recompute: bool
) -> DepthTrace:
    """Return a step of a model; see `trace_step`."""

    def trace(depth: int) -> StepTrace:
        changes = {"depth": depth}
        if config.kind == "seq2seq":
            encoder = config.encoder_depth or config.depth
            changes["encoder_depth"] = max(1, depth - config.depth + encoder)
        return trace_step(
            config.replace(**changes), batch=batch, length=length, dtype=dtype, recompute=recompute
        )

    stacks = build(config, device="meta").stacks
    if config.depth <= FIRST_DEPTHS[-1] or len(stacks) > 1 or _is_irregular(stacks, config):
        whole, first = trace(config.depth), trace(1)
        divisor = max(1, config.depth - 1)
        layer = (whole.activation_bytes - first.activation_bytes) // divisor
        if config.depth == 1:
            layer = trace(2).activation_bytes - whole.activation_bytes
        return DepthTrace(whole.activation_bytes, whole.peak_bytes, whole.flops, layer)
    has_history = any(stack.wiring.num_state_tensors is None for stack in stacks)
    depths = FIRST_DEPTHS if has_history else FIRST_DEPTHS[:2]
    steps = [trace(depth) for depth in depths]
    activation, peak, flops = (
        extrapolate(depths, [getattr(step, name) for step in steps], config.depth)
        for name in ("activation_bytes", "peak_bytes", "flops")
    )
    outside = extrapolate(depths, [step.activation_bytes for step in steps], 0)
    return DepthTrace(activation, peak, flops, (activation - outside) // config.depth)


def extrapolate(depths: tuple[int, ...], values: list[int], depth: int) -> int:
    """Return the value at a depth of the polynomial through values at other depths.

    >>> extrapolate((2, 3, 4), [4, 9, 16], 10)
    100
    """
    total = Fraction(0)
    for one, value in zip(depths, values, strict=True):
        term = Fraction(value)
        for other in depths:
            if other != one:
                term *= Fraction(depth - other, one - other)
        total += term
    return round(total)


def _is_irregular(stacks: tuple[Stack, ...], config: Config) -> bool:
    modules = [each for stack in stacks for each in stack.wiring.modules()]
    is_mixed = any(isinstance(each, IRREGULAR) for each in modules if isinstance(each, Wiring))
    return is_mixed or isinstance(config.window, tuple)
