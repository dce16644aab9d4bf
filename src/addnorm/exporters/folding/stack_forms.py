"""Wirings as data: what every site does to the stream, term by term.

A site of a wiring that can fold computes, with all terms optional,

    h      = in_scale * N_pre(x) + in_shift
    x_next = out_scale * N_post(skip_scale * x + branch_scale * f(h)) + out_shift

and a stack ends with y = end_scale * N_final(x) + end_shift. `read_stack` fills in the terms;
`eliminate.py` moves all but the norms into weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from addnorm.core.calls import Call
from addnorm.core.plan import Site
from addnorm.exporters.folding.norm_forms import NormForm, read_norm
from addnorm.norms.base import Norm
from addnorm.stacks.transformer import TransformerStack
from addnorm.wirings.admin import Admin
from addnorm.wirings.base import Wiring
from addnorm.wirings.decorator_base import Decorator
from addnorm.wirings.deepnorm import DeepNorm
from addnorm.wirings.drop_path import DropPath
from addnorm.wirings.false_pre_ln import FalsePreLN
from addnorm.wirings.fixup import Fixup
from addnorm.wirings.gpas import GPAS
from addnorm.wirings.layer_drop import LayerDrop
from addnorm.wirings.layer_scale import LayerScale
from addnorm.wirings.ln_scaling import LNScaling
from addnorm.wirings.mix_ln import MixLN
from addnorm.wirings.none import PlainResidual
from addnorm.wirings.post_ln import PostLN
from addnorm.wirings.post_norm_base import PostNorm
from addnorm.wirings.pre_ln import PreLN
from addnorm.wirings.rezero import ReZero
from addnorm.wirings.scaled import Scaled
from addnorm.wirings.skip_init import SkipInit
from addnorm.wirings.t_fixup import TFixup

PLAIN_WIRINGS = ("post_ln", "pre_ln", "sandwich", "res_post", "parallel", "sub_ln", "none")
"""Wirings that export targets know; the others are folded into these or refused."""

UNFOLDABLE = {
    "b2t": "two skips in one sum",
    "hybrid_norm": "norms after the attention's add only, and norms of queries, keys and values",
    "ngpt": "a norm on the branch and another one on the sum",
    "gated": "the gate depends on the token",
    "resi_dual": "two streams, both normalized",
    "siamese": "two streams, both normalized",
    "dlcl": "later layers read the outputs of all earlier ones",
    "denseformer": "later layers read the outputs of all earlier ones",
    "u_skips": "later layers read the outputs of earlier ones",
    "attn_res": "later layers attend to the outputs of all earlier ones",
    "hyper": "hyper-connections keep {streams} streams",
    "mhc": "manifold hyper-connections keep {streams} streams",
    "keel": "one norm before the sub-layer and another one behind its add",
    "normformer": "norms inside the sub-layers",
    "mix_ln": "Post-LN and Pre-LN layers in one stack",
    "false_pre_ln": "the norm behind the last add is missing",
    "res_scale": "a scale of the stream, feature by feature, under the next norm",
    "deep_delta": "a branch is a direction, not a term of a sum",
    "laurel": "a learned map or weights of the skip",
    "mudd": "later layers read the outputs of all earlier ones",
    "nanochat": "later layers read the embedding",
    "gpas": "a running scale of the stream, which would need another eps at every norm",
}
"""Why a wiring, or a variant of one, has no plainer form, by its name."""


class DoesNotFoldError(Exception):
    """A term of an arrangement has no plainer form; the message is the reason."""


@dataclass
class SiteForm:
    """Terms of one site; None stands for 1, for 0, or for no norm."""

    site: Site
    sublayer: nn.Module
    pre_norm: NormForm | None = None
    in_scale: Tensor | None = None
    in_shift: Tensor | None = None
    hidden_shift: Tensor | None = None
    """Added to the output of a feed-forward's first matrices."""
    inner_shift: Tensor | None = None
    """Added to the input of a feed-forward's last matrix."""
    branch_scale: Tensor | None = None
    skip_scale: Tensor | None = None
    post_norm: NormForm | None = None
    out_scale: Tensor | None = None
    out_shift: Tensor | None = None


