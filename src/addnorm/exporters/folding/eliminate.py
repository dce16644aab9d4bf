"""Elimination of the terms of a stack: afterwards only norms and weights are left.

Two kinds of stacks are treated:

- without statistics anywhere (no norms, or BatchNorm in evaluation): the stream is an affine
  function of a plain residual stream z, x = C z + u, and C and u go into weights;
- with norms: scales and shifts go into the norms around them, or into weights where these have no
  gain. The scale of a Post-LN skip is carried in the stream (law L4).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from addnorm.exporters.folding import laws
from addnorm.exporters.folding.norm_forms import NormForm
from addnorm.exporters.folding.stack_forms import DoesNotFoldError, SiteForm, StackForm

MIN_RELATIVE_SCALE = 1e-4
"""Smallest entry of a scale, relative to its largest, that may be divided by."""

ScaleEntry = Callable[[Tensor], None]
"""Scales the input of the stack by a vector."""


def eliminate_terms(form: StackForm, scale_entry: ScaleEntry) -> None:
    """Move all scales and shifts of a stack into norms and weights, in place.

    Only `end_scale` and `end_shift` may be left, for whatever reads the output.

    Args:
        form: the stack
        scale_entry: called with the scale of the stack's input, if it is not 1

    Raises:
        DoesNotFoldError: a term cannot be moved; then weights have not been changed
    """
    if any(not norm.is_affine for norm in form.norms):
        _check_norms(form)
        _with_norms(form, scale_entry)
    else:
        _without_norms(form)


def _without_norms(form: StackForm) -> None:
    """x = C z + u with z <- z + f'(z): C and u are carried from site to site."""
    ones = torch.ones(form.stack.plan.dim, dtype=torch.float64)
    scale, shift = ones, torch.zeros_like(ones)
    if form.entry_norm is not None:
        scale, shift = _as_map(form.entry_norm, ones)
        if not bool((scale != 0).all()):
            raise DoesNotFoldError("a gain of 0 in a norm with running statistics")
    steps = []
    for site in form.sites:
        read_scale, read_shift = _as_map(site.pre_norm, ones)
        read_scale, read_shift = _compose(site.in_scale, site.in_shift, read_scale, read_shift)
        post_scale, post_shift = _as_map(site.post_norm, ones)
        post_scale, post_shift = _compose(site.out_scale, site.out_shift, post_scale, post_shift)
        skip = post_scale if site.skip_scale is None else post_scale * site.skip_scale
        branch = post_scale if site.branch_scale is None else post_scale * site.branch_scale
        reads = (read_scale * scale, read_scale * shift + read_shift)
        scale, shift = skip * scale, skip * shift + post_shift
        _check_divisible(scale, "scale of the stream")
        steps.append((site, reads, branch / scale))
    for site, (read_scale, read_shift), branch in steps:
        _apply_inner_shifts(site)
        _read_affine(site, read_scale, read_shift)
        laws.scale_outputs(laws.writers(site.sublayer), branch)
        site.pre_norm = site.post_norm = None
    final_scale, final_shift = _as_map(form.final_norm, ones)
    final_scale, final_shift = _compose(form.end_scale, form.end_shift, final_scale, final_shift)
    form.end_scale = final_scale * scale
    form.end_shift = final_scale * shift + final_shift
    form.final_norm = form.entry_norm = None


def _check_norms(form: StackForm) -> None:
    """Raise `DoesNotFoldError` before anything is changed."""
    for index, site in enumerate(form.sites):
        skip = _not_one(site.skip_scale)
        running = skip or _not_one(site.out_scale) or site.out_shift is not None
        if running and site.post_norm is None:
            raise DoesNotFoldError(
                "a running scale of the stream, which would need another eps at every norm"
            )
        if skip:
            assert site.skip_scale is not None
            _check_divisible(site.skip_scale, f"skip scale of site {index}")
            previous = form.sites[index - 1].post_norm if index else form.entry_norm
            if previous is not None and (previous.is_affine or not previous.can_scale):
                raise DoesNotFoldError("a norm without a gain that could carry the skip's scale")
        post = site.post_norm
        if _not_one(site.out_scale) and post is not None and not post.can_scale:
            raise DoesNotFoldError(f"norm {post.call} has no gain to carry a scale")
    posts = [site.post_norm for site in form.sites if site.post_norm is not None]
    if any(norm.is_affine for norm in posts):
        raise DoesNotFoldError("norms with and without statistics in one stack")


