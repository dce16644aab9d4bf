"""Reference implementations: each wiring as a plain loop written from its paper.

Each function takes the tokens x, the list f of sub-layers, the wiring w (for its parameters only)
and the number of sub-layers per layer. `test_plugs.py` has references for norms and scales inside
sub-layers.
"""

import torch
import torch.nn.functional as F


def post_ln(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = w.norms[k](x + sublayer(x))
    return x


def pre_ln(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + sublayer(w.norms[k](x))
    return w.final_norm(x)


def res_post(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + w.norms[k](sublayer(x))
    return w.final_norm(x)


def false_pre_ln(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = w.norms[k](x)
        x = x + sublayer(x)
    return x


def none(x, f, w, per):
    for sublayer in f:
        x = x + sublayer(x)
    return x


def rezero(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + w.alpha[k // per] * sublayer(x)
    return x


def skip_init(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + w.a[k] * sublayer(x)
    return x


def fixup(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + w.scale[k] * sublayer(x - w.shift[k])
    x = x - w.end_shift
    return x * w.end_scale if per == 2 else x  # per == 3 is a decoder, which has no end scale


def t_fixup(x, f, w, per):
    return none(x, f, w, per)


def admin(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = w.norms[k](w.omega[k] * x + sublayer(x))
    return x


def dlcl(x, f, w, per):
    history = [x]
    for layer in range(len(f) // per):
        x = sum(w.weight[layer, k] * history[k] for k in range(layer + 1))
        for k in range(layer * per, (layer + 1) * per):
            x = x + f[k](w.norms[k](x))
        history.append(w.history_norms[layer](x))
    return w.final_norm(sum(w.weight[-1, k] * y for k, y in enumerate(history)))


def b2t(x, f, w, per):
    for layer in range(len(f) // per):
        bottom = x
        for k in range(layer * per, (layer + 1) * per - 1):
            x = w.norms[k](x + f[k](x))
        k = (layer + 1) * per - 1
        x = w.norms[k](x + f[k](x) + bottom)
    return x


def deepnorm(x, f, w, per):
    alpha = len(f) ** 0.25  # (2 N) ** (1 / 4) for per == 2, (3 M) ** (1 / 4) for per == 3
    for k, sublayer in enumerate(f):
        x = w.norms[k](x * alpha + sublayer(x))
    return x


def sandwich(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + w.outer_norms[k](sublayer(w.norms[k](x)))
    return w.final_norm(x)


def sub_ln(x, f, w, per):
    return pre_ln(x, f, w, per)


def normformer(x, f, w, per):
    for k, sublayer in enumerate(f):
        y = sublayer(w.norms[k](x))
        x = x + (y if k % per == per - 1 else w.outer_norms[str(k)](y))
    return w.final_norm(x)


def layer_scale(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + w.gamma[k] * sublayer(w.norms[k](x))
    return w.final_norm(x)


def resi_dual(x, f, w, per):
    total = x
    for k, sublayer in enumerate(f):
        y = sublayer(x)
        x, total = w.norms[k](x + y), total + y
    return x + w.final_norm(total)


def mix_ln(x, f, w, per):
    post = len(f) // 4  # a quarter of the sub-layers, for depths that four divides
    x = post_ln(x, f[:post], w, per)
    for k in range(post, len(f)):
        x = x + f[k](w.norms[k](x))
    return w.final_norm(x)


def ln_scaling(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + sublayer(w.norms[k](x) / (k // per + 1) ** 0.5)
    return w.final_norm(x)


def hybrid_norm(x, f, w, per):
    for k, sublayer in enumerate(f):
        if k % per == per - 1:
            x = w.norms[str(k)](x)
        x = x + sublayer(x)
    return w.final_norm(x)


def gpas(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + sublayer(w.inner.norms[k](x))
        g = w.g[k // per]
        x = x - g * torch.sigmoid(g) * x.detach()
    return w.inner.final_norm(x)


def keel(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = w.norms[k](len(f) * x + sublayer(w.inner_norms[k](x)))
    return x


def siamese(x, f, w, per):
    p, q = x, x
    for k, sublayer in enumerate(f):
        p = w.post_norms[k](p)
        y = sublayer(w.norms[k](p + w.pre_norms[k](q)))
        p, q = p + y / (per * (k // per + 1)) ** 0.5, q + y
    return w.final_norm(w.end_post_norm(p) + w.end_pre_norm(q))


def parallel(x, f, w, per):
    for layer in range(len(f) // per):
        u = w.norms[layer](x)
        x = x + sum(f[layer * per + slot](u) for slot in range(per))
    return w.final_norm(x)


def denseformer(x, f, w, per):
    history, y = [x], x
    for layer in range(1, len(f) // per + 1):
        for k in range((layer - 1) * per, layer * per):
            y = y + f[k](w.norms[k](y))
        history.append(y)
        y = sum(w.a[str(layer)][j] * history[j] for j in range(layer + 1))
    return w.final_norm(y)


def hyper(x, f, w, per):
    streams = [x] * 4
    for k, sublayer in enumerate(f):
        m, d = w.mixers[k], w.mixers[k].dynamic
        seen = [d.norm(h) for h in streams]
        rows = [m.mixing[i] + d.mixing_scale * (seen[i] @ d.mixing_map).tanh() for i in range(4)]
        b = [m.writing[i] + d.writing_scale * (seen[i] @ d.writing_map).tanh() for i in range(4)]
        y = sublayer(w.norms[k](sum(rows[i][..., :1] * streams[i] for i in range(4))))
        kept = [sum(rows[i][..., j + 1, None] * streams[i] for i in range(4)) for j in range(4)]
        streams = [kept[j] + b[j] * y for j in range(4)]
    return w.final_norm(sum(streams))


def mhc(x, f, w, per):
    n, streams = 4, torch.stack([x] * 4, -2)
    for k, sublayer in enumerate(f):
        m = w.mixers[k]
        v = F.rms_norm(streams.flatten(-2), (n * x.shape[-1],), eps=1e-6) @ m.phi
        pre = torch.sigmoid(m.a[0] * v[..., :n] + m.b[:n])
        post = 2 * torch.sigmoid(m.a[1] * v[..., n : 2 * n] + m.b[n : 2 * n])
        res = (m.a[2] * v[..., 2 * n :] + m.b[2 * n :]).unflatten(-1, (n, n)).softmax(-1) + 1e-6
        for _ in range(20):
            last = res / (res.sum(-2, keepdim=True) + 1e-6)  # columns, also the last normalization
            res = last / (last.sum(-1, keepdim=True) + 1e-6)  # rows
        y = sublayer(w.norms[k](torch.einsum("...i,...id->...d", pre, streams)))
        streams = torch.einsum("...ij,...id->...jd", last, streams)
        streams = streams + torch.einsum("...j,...d->...jd", post, y)
    e = w.end_mixer
    v = F.rms_norm(streams.flatten(-2), (n * x.shape[-1],), eps=1e-6) @ e.phi
    return w.final_norm(torch.einsum("...i,...id->...d", torch.sigmoid(e.a * v + e.b), streams))


def attn_res(x, f, w, per):
    def attend(sources, number):
        values = torch.stack(sources)
        keys = F.rms_norm(values, (x.shape[-1],), w.g[number], eps=1e-6)
        scores = torch.einsum("s...d,d->s...", keys, w.w[number])
        return torch.einsum("s...,s...d->...d", scores.softmax(0), values)

    blocks, running = [], x
    for k, sublayer in enumerate(f):
        h = attend([*blocks, running], k - 1) if blocks else running
        if k % per == 0:  # a block is one layer up to a depth of eight
            blocks, running = [*blocks, running], 0
        running = running + sublayer(w.norms[k](h))
    return w.final_norm(attend([*blocks, running], len(f) - 1))


def ngpt(x, f, w, per):
    for k, sublayer in enumerate(f):
        h, y = F.normalize(x, dim=-1), F.normalize(sublayer(x), dim=-1)
        rate = (w.a[k] * 0.05 * x.shape[-1] ** 0.5).abs()
        x = F.normalize(torch.lerp(h, y, rate), dim=-1)
    return x


def gated(x, f, w, per):
    for k, sublayer in enumerate(f):
        y, m = F.relu(sublayer(w.norms[k](x))), w.gates[k].maps
        r = torch.sigmoid(m["reset_y"](y) + m["reset_x"](x))
        z = torch.sigmoid(m["update_y"](y) + m["update_x"](x) - w.gates[k].bias)
        c = torch.tanh(m["candidate_y"](y) + m["candidate_x"](r * x))
        x = torch.lerp(x, c, z)
    return w.final_norm(x)


def u_skips(x, f, w, per):
    depth, outputs = len(f) // per, []
    for layer in range(depth):
        if layer >= (depth + 1) // 2:
            x = x + w.w[depth - 1 - layer] * outputs[depth - 1 - layer]
        for k in range(layer * per, (layer + 1) * per):
            x = x + f[k](w.norms[k](x))
        outputs.append(x)
    return w.final_norm(x)


def drop_path(x, f, w, per):
    return pre_ln(x, f, w.inner, per)  # in evaluation; tests/wirings/test_drop.py has training


def layer_drop(x, f, w, per):
    return pre_ln(x, f, w.inner, per)


def scaled(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + 0.22 * sublayer(w.inner.norms[k](x))
    return w.inner.final_norm(x)


def res_scale(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = w.s[k] * x + sublayer(w.norms[k](x))
    return w.final_norm(x)


def deep_delta(x, f, w, per):
    for k, sublayer in enumerate(f):
        h = w.norms[k](x)
        y = sublayer(h)
        unit = F.rms_norm(y, (x.shape[-1],), eps=1e-5) / x.shape[-1] ** 0.5
        beta = 2 * torch.sigmoid(h @ w.w_b[k] + w.c_b[k])
        value = 4 * torch.sigmoid(x @ w.w_v[k] + w.c_v[k])
        error = value - torch.einsum("...d,...d->...", unit, x)
        x = x + (beta * error)[..., None] * unit
    return w.final_norm(x)


def mudd(x, f, w, per):
    outputs, z = [x], x
    for layer in range(len(f) // per):
        for k in range(layer * per, (layer + 1) * per):
            z = z + f[k](w.norms[k](z))
        outputs.append(z)
        m = w.mixers[layer]
        hidden = F.gelu(F.rms_norm(z, (x.shape[-1],), eps=1e-6) @ m.w_1.T)
        weights = m.b + hidden @ m.w_2.T
        z = torch.einsum("...j,...jd->...d", weights, torch.stack(outputs, -2))
    return w.final_norm(z)


def laurel(x, f, w, per):
    for k, sublayer in enumerate(f):
        low = w.up[str(k)] @ w.down[str(k)]
        x = sublayer(w.norms[k](x)) + x + x @ low.T
    return w.final_norm(x)


def nanochat(x, f, w, per):
    first, depth = x, len(f) // per
    for layer in range(depth):
        x = w.r[layer] * x + w.i[layer] * first
        for k in range(layer * per, (layer + 1) * per):
            x = x + f[k](w.norms[k](x))
        if layer == depth // 2:
            middle = x
    return w.final_norm(x - w.b * middle)


# References for call strings with options, collected in VARIANTS.


def laurel_weights(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = w.a[k] * sublayer(w.norms[k](x)) + w.b[k] * x
    return w.final_norm(x)


def laurel_both(x, f, w, per):
    for k, sublayer in enumerate(f):
        y = sublayer(w.norms[k](x))
        x = x + torch.einsum("er,rd,...d->...e", w.up[str(k)], w.down[str(k)], x)
        x = w.a[k] * y + w.b[k] * x
    return w.final_norm(x)


def laurel_gemma(x, f, w, per):
    for k, sublayer in enumerate(f):
        h = w.norms[k](x)
        y = w.outer_norms[k](sublayer(h))
        if k % per == 0:
            laurel_output = h + w.low_norms[str(k)](h @ w.down[str(k)].T @ w.up[str(k)].T)
            x = ((x + y) + laurel_output) / 2**0.5
        else:
            x = x + y
    return w.final_norm(x)


def mhc_lite(x, f, w, per):
    n, streams = 3, torch.stack([x] * 3, -2)
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    for k, sublayer in enumerate(f):
        m = w.mixers[k]
        v = F.rms_norm(streams.flatten(-2), (n * x.shape[-1],), eps=1e-6) @ m.phi
        pre = torch.sigmoid(m.a[0] * v[..., :n] + m.b[:n])
        post = 2 * torch.sigmoid(m.a[1] * v[..., n : 2 * n] + m.b[n : 2 * n])
        p = torch.softmax(m.a[2] * v[..., 2 * n :] + m.b[2 * n :], -1)
        y = sublayer(w.norms[k](torch.einsum("...i,...id->...d", pre, streams)))
        # Stream order[j] of a permutation comes from stream j.
        moved = [streams[..., [order.index(j) for j in range(n)], :] for order in orders]
        streams = sum(p[..., q, None, None] * each for q, each in enumerate(moved))
        streams = streams + torch.einsum("...j,...d->...jd", post, y)
    return w.final_norm(streams.sum(-2))


def dlcl_post(x, f, w, per):
    history = [x]
    for layer in range(len(f) // per):
        x = sum(w.weight[layer, k] * history[k] for k in range(layer + 1))
        x = w.history_norms[layer - 1](x) if layer else x
        for k in range(layer * per, (layer + 1) * per):
            x = w.norms[k](x + f[k](x))
        history.append(x)
    return w.history_norms[-1](sum(w.weight[-1, k] * y for k, y in enumerate(history)))


def parallel_own(x, f, w, per):
    for layer in range(len(f) // per):
        ks = range(layer * per, (layer + 1) * per)
        x = x + sum(f[k](w.norms[k](x)) for k in ks)
    return w.final_norm(x)


def rezero_post(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = w.norms[k](x + w.alpha[k] * sublayer(x))
    return x


def gpas_deepnorm(x, f, w, per):
    for k, sublayer in enumerate(f):
        g = w.g[k]
        scaled = x - g * torch.sigmoid(g) * x.detach()
        x = w.inner.norms[k](len(f) ** 0.25 * scaled + sublayer(x))
    return x


def denseformer_sparse(x, f, w, per):
    history, y = [x], x
    for layer in range(1, len(f) // per + 1):
        for k in range((layer - 1) * per, layer * per):
            y = y + f[k](w.norms[k](y))
        history.append(y)
        if layer % 2 == 0:
            y = sum(w.a[str(layer)][j // 2] * history[j] for j in range(0, layer + 1, 2))
    return w.final_norm(y)


def hyper_static(x, f, w, per):
    streams = torch.stack([x] * 2, -2)
    for k, sublayer in enumerate(f):
        read, mix = w.mixers[k].mixing[:, 0], w.mixers[k].mixing[:, 1:]
        y = sublayer(w.norms[k](torch.einsum("i,...id->...d", read, streams)))
        streams = torch.einsum("ij,...id->...jd", mix, streams)
        streams = streams + torch.einsum("j,...d->...jd", w.mixers[k].writing, y)
    return w.final_norm(streams.sum(-2))


def attn_res_full(x, f, w, per):
    sources = [x]
    for k in range(len(f) + 1):
        values = torch.stack(sources)
        h = values[0]
        if k > 0:
            keys = F.rms_norm(values, (x.shape[-1],), w.g[k - 1], eps=1e-6)
            scores = (keys * w.w[k - 1]).sum(-1, keepdim=True)
            h = (scores.softmax(0) * values).sum(0)
        if k < len(f):
            sources.append(f[k](w.norms[k](h)))
    return w.final_norm(h)


def u_skips_concat(x, f, w, per):
    depth, outputs = len(f) // per, []
    for layer in range(depth):
        if layer >= (depth + 1) // 2:
            pair = depth - 1 - layer
            x = w.maps[pair](torch.cat([x, outputs[pair]], -1))
        for k in range(layer * per, (layer + 1) * per):
            x = x + f[k](w.norms[k](x))
        outputs.append(x)
    return w.final_norm(x)


def gated_highway(x, f, w, per):
    for k, sublayer in enumerate(f):
        y = F.relu(sublayer(w.norms[k](x)))
        t = torch.sigmoid(w.gates[k].maps["gate"](x) + w.gates[k].bias)
        x = x * t + y * (1 - t)
    return w.final_norm(x)


def gated_input(x, f, w, per):
    for k, sublayer in enumerate(f):
        y = F.relu(sublayer(w.norms[k](x)))
        x = x * torch.sigmoid(w.gates[k].maps["gate"](x)) + y
    return w.final_norm(x)


def gated_output(x, f, w, per):
    for k, sublayer in enumerate(f):
        y = F.relu(sublayer(w.norms[k](x)))
        x = x + y * torch.sigmoid(w.gates[k].maps["gate"](x) - w.gates[k].bias)
    return w.final_norm(x)


def gated_sig_tanh(x, f, w, per):
    for k, sublayer in enumerate(f):
        y, maps = F.relu(sublayer(w.norms[k](x))), w.gates[k].maps
        open_ = torch.sigmoid(maps["gate"](y) - w.gates[k].bias)
        x = x + open_ * torch.tanh(maps["candidate_y"](y))
    return w.final_norm(x)


def hybrid_norm_star(x, f, w, per):
    for k, sublayer in enumerate(f):
        if k < per:
            x = x + sublayer(w.norms[str(k)](x))
        else:
            x = w.norms[str(k)](x) if k % per == per - 1 else x
            x = x + sublayer(x)
    return w.final_norm(x)


def normformer_res(x, f, w, per):
    for k, sublayer in enumerate(f):
        y = sublayer(w.norms[k](x))
        x = w.res[str(k)] * x + y if k % per == per - 1 else x + w.outer_norms[str(k)](y)
    return w.final_norm(x)


def post_ln_doubled(x, f, w, per):
    return w.final_norm(post_ln(x, f, w, per))


def scaled_sandwich(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + 0.3 * w.inner.outer_norms[k](sublayer(w.inner.norms[k](x)))
    return w.inner.final_norm(x)


def scaled_minicpm(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + sublayer(w.inner.norms[k](x)) * 1.4 / (len(f) // per) ** 0.5
    return w.inner.final_norm(x)


def scaled_complete_p(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + sublayer(w.inner.norms[k](x)) / (len(f) / per / 2)
    return w.inner.final_norm(x)


def scaled_unit(x, f, w, per):
    """Every attention counts q^2 of what a feed-forward counts, in units of the embedding."""
    q, m = 0.5, 2.0
    ffn = m * (2 / (1 + q**2)) ** 0.5
    total = len(f) / 2
    for k, sublayer in enumerate(f):
        size = ffn if k % per == per - 1 else q * ffn
        t = size / total**0.5
        x = (x + t * sublayer(w.inner.norms[k](x))) / (1 + t**2) ** 0.5
        total += size**2
    return w.inner.final_norm(x)


def pre_ln_first(x, f, w, per):
    x = x + f[0](x)
    for k in range(1, len(f)):
        x = x + f[k](w.norms[k](x))
    return w.final_norm(x)


def shifted_post_ln(x, f, w, per):
    return w.final_norm(false_pre_ln(x, f, w, per))


def dlcl_bare(x, f, w, per):
    w.final_norm = torch.nn.Identity()
    y = dlcl(x, f, w, per)
    w.final_norm = None
    return y


def attn_res_blocks(x, f, w, per):
    """Blocks of two layers: sources are the embedding, finished blocks, and the running sum."""
    rms = torch.nn.functional.rms_norm
    done, running = [], x
    for k in range(len(f) + 1):
        sources, h = torch.stack([*done, running], -2), running
        if done:
            keys = rms(sources, x.shape[-1:], w.g[k - 1], eps=1e-6)
            h = ((keys @ w.w[k - 1]).softmax(-1).unsqueeze(-1) * sources).sum(-2)
        if k == len(f):
            return w.final_norm(h)
        y = f[k](w.norms[k](h))
        if k % (2 * per) == 0:
            done, running = [*done, running], y
        else:
            running = running + y


def resi_dual_shares(x, f, w, per):
    total = 0.5 * x
    for k, sublayer in enumerate(f):
        y = sublayer(x)
        x, total = w.norms[k](x + y), total + 0.5 * y
    return 0.3 * x + w.final_norm(total)


def hyper_unbounded(x, f, w, per):
    tanh, torch.Tensor.tanh = torch.Tensor.tanh, lambda t: t  # the same loop without the bound
    try:
        return hyper(x, f, w, per)
    finally:
        torch.Tensor.tanh = tanh


def ngpt_raw(x, f, w, per):
    for k, sublayer in enumerate(f):
        y = F.normalize(sublayer(x), dim=-1)
        x = F.normalize(torch.lerp(x, y, (w.a[k] * 0.2 * x.shape[-1] ** 0.5).abs()), dim=-1)
    return x


def gpas_post(x, f, w, per):
    for k, sublayer in enumerate(f):
        g = w.g[k // per]
        scaled = x - g * torch.sigmoid(g) * x.detach()
        x = w.inner.norms[k](scaled + sublayer(x))
    return x


def gpas_scaled(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = x + sublayer(w.inner.norms[k](x) / (k // per + 1) ** 0.5)
        g = w.g[k // per]
        x = x - g * torch.sigmoid(g) * x.detach()
    return w.inner.final_norm(x)


def gpas_mixed(x, f, w, per):
    for k, sublayer in enumerate(f):
        g = w.g[k // per]
        scale = g * torch.sigmoid(g)
        if k // per < 2:
            x = w.inner.norms[k](x - scale * x.detach() + sublayer(x))
        else:
            x = x + sublayer(w.inner.norms[k](x))
            x = x - scale * x.detach()
    return w.inner.final_norm(x)


def gpas_behind(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = w.inner.norms[k](x + sublayer(x))
        g = w.g[k // per]
        x = x - g * torch.sigmoid(g) * x.detach()
    return x


def keel_light(x, f, w, per):
    for k, sublayer in enumerate(f):
        x = w.norms[k](3 * x + sublayer(w.inner_norms[k](x)))
    return x


def mhc_megatron(x, f, w, per):
    n, streams = 2, torch.stack([x] * 2, -2)
    for k, sublayer in enumerate(f):
        m = w.mixers[k]
        v = F.rms_norm(streams.flatten(-2), (n * x.shape[-1],), eps=1e-6) @ m.phi
        pre = torch.sigmoid(m.a[0] * v[..., :n] + m.b[:n])
        post = 2 * torch.sigmoid(m.a[1] * v[..., n : 2 * n] + m.b[n : 2 * n])
        res = (m.a[2] * v[..., 2 * n :] + m.b[2 * n :]).unflatten(-1, (n, n)).softmax(-1) + 1e-6
        for _ in range(3):
            last = res / (res.sum(-2, keepdim=True) + 1e-6)
            res = last / (last.sum(-1, keepdim=True) + 1e-6)
        y = sublayer(w.norms[k](torch.einsum("...i,...id->...d", pre, streams)))
        streams = torch.einsum("...ij,...jd->...id", last, streams)
        streams = streams + torch.einsum("...j,...d->...jd", post, y)
    return w.final_norm(streams.mean(-2))


def mhc_sum(x, f, w, per):
    end, w.end_mixer = w.end_mixer, torch.nn.Module()
    w.end_mixer.phi = torch.zeros(4 * x.shape[-1], 4, dtype=x.dtype)
    w.end_mixer.a, w.end_mixer.b = 0.0, torch.full((4,), 40.0, dtype=x.dtype)  # sigmoid is 1
    y = mhc(x, f, w, per)
    w.end_mixer = end
    return y


VARIANTS = {
    "dlcl(final_norm=False)": dlcl_bare,
    "dlcl(start=one)": dlcl,
    "attn_res(block=2)": attn_res_blocks,
    "resi_dual(scale=0.5, share=0.3)": resi_dual_shares,
    "hyper(tanh=False)": hyper_unbounded,
    "hyper(out_gain=2.0)": hyper,
    "ngpt(alpha=0.2, skip=raw)": ngpt_raw,
    "gpas(inner=post_ln)": gpas_post,
    "gpas(inner=ln_scaling)": gpas_scaled,
    "gpas(inner=mix_ln(post=0.5))": gpas_mixed,
    "gpas(inner=post_ln, place=stream)": gpas_behind,
    "keel(alpha=3.0)": keel_light,
    "mhc(streams=2, iterations=3, direction=plain, end=mean)": mhc_megatron,
    "mhc(end=sum, gate=0.5)": mhc_sum,
    "mhc(streams=3, start=one_hot, end=sum, mixing=permutations)": mhc_lite,
    "laurel(form=rw)": laurel_weights,
    "laurel(form=rw_lr, rank=3)": laurel_both,
    "laurel(form=gemma3n, rank=3)": laurel_gemma,
    "nanochat(start=modded)": nanochat,
    "deep_delta(step=0.5)": deep_delta,
    "post_ln(final_norm=True)": post_ln_doubled,
    "pre_ln(first_norm=False)": pre_ln_first,
    "scaled(inner=sandwich, r=0.3)": scaled_sandwich,
    "scaled(r=1.4, rule=sqrt_depth)": scaled_minicpm,
    "scaled(r=1.0, rule=depth, base=2)": scaled_complete_p,
    "scaled(r=2.0, rule=unit, ratio=0.5)": scaled_unit,
    "false_pre_ln(final_norm=True)": shifted_post_ln,
    "res_post(start=0.0)": res_post,
    "sandwich(start=0.5)": sandwich,
    "rezero(per=site, post_norm=True)": rezero_post,
    "dlcl(place=post)": dlcl_post,
    "gpas(inner=deepnorm, per=site)": gpas_deepnorm,
    "parallel(norms=own)": parallel_own,
    "denseformer(dilation=2, period=2)": denseformer_sparse,
    "hyper(streams=2, dynamic=False)": hyper_static,
    "attn_res(form=full)": attn_res_full,
    "u_skips(mix=concat)": u_skips_concat,
    "gated(gate=highway)": gated_highway,
    "gated(gate=input)": gated_input,
    "gated(gate=output)": gated_output,
    "gated(gate=sig_tanh)": gated_sig_tanh,
    "hybrid_norm(first=pre)": hybrid_norm_star,
    "normformer(res_scale=True)": normformer_res,
    "mhc(start=one_hot)": mhc,
    "layer_scale(start=1.0)": layer_scale,
}