@dataclass
class StackForm:
    """Terms of a stack."""

    stack: TransformerStack
    sites: list[SiteForm]
    entry_norm: NormForm | None = None
    """Norm of the stack's input: `embed_norm`, or one that the wiring brings."""
    final_norm: NormForm | None = None
    end_scale: Tensor | None = None
    end_shift: Tensor | None = None
    texts: list[str] = field(default_factory=list)
    """What was rewritten, in words."""

    @property
    def norms(self) -> list[NormForm]:
        """The norm of the embedding, those of the sites, and the final one, as far as present."""
        per_site = [norm for site in self.sites for norm in (site.pre_norm, site.post_norm)]
        return [norm for norm in (self.entry_norm, *per_site, self.final_norm) if norm is not None]


def read_stack(stack: TransformerStack, wiring: Wiring) -> StackForm:
    """Return the terms of a stack.

    Args:
        stack: the stack, in float64
        wiring: its wiring, or the one inside its decorators

    Raises:
        DoesNotFoldError: the wiring is not of this form
    """
    pairs = zip(stack.plan.sites, stack.sublayers, strict=True)
    form = StackForm(stack, [SiteForm(site, sublayer) for site, sublayer in pairs])
    form.entry_norm = _as_form(stack.embed_norm, stack.embed_norm_call)
    _describe(wiring, form)
    return form


def _describe(wiring: Wiring, form: StackForm) -> None:
    describe = DESCRIPTIONS.get(type(wiring))
    if describe is None:
        name = type(wiring).__module__.rpartition(".")[2]  # members live in files of their name
        reason = UNFOLDABLE.get(name, f"{name} has a sum of another form")
        raise DoesNotFoldError(reason.format(streams=getattr(wiring, "streams", "several")))
    describe(wiring, form)


def _norm(form: StackForm, norm: nn.Module | None) -> NormForm | None:
    return _as_form(norm, form.stack.plan.norm)


def _as_form(norm: nn.Module | None, call: Call) -> NormForm | None:
    """Return the form of a norm; None if there is none."""
    if norm is None:
        return None
    assert isinstance(norm, Norm)
    result = read_norm(norm, call)
    is_nothing = result.is_affine and result.gain is None and result.bias is None
    return None if is_nothing else result


def _describe_post(wiring: Wiring, form: StackForm) -> None:
    assert isinstance(wiring, PostNorm)
    dim = form.stack.plan.dim
    for each in form.sites:
        each.post_norm = _norm(form, wiring.norms[each.site.index])
        scale = wiring.scale(each.site)
        each.skip_scale = None if scale is None else _vector(scale, dim)
    if isinstance(wiring, PostLN):
        form.final_norm = _norm(form, wiring.final_norm)
    else:
        form.texts.append("scale of the skip carried in the stream")


def _describe_pre(wiring: Wiring, form: StackForm) -> None:
    assert isinstance(wiring, PreLN | LayerScale | LNScaling | MixLN)
    for each in form.sites:
        each.pre_norm = _norm(form, wiring.norms[each.site.index])
    form.final_norm = _norm(form, wiring.final_norm)


def _describe_layer_scale(wiring: Wiring, form: StackForm) -> None:
    assert isinstance(wiring, LayerScale)
    _describe_pre(wiring, form)
    for each in form.sites:
        each.branch_scale = wiring.gamma[each.site.index]
    form.texts.append("gamma moved into the matrices that write to the stream")


def _describe_ln_scaling(wiring: Wiring, form: StackForm) -> None:
    _describe_pre(wiring, form)
    for each in form.sites:
        each.in_scale = _vector((each.site.layer + 1) ** -0.5, form.stack.plan.dim)
    form.texts.append("1 / sqrt(layer) moved into the norms")


def _describe_mix_ln(wiring: Wiring, form: StackForm) -> None:
    assert isinstance(wiring, MixLN)
    if wiring.num_post_layers == 0:
        _describe_pre(wiring, form)
    elif wiring.num_post_layers == form.stack.plan.depth:
        for each in form.sites:
            each.post_norm = _norm(form, wiring.norms[each.site.index])
        form.final_norm = _norm(form, wiring.final_norm)
    else:
        raise DoesNotFoldError(UNFOLDABLE["mix_ln"])
    form.texts.append("all layers have the same place of the norm")


def _describe_false_pre_ln(wiring: Wiring, form: StackForm) -> None:
    """u = N_k(x), x = u + f(u): Post-LN with the norms moved on by one site."""
    assert isinstance(wiring, FalsePreLN)
    if wiring.final_norm is None:
        raise DoesNotFoldError(UNFOLDABLE["false_pre_ln"])
    if form.entry_norm is not None:
        raise DoesNotFoldError("two norms in a row before the first site")
    first, *others = (*wiring.norms, wiring.final_norm)
    form.entry_norm = _norm(form, first)
    for each, norm in zip(form.sites, others, strict=True):
        each.post_norm = _norm(form, norm)
    form.texts.append("it is post_ln behind a norm of the embedding")


