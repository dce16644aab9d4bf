"""Wirings that wrap another one: those that do nothing in evaluation, or scale branches."""

from collections.abc import Iterator

from torch import nn

from addnorm.core.calls import Call
from addnorm.exporters.folding import laws
from addnorm.norms.affine import AffineNorm
from addnorm.norms.base import Norm
from addnorm.norms.scale import ScaleNorm
from addnorm.stacks.transformer import TransformerStack
from addnorm.wirings.base import Wiring
from addnorm.wirings.drop_path import DropPath
from addnorm.wirings.layer_drop import LayerDrop
from addnorm.wirings.normformer import NormFormer
from addnorm.wirings.res_post import ResPost
from addnorm.wirings.sandwich import Sandwich
from addnorm.wirings.scaled import Scaled


def unwrap_decorators(stack: TransformerStack) -> tuple[Wiring, Call, list[tuple[str, str]]]:
    """Remove decorators; factors of `scaled` go into the weights of the stack, in place.

    Returns:
        The wiring inside, its call, and (name, what was done) of each decorator.
    """
    wiring, call, texts = stack.wiring, stack.wiring_call, []
    while True:
        if isinstance(wiring, DropPath | LayerDrop):
            texts.append((call.name, "does nothing in evaluation"))
        elif isinstance(wiring, Scaled) and _can_move_factors(wiring):
            _move_factors(stack, wiring)
            texts.append((str(call), "factors moved into what writes to the stream"))
        else:
            return wiring, call, texts
        inner = call.options.get("inner", "pre_ln")
        wiring, call = wiring.inner, Call.parse(inner)


def _can_move_factors(wiring: Scaled) -> bool:
    return wiring.rule != "unit" and all(
        _has_gain(norm) for _, norm in _exit_norms(wiring) if norm is not None
    )


def _move_factors(stack: TransformerStack, wiring: Scaled) -> None:
    for index, norm in _exit_norms(wiring):
        factor = wiring.factors[index]
        if norm is None:
            laws.scale_outputs(laws.writers(stack.sublayers[index]), factor)
            continue
        norm.set_gain(factor)
        if isinstance(norm, AffineNorm) and norm.bias is not None:
            norm.bias.mul_(factor)


def _exit_norms(wiring: Scaled) -> Iterator[tuple[int, Norm | None]]:
    """Yield (site, norm) of the norms of finished branches; None where there is none."""
    inner: Wiring = wiring
    while isinstance(inner, Scaled):
        inner = inner.inner
    for site in wiring.plan.sites:
        norm: nn.Module | None = None
        if isinstance(inner, Sandwich):
            norm = inner.outer_norms[site.index]
        elif isinstance(inner, ResPost):
            norm = inner.norms[site.index]
        elif isinstance(inner, NormFormer) and str(site.index) in inner.outer_norms:
            norm = inner.outer_norms[str(site.index)]
        yield site.index, norm if isinstance(norm, Norm) else None


def _has_gain(norm: Norm) -> bool:
    has_weight = isinstance(norm, AffineNorm) and norm.weight is not None
    return has_weight or isinstance(norm, ScaleNorm)
