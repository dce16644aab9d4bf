"""Reference implementations: every norm written from its paper, without addnorm.

Each function takes parameters, buffers and options by keyword and ignores those it does not need.
Masked norms gather the valid tokens; the library weights all tokens by the mask instead.
"""

import math

import torch


def affine(y, weight, bias):
    y = y if weight is None else weight * y
    return y if bias is None else y + bias


def standardize(x, eps, var, eps_mode):
    variance = x.var(-1, correction=1 if var == "unbiased" else 0, keepdim=True)
    spread = (variance + eps) ** 0.5 if eps_mode == "inside" else variance**0.5 + eps
    return (x - x.mean(-1, keepdim=True)) / spread


def layer(x, weight=None, bias=None, eps=1e-5, gain="plain", var="biased", eps_mode="inside", **_):
    gains = 1 + weight if gain == "one_plus" else weight
    return affine(standardize(x, eps, var, eps_mode), gains, bias)


def rms(x, weight=None, bias=None, eps=1e-6, gain="plain", share=1.0, eps_mode="inside", **_):
    k = max(1, math.floor(share * x.shape[-1]))
    mean_square = sum(x[..., i] ** 2 for i in range(k))[..., None] / k
    size = (mean_square + eps) ** 0.5 if eps_mode == "inside" else mean_square**0.5 + eps
    return affine(x / size, 1 + weight if gain == "one_plus" else weight, bias)


def scale(x, g, eps=1e-5, **_):
    return g * x / torch.maximum((x * x).sum(-1, keepdim=True) ** 0.5, torch.tensor(eps))


def l2(x, eps=1e-12, **_):
    return x / torch.maximum((x * x).sum(-1, keepdim=True) ** 0.5, torch.tensor(eps))


def fixnorm(x, length=1.0, **_):
    return length * x / (x * x).sum(-1, keepdim=True) ** 0.5


def none(x, **_):
    return x


def detach(x, which="both", eps=1e-5, var="biased", eps_mode="inside", **_):
    centered = x - x.mean(-1, keepdim=True)
    spread = centered / standardize(x, eps, var, eps_mode)
    if which == "std":
        return centered / spread.detach()
    fixed = x - x.detach().mean(-1, keepdim=True)
    return fixed / (spread.detach() if which == "both" else spread)


def ada(x, scale=1.0, k=0.1, eps=1e-5, var="biased", eps_mode="inside", **_):
    y = standardize(x, eps, var, eps_mode)
    factor = scale * (1 - k * y.detach())
    return factor * y


def group(x, weight=None, bias=None, groups=2, eps=1e-5, **_):
    parts = [standardize(part, eps, "biased", "inside") for part in x.chunk(groups, dim=-1)]
    return affine(torch.cat(parts, dim=-1), weight, bias)


def batch(x, mask, training, running_mean, running_var, weight=None, bias=None, eps=1e-5, **_):
    tokens = x[mask]
    mean = tokens.mean(0) if training else running_mean
    var = tokens.var(0, correction=0) if training else running_var
    y = torch.zeros_like(x)
    y[mask] = affine((tokens - mean) / (var + eps) ** 0.5, weight, bias)
    return y


def instance(x, mask, weight=None, bias=None, eps=1e-5, **_):
    y = torch.zeros_like(x)
    for sentence, valid in enumerate(mask):
        columns = standardize(x[sentence][valid].T, eps, "biased", "inside")
        y[sentence, valid] = affine(columns.T, weight, bias)
    return y


def power(x, mask, training, psi2, nu, weight=None, bias=None, warmup=10000, eps=1e-5, **_):
    tokens = x[mask]
    if training and warmup:
        psi2 = (tokens * tokens).mean(0)
    h = tokens / (psi2 + eps) ** 0.5
    if training and not warmup and h.requires_grad:
        before, along = nu.clone(), h.detach()
        h.register_hook(lambda gradient: gradient - before * along)
    y = torch.zeros_like(x)
    y[mask] = affine(h, weight, bias)
    return y


def dyt(x, alpha, weight=None, bias=None, **_):
    return affine(2 / (1 + torch.exp(-2 * alpha * x)) - 1, weight, bias)


def constant_std(
    x, mask, training, deviation, removed, weight=None, bias=None, eps=1e-5, center=True, **_
):
    centered = x - x.sum(-1, keepdim=True) / x.shape[-1] if center else x
    own = (centered.pow(2).sum(-1, keepdim=True) / x.shape[-1] + eps) ** 0.5
    return affine(centered / (deviation.double() if removed else own), weight, bias)


def derf(x, alpha, shift, weight=None, bias=None, **_):
    return affine(1 - torch.erfc(alpha * x + shift), weight, bias)


def ada_ln(x, weight, bias, cond, eps=1e-6, **_):
    signal = cond * torch.sigmoid(cond)
    both = torch.einsum("bc,oc->bo", signal, weight) + bias
    shift, scale = both[:, None, : x.shape[-1]], both[:, None, x.shape[-1] :]
    return standardize(x, eps, "biased", "inside") * (1 + scale) + shift


def seednorm(x, weight, alpha, beta, heads=1, eps=1e-6, **_):
    width = x.shape[-1] // heads
    factors = [
        torch.tanh(torch.einsum("...d,d->...", part, row))[..., None].expand(part.shape)
        for part, row in zip(x.split(width, -1), beta, strict=True)
    ]
    return (alpha * torch.cat(factors, -1) + weight) * rms(x, eps=eps)


def gatednorm(x, weight, down, up, eps=1e-6, **_):
    y = rms(x, weight, eps=eps)
    hidden = torch.einsum("...d,rd->...r", y, down)
    hidden = hidden / (1 + torch.exp(-hidden))
    return y / (1 + torch.exp(-torch.einsum("...r,dr->...d", hidden, up)))