def _describe_rezero(wiring: Wiring, form: StackForm) -> None:
    assert isinstance(wiring, ReZero)
    for each in form.sites:
        index = each.site.layer if wiring.per == "layer" else each.site.index
        each.branch_scale = _vector(wiring.alpha[index], form.stack.plan.dim)
        if wiring.norms is not None:
            each.post_norm = _norm(form, wiring.norms[each.site.index])
    form.texts.append("alpha moved into the matrices that write to the stream")


def _describe_skip_init(wiring: Wiring, form: StackForm) -> None:
    assert isinstance(wiring, SkipInit)
    for each in form.sites:
        each.branch_scale = _vector(wiring.a[each.site.index], form.stack.plan.dim)
    form.texts.append("a moved into the matrices that write to the stream")


def _describe_fixup(wiring: Wiring, form: StackForm) -> None:
    assert isinstance(wiring, Fixup)
    dim = form.stack.plan.dim
    for each in form.sites:
        index = each.site.index
        each.in_shift = _vector(-wiring.shift[index], dim)
        each.branch_scale = _vector(wiring.scale[index], dim)
        if str(index) in wiring.hidden_shift:
            each.hidden_shift = -wiring.hidden_shift[str(index)]
            each.inner_shift = -wiring.inner_shift[str(index)]
    scale = torch.ones(()) if wiring.end_scale is None else wiring.end_scale
    form.end_scale = None if wiring.end_scale is None else _vector(scale, dim)
    form.end_shift = _vector(-wiring.end_shift * scale, dim)
    form.texts.append("shifts and scales moved into weights and biases")


def _describe_plain(wiring: Wiring, form: StackForm) -> None:
    """x + f(x): nothing to describe; T-Fixup differs in its start weights only."""


def _describe_gpas(wiring: Wiring, form: StackForm) -> None:
    assert isinstance(wiring, GPAS)
    _describe(wiring.inner, form)
    dim = form.stack.plan.dim
    for each in form.sites:
        g = wiring.g[each.site.layer if wiring.per == "layer" else each.site.index]
        own = "skip" if wiring.inner.has_post_norm(each.site) else "stream"
        place = own if wiring.place == "own" else wiring.place
        scale = _vector(1 - F.silu(g), dim)
        name = "skip_scale" if place == "skip" else "out_scale"
        before = getattr(each, name)
        setattr(each, name, scale if before is None else before * scale)
    form.texts.append("1 - silu(g) moved into the norms")


def _describe_scaled(wiring: Wiring, form: StackForm) -> None:
    assert isinstance(wiring, Scaled)
    _describe(wiring.inner, form)
    dim = form.stack.plan.dim
    for each in form.sites:
        factor = _vector(wiring.factors[each.site.index], dim)
        each.branch_scale = factor if each.branch_scale is None else each.branch_scale * factor
        if wiring.rule == "unit":
            stream = _vector(wiring.stream_factor(each.site), dim)
            each.out_scale = stream if each.out_scale is None else each.out_scale * stream
    form.texts.append("factors moved into the matrices that write to the stream")


def _describe_inner(wiring: Wiring, form: StackForm) -> None:
    assert isinstance(wiring, Decorator)
    _describe(wiring.inner, form)


def _vector(value: float | Tensor, dim: int) -> Tensor:
    value = torch.as_tensor(value, dtype=torch.float64).detach()
    return value.expand(dim).clone()


DESCRIPTIONS: dict[type[Wiring], Callable[[Wiring, StackForm], None]] = {
    PostLN: _describe_post,
    DeepNorm: _describe_post,
    Admin: _describe_post,
    PreLN: _describe_pre,
    LayerScale: _describe_layer_scale,
    LNScaling: _describe_ln_scaling,
    MixLN: _describe_mix_ln,
    FalsePreLN: _describe_false_pre_ln,
    ReZero: _describe_rezero,
    SkipInit: _describe_skip_init,
    Fixup: _describe_fixup,
    TFixup: _describe_plain,
    PlainResidual: _describe_plain,
    GPAS: _describe_gpas,
    Scaled: _describe_scaled,
    DropPath: _describe_inner,
    LayerDrop: _describe_inner,
}
"""How to read the terms of each wiring that can fold."""


def all_present(norms: Sequence[NormForm | None]) -> bool:
    """Return whether every site has a norm with statistics."""
    return all(norm is not None and not norm.is_affine for norm in norms)