def _with_norms(form: StackForm, scale_entry: ScaleEntry) -> None:
    for site in form.sites:
        _apply_inner_shifts(site)
        if site.branch_scale is not None:
            laws.scale_outputs(laws.writers(site.sublayer), site.branch_scale)
        if site.post_norm is not None and site.out_scale is not None:
            site.post_norm.scale_output(site.out_scale)
        _fold_reading(site)
    for index, site in enumerate(form.sites):
        if site.skip_scale is None or not _not_one(site.skip_scale):
            continue
        previous = form.sites[index - 1].post_norm if index else form.entry_norm
        if previous is None:
            scale_entry(site.skip_scale)
        else:
            previous.scale_output(site.skip_scale)
        laws.scale_inputs(laws.readers(site.sublayer), 1 / site.skip_scale)
    final = form.final_norm
    if final is not None and final.is_affine:
        ones = torch.ones(form.stack.plan.dim, dtype=torch.float64)
        scale, shift = _as_map(final, ones)
        form.end_scale, form.end_shift = _compose(form.end_scale, form.end_shift, scale, shift)
        form.final_norm = None
    elif has_droppable_bias(final):
        assert final is not None and final.bias is not None
        shift = final.bias if form.end_scale is None else final.bias * form.end_scale
        form.end_shift = shift if form.end_shift is None else form.end_shift + shift
        final.bias = None


def _fold_reading(site: SiteForm) -> None:
    """Move scale and shift of what a sub-layer reads into its norm, or into its readers."""
    norm = site.pre_norm
    if norm is None or norm.is_affine:
        ones = torch.ones((), dtype=torch.float64)
        scale, shift = _compose(site.in_scale, site.in_shift, *_as_map(norm, ones))
        _read_affine(site, scale, shift)
        site.pre_norm = None
        return
    if site.in_shift is not None:
        laws.shift_inputs(laws.readers(site.sublayer), site.in_shift)
    if site.in_scale is not None:
        if norm.gain is None:
            laws.scale_inputs(laws.readers(site.sublayer), site.in_scale)
        else:
            norm.scale_output(site.in_scale)
    if has_droppable_bias(norm):
        assert norm.bias is not None
        laws.shift_inputs(laws.readers(site.sublayer), norm.bias)
        norm.bias = None


def has_droppable_bias(norm: NormForm | None) -> bool:
    """Return whether a norm is an RMSNorm with a bias, which hardly any engine has."""
    if norm is None or norm.call is None or norm.bias is None:
        return False
    return norm.call.name == "rms"


def _read_affine(site: SiteForm, scale: Tensor, shift: Tensor | None) -> None:
    linears = laws.readers(site.sublayer)
    if shift is not None and bool((shift != 0).any()):
        laws.shift_inputs(linears, shift.expand(linears[0].in_features))
    laws.scale_inputs(linears, scale)


def _apply_inner_shifts(site: SiteForm) -> None:
    if site.hidden_shift is not None:
        for linear in laws.readers(site.sublayer):
            laws.shift_outputs(linear, site.hidden_shift)
    if site.inner_shift is not None:
        linear = laws.writer(site.sublayer)
        laws.shift_inputs([linear], site.inner_shift.expand(linear.in_features))


def _as_map(norm: NormForm | None, ones: Tensor) -> tuple[Tensor, Tensor]:
    """Return gain and bias of an affine map."""
    zeros = torch.zeros_like(ones)
    if norm is None:
        return ones, zeros
    return (ones if norm.gain is None else norm.gain), (zeros if norm.bias is None else norm.bias)


def _compose(
    outer_scale: Tensor | None, outer_shift: Tensor | None, scale: Tensor, shift: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return scale and shift of outer_scale * (scale * x + shift) + outer_shift."""
    shift = torch.zeros_like(scale) if shift is None else shift
    if outer_scale is not None:
        scale, shift = scale * outer_scale, shift * outer_scale
    return scale, shift if outer_shift is None else shift + outer_shift


def _not_one(scale: Tensor | None) -> bool:
    return scale is not None and bool((scale != 1).any())


def _check_divisible(scale: Tensor, name: str) -> None:
    smallest, largest = scale.abs().min(), scale.abs().max()
    if not bool(smallest >= MIN_RELATIVE_SCALE * largest) or not bool(largest > 0):
        raise DoesNotFoldError(
            f"{name}: entries of very different size ({float(smallest):.2g} and "
            f"{float(largest):.2g}), by which weights would be divided"
        )
