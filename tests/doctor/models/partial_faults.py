"""Mistakes in a part of a model: one layer, one norm, one mask. Each has a healthy form.

A fault of a single layer hides among correct ones, so rules that need a majority do not see it.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.doctor.models.historic.cases import (
    LAYERS,
    VOCAB,
    Attention,
    Classifier,
    D,
    H,
    HistoricBug,
    PostLayer,
    PreLayer,
    Tokens,
    ids,
    join_heads,
    log_mask,
    split_heads,
    valid,
    vectors,
)

CASES = []


def register(rules, inputs=ids):
    """Return a decorator that appends a builder to the cases."""

    def add(build):
        named = frozenset(rules.split("|"))
        CASES.append(HistoricBug(build.__name__, "", named, build, inputs))
        return build

    return add


def only(index, make):
    """Return layers of which the one with this index is made with the fault."""
    return [make(i == index % LAYERS) for i in range(LAYERS)]


# Scaled initialization that is announced and missing


def init_gpt2(model, scaled):
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
    for name, weight in model.named_parameters():
        if name.endswith(scaled):
            nn.init.normal_(weight, std=0.02 / math.sqrt(2 * LAYERS))
    return model


@register("scale_without_init")
def flag_of_residual_projections_is_not_read(bug):
    model = Classifier([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))
    for layer in model.layers:
        layer.attention.o.NANOGPT_SCALE_INIT = 1
        layer.ff[2].NANOGPT_SCALE_INIT = 1
    return init_gpt2(model, ("nothing",) if bug else ("o.weight", "ff.2.weight"))


@register("scale_without_init")
def flag_as_attribute_true(bug):
    model = Classifier([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))
    for layer in model.layers:
        layer.attention.o.is_residual = True
        layer.ff[2].is_residual = True
    return init_gpt2(model, ("nothing",) if bug else ("o.weight", "ff.2.weight"))


@register("scale_without_init")
def flag_is_read_in_one_kind_only(bug):
    model = Classifier([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))
    for layer in model.layers:
        layer.attention.o._is_residual = True
        layer.ff[2]._is_residual = True
    return init_gpt2(model, ("o.weight",) if bug else ("o.weight", "ff.2.weight"))


@register("scale_without_init")
def scaled_init_of_one_layer_is_missing(bug):
    model = Classifier([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))
    init_gpt2(model, ("o.weight", "ff.2.weight"))
    if bug:
        nn.init.normal_(model.layers[1].attention.o.weight, std=0.02)
        nn.init.normal_(model.layers[1].ff[2].weight, std=0.02)
    return model


@register("scale_without_init")
def scale_is_stored_and_not_applied(bug):
    model = Classifier([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))
    for layer in model.layers:
        layer.attention.o.init_scale = 1 / math.sqrt(2 * LAYERS)
        layer.ff[2].init_scale = 1 / math.sqrt(2 * LAYERS)
    return init_gpt2(model, ("nothing",) if bug else ("o.weight", "ff.2.weight"))


# Parts that one layer ignores


class OddLayer(PreLayer):
    """Layer with a dropout, a scale and a learned bias; `fault` names what forward ignores."""

    def __init__(self, fault=""):
        super().__init__()
        self.drop, self.fault = nn.Dropout(0.1), fault
        self.gamma = nn.Parameter(torch.full((D,), 0.1))
        self.shift = nn.Parameter(torch.zeros(D))

    def forward(self, x):
        y = self.attention(x if self.fault == "norm" else self.n1(x))
        y = y if self.fault == "dropout" else self.drop(y)
        x = x + (y if self.fault == "scale" else y * self.gamma)
        x = x if self.fault == "bias" else x + self.shift
        y = self.ff(self.n1(x) if self.fault == "other norm" else self.n2(x))
        return x + (y if self.fault == "second dropout" else self.drop(y)) * self.gamma


def odd(fault, index):
    return Classifier(only(index, lambda b: OddLayer(fault if b else "")), nn.LayerNorm(D))


@register("inert_norm")
def norm_of_one_layer_is_unused(bug):
    return odd("norm" if bug else "", 1)


@register("inert_norm")
def second_norm_of_one_layer_is_unused(bug):
    return odd("other norm" if bug else "", -1)


@register("unused_in_layer")
def dropout_of_one_layer_is_unused(bug):
    return odd("dropout" if bug else "", 1)


@register("unused_in_layer")
def scale_of_one_layer_is_unused(bug):
    return odd("scale" if bug else "", -1)


@register("unused_in_layer")
def bias_of_one_layer_is_unused(bug):
    return odd("bias" if bug else "", 0)


@register("unused_in_layer")
def one_dropout_of_two_is_unused_in_one_layer(bug):
    class Layer(PreLayer):
        def __init__(self, fault):
            super().__init__()
            self.one, self.two, self.fault = nn.Dropout(0.1), nn.Dropout(0.1), fault

        def forward(self, x):
            x = x + self.one(self.attention(self.n1(x)))
            y = self.ff(self.n2(x))
            return x + (y if self.fault else self.two(y))

    return Classifier(only(1, lambda b: Layer(b and bug)), nn.LayerNorm(D))


@register("unused_in_layer")
def projection_of_one_layer_is_skipped(bug):
    class Odd(Attention):
        def forward(self, x):
            q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
            y = join_heads((q @ k.mT / 8**0.5).softmax(-1) @ v)
            return y

    def layer(b):
        return PreLayer(attention=Odd if b and bug else Attention)

    return Classifier(only(1, layer), nn.LayerNorm(D))


@register("unused_in_layer")
def last_layer_is_left_out(bug):
    class Model(Classifier):
        def forward(self, ids):
            x = self.embedding(ids)
            for i in range(LAYERS - 1 if bug else LAYERS):
                x = self.layers[i](x)
            return self.head(self.final(x))

    return Model([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))


# Statistics over padding in train mode


class BatchNorm(nn.Module):
    """Batch norm over the tokens; `masked` takes the valid ones only."""

    def __init__(self, masked):
        super().__init__()
        self.norm, self.masked = nn.BatchNorm1d(D), masked

    def forward(self, x, mask):
        if not self.masked:
            return self.norm(x.mT).mT
        y = torch.zeros_like(x)
        y[mask] = self.norm(x[mask])
        return y


class BatchNormModel(nn.Module):
    def __init__(self, masked, flat=False):
        super().__init__()
        self.norms = nn.ModuleList(BatchNorm(masked) for _ in range(2))
        self.layers = nn.ModuleList(PreLayer() for _ in range(2))
        self.final, self.head = nn.LayerNorm(D), nn.Linear(D, 4)

    def forward(self, x, mask):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer.attention(layer.n1(x), bias=log_mask(mask)[:, None, None])
            x = x + layer.ff(norm(layer.n2(x), mask))
        return self.head(self.final(x))


@register("padding_leak", lambda: (vectors(), valid()))
def batch_norm_counts_padding_in_train_mode(bug):
    return BatchNormModel(masked=not bug)


@register("padding_leak", lambda: (vectors(), valid()))
def zeroed_padding_counts_in_batch_norm(bug):
    class Zeroed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(D)

        def forward(self, x, mask):
            if bug:
                return self.norm((x * mask[..., None]).flatten(0, 1)).view_as(x)
            flat, keep = x.flatten(0, 1), mask.flatten()
            return (
                torch.zeros_like(flat)
                .index_put((keep.nonzero()[:, 0],), self.norm(flat[keep]))
                .view_as(x)
            )

    model = BatchNormModel(masked=True)
    model.norms = nn.ModuleList(Zeroed() for _ in range(2))
    return model


@register("padding_leak", lambda: (vectors(), valid()))
def convolution_module_batch_norm(bug):
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.n, self.up, self.deep = (
                nn.LayerNorm(D),
                nn.Conv1d(D, 2 * D, 1),
                nn.Conv1d(D, D, 3, padding=1, groups=D),
            )
            self.norm = nn.BatchNorm1d(D) if bug else nn.LayerNorm(D)
            self.down = nn.Conv1d(D, D, 1)

        def forward(self, x, mask):
            y = F.glu(self.up(self.n(x).mT), 1).masked_fill(~mask[:, None], 0)
            y = self.deep(y)
            y = self.norm(y) if bug else self.norm(y.mT).mT
            return self.down(F.silu(y)).mT

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(PreLayer() for _ in range(2))
            self.convs = nn.ModuleList(Conv() for _ in range(2))
            self.final = nn.LayerNorm(D)

        def forward(self, x, mask):
            for layer, conv in zip(self.layers, self.convs, strict=True):
                x = layer(x, bias=log_mask(mask)[:, None, None])
                x = x + conv(x, mask)
            return self.final(x)

    return Model()


# Query-key norms


class NormedHeads(Attention):
    """Query-key norm; `how` names what it reduces over."""

    def __init__(self, how, sdpa=False, rms=True):
        super().__init__()
        self.how, self.sdpa = how, sdpa
        make = nn.RMSNorm if rms else nn.LayerNorm
        size = {"whole": D, "all heads, one gain": (H, D // H), "tokens": 7}.get(how, D // H)
        self.qn, self.kn = make(size, eps=1e-6), make(size, eps=1e-6)

    def norm(self, x, norm):
        if self.how == "head":
            return norm(split_heads(x))
        if self.how == "whole":
            return split_heads(norm(x))
        if self.how == "tokens":
            return norm(split_heads(x).mT).mT
        if self.how == "hand over all":  # statistics of all heads, gain of one
            scale = x.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt()
            return split_heads(x * scale) * norm.weight
        if self.how == "hand over heads and features":
            y = split_heads(x)
            return y * y.pow(2).mean((1, 3), keepdim=True).add(1e-6).rsqrt() * norm.weight
        if self.how == "hand over heads":
            y = split_heads(x)
            return y * y.pow(2).mean(1, keepdim=True).add(1e-6).rsqrt() * norm.weight
        if self.how == "hand over tokens":
            y = split_heads(x)
            return y * y.pow(2).mean(2, keepdim=True).add(1e-6).rsqrt() * norm.weight
        if self.how == "hand over tokens and features":
            y = split_heads(x)
            return y * y.pow(2).mean((2, 3), keepdim=True).add(1e-6).rsqrt() * norm.weight
        y = split_heads(x)
        return y * y.pow(2).mean(-1, keepdim=True).add(1e-6).rsqrt() * norm.weight

    def forward(self, x):
        q, k, v = (
            self.norm(self.q(x), self.qn),
            self.norm(self.k(x), self.kn),
            split_heads(self.v(x)),
        )
        if self.sdpa:
            return self.o(join_heads(F.scaled_dot_product_attention(q, k, v)))
        return self.o(join_heads((q @ k.mT / 8**0.5).softmax(-1) @ v))


def normed_heads(bug, right, wrong, **options):
    how = wrong if bug else right
    layers = [PreLayer(attention=lambda: NormedHeads(how, **options)) for _ in range(2)]
    return Classifier(layers, nn.LayerNorm(D))


for wrong in (
    "tokens",
    "hand over all",
    "hand over heads and features",
    "hand over heads",
    "hand over tokens",
    "hand over tokens and features",
):
    for sdpa in (False, True):
        name = f"query_key_norm_{wrong.replace(' ', '_')}_{'sdpa' if sdpa else 'softmax'}"
        CASES.append(
            HistoricBug(
                name,
                "",
                frozenset({"wrong_axis"}),
                lambda bug, wrong=wrong, sdpa=sdpa: normed_heads(
                    bug, "hand" if wrong.startswith("hand") else "head", wrong, sdpa=sdpa
                ),
                ids,
            )
        )


# Gradients


class Cut(Classifier):
    """Model that detaches the stream somewhere."""

    def __init__(self, place, pool=False):
        super().__init__([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))
        self.place, self.pool = place, pool

    def forward(self, ids):
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        if self.place == "before the norm":
            x = x.detach()
        if self.place == "data":
            x = x.data
        x = self.final(x)
        if self.place == "before the head":
            x = x.detach()
        if self.place == "clone":
            x = x.clone().detach()
        if self.place == "no_grad norm":
            with torch.no_grad():
                x = self.final(x)
        if self.place == "new tensor":
            x = torch.zeros_like(x).copy_(x.detach())
        if self.pool:
            x = x.mean(1)
        return self.head(x)


for place in ("before the norm", "data", "before the head", "clone", "no_grad norm"):
    for pool in (False, True):
        CASES.append(
            HistoricBug(
                f"cut_{place.replace(' ', '_')}_{'pooled' if pool else 'tokens'}",
                "",
                frozenset({"detached_layers"}),
                lambda bug, place=place, pool=pool: Cut(place if bug else "", pool),
                ids,
            )
        )


@register("detached_layers")
def embedding_is_detached(bug):
    class Embedding(Tokens):
        def forward(self, ids):
            x = super().forward(ids)
            return x.detach() if bug else x

    return Classifier([PreLayer() for _ in range(2)], nn.LayerNorm(D), embedding=Embedding())


@register("detached_layers")
def one_branch_is_detached(bug):
    class Layer(PreLayer):
        def __init__(self, fault):
            super().__init__()
            self.fault = fault

        def forward(self, x):
            x = x + self.attention(self.n1(x))
            y = self.ff(self.n2(x))
            return x + (y.detach() if self.fault else y)

    return Classifier(only(-1, lambda b: Layer(b and bug)), nn.LayerNorm(D))


@register("detached_layers")
def one_layer_under_no_grad(bug):
    class Layer(PreLayer):
        def __init__(self, fault):
            super().__init__()
            self.fault = fault

        def forward(self, x):
            with torch.set_grad_enabled(not self.fault):
                return super().forward(x)

    return Classifier(only(-1, lambda b: Layer(b and bug)), nn.LayerNorm(D))


# Dropout of one sum


class Dropping(PreLayer):
    def __init__(self, fault="", rate=0.1):
        super().__init__()
        self.drop, self.fault = nn.Dropout(rate), fault

    def forward(self, x):
        x = x + self.drop(self.attention(self.n1(x)))
        x = self.drop(x) if self.fault == "middle" else x
        x = x + self.drop(self.ff(self.n2(x)))
        return self.drop(x) if self.fault == "end" else x


for index in range(LAYERS):
    for fault in ("middle", "end"):
        if (index, fault) == (LAYERS - 1, "end"):
            continue  # before the final norm: usual
        CASES.append(
            HistoricBug(
                f"dropout_of_one_sum_{index}_{fault}",
                "",
                frozenset({"dropout_on_stream"}),
                lambda bug, index=index, fault=fault: Classifier(
                    only(index, lambda b: Dropping(fault if b and bug else "")), nn.LayerNorm(D)
                ),
                ids,
            )
        )


# Doubled norms


@register("double_norm|doubled_final_norm")
def final_norm_twice_the_same(bug):
    class Model(Classifier):
        def forward(self, ids):
            x = self.embedding(ids)
            for layer in self.layers:
                x = layer(x)
            x = self.final(x)
            return self.head(self.final(x) if bug else x)

    return Model([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))


@register("double_norm|doubled_final_norm")
def head_begins_with_a_norm(bug):
    model = Classifier([PreLayer() for _ in range(LAYERS)], nn.LayerNorm(D))
    head = [nn.LayerNorm(D)] if bug else []
    model.head = nn.Sequential(*head, nn.Dropout(0.1), nn.Linear(D, VOCAB))
    return model


@register("double_norm|doubled_final_norm")
def dropout_between_two_final_norms(bug):
    last = [nn.Dropout(0.1), nn.RMSNorm(D, eps=1e-6)] if bug else []
    return Classifier([PreLayer() for _ in range(LAYERS)], nn.Sequential(nn.LayerNorm(D), *last))


class Seq2Seq(nn.Module):
    """Encoder and decoder; `where` names the place of an additional norm."""

    def __init__(self, where="", place="pre"):
        super().__init__()
        self.source, self.target = Tokens(), Tokens()
        make = PreLayer if place == "pre" else PostLayer
        self.encoder = nn.ModuleList(make() for _ in range(2))
        self.decoder = nn.ModuleList(make() for _ in range(2))
        self.cross = nn.ModuleList(Attention() for _ in range(2))
        self.cross_norms = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))
        self.place, self.where = place, where
        is_pre = place == "pre"
        self.encoder_norm = nn.LayerNorm(D) if is_pre else nn.Identity()
        self.final = nn.LayerNorm(D) if is_pre else nn.Identity()
        self.memory_norm = nn.LayerNorm(D) if where == "memory" else nn.Identity()
        self.memory_norms = nn.ModuleList(
            nn.LayerNorm(D) if where == "layers" else nn.Identity() for _ in range(2)
        )
        self.last = nn.LayerNorm(D) if where == "end" else nn.Identity()
        self.head = nn.Linear(D, VOCAB)

    def forward(self, source, target):
        memory = self.source(source)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.memory_norm(self.encoder_norm(memory))
        later = torch.ones(target.shape[1], target.shape[1]).tril().bool()
        x = self.target(target)
        for layer, cross, norm, of_memory in zip(
            self.decoder, self.cross, self.cross_norms, self.memory_norms, strict=True
        ):
            y = of_memory(memory)
            if self.place == "pre":
                x = x + layer.attention(layer.n1(x), bias=log_mask(later))
                x = x + cross(norm(x), memory=y)
                x = x + layer.ff(layer.n2(x))
            else:
                x = layer.n1(x + layer.attention(x, bias=log_mask(later)))
                x = norm(x + cross(x, memory=y))
                x = layer.n2(x + layer.ff(x))
        return self.head(self.last(self.final(x)))


for place in ("pre", "post"):
    for where in ("memory", "layers", "end"):
        CASES.append(
            HistoricBug(
                f"seq2seq_norm_{where}_{place}",
                "",
                frozenset({"double_norm", "doubled_final_norm"}),
                lambda bug, place=place, where=where: Seq2Seq(where if bug else "", place),
                lambda: (ids(), ids().flip(0)[:, :5]),
            )
        )


# Masks


class Masked(Attention):
    """Attention whose mask has a wrong shape, polarity or value."""

    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x, mask):
        q, k, v = (split_heads(f(x)) for f in (self.q, self.k, self.v))
        keep = mask.bool()
        scores = q @ k.mT / 8**0.5
        how = self.how
        if how == "right":
            scores = scores + log_mask(keep)[:, None, None]
        elif how == "added ones":
            scores = scores + keep.to(scores.dtype)[:, None, None]
        elif how == "added zeros and -1":
            scores = scores - (1 - keep.to(scores.dtype))[:, None, None]
        elif how == "inverted":
            scores = scores.masked_fill(keep[:, None, None], -1e9)
        elif how == "inverted sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=~keep[:, None, None])
            return self.o(join_heads(y))
        elif how == "float sdpa":
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=keep.float()[:, None, None])
            return self.o(join_heads(y))
        elif how == "queries":
            scores = scores.masked_fill(~keep[:, None, :, None], -1e9)
        elif how == "heads":
            scores = scores + log_mask(keep)[:1, None, None]
        elif how == "multiplied":
            scores = scores * keep[:, None, None]
        elif how == "after":
            return self.o(join_heads((scores.softmax(-1) * keep[:, None, :, None]) @ v))
        elif how == "batch":
            rows = log_mask(keep)
            scores = (
                scores + F.pad(rows, (0, 0, 0, len(scores[0]) - len(rows)))[None, :, None]
                if len(rows) <= H
                else scores
            )
        elif how == "or":
            pair = keep[:, None, :, None] | keep[:, None, None]
            scores = scores.masked_fill(~pair, -1e9)
        elif how == "small":
            scores = scores.masked_fill(~keep[:, None, None], -1.0)
        elif how == "tiny":
            scores = scores.masked_fill(~keep[:, None, None], 1e-9)
        elif how == "dropped":
            scores.masked_fill(~keep[:, None, None], -1e9)
        elif how == "rolled":
            scores = scores + log_mask(keep.roll(1, 1))[:, None, None]
        return self.o(join_heads(scores.softmax(-1) @ v))


class MaskedModel(nn.Module):
    def __init__(self, how, depth=2, index=None, pool=False):
        super().__init__()
        self.table = Tokens()
        self.layers = nn.ModuleList(
            PreLayer(attention=lambda i=i: Masked(how if index in (None, i) else "right"))
            for i in range(depth)
        )
        self.final, self.head, self.pool = nn.LayerNorm(D), nn.Linear(D, 4), pool

    def forward(self, tokens, mask):
        x = self.table(tokens)
        for layer in self.layers:
            x = layer(x, mask=mask)
        x = self.final(x)
        if self.pool:
            weights = mask.to(x.dtype)[..., None]
            x = (x * weights).sum(1) / weights.sum(1)
        return self.head(x)


WRONG_MASKS = (
    "added ones",
    "added zeros and -1",
    "inverted",
    "inverted sdpa",
    "float sdpa",
    "queries",
    "heads",
    "multiplied",
    "after",
    "batch",
    "or",
    "small",
    "tiny",
    "dropped",
    "rolled",
)
for how in WRONG_MASKS:
    for pool in (False, True):
        for kind in ("bool", "long"):
            CASES.append(
                HistoricBug(
                    f"mask_{how.replace(' ', '_')}_{kind}_{'pooled' if pool else 'tokens'}",
                    "",
                    frozenset({"padding_leak", "blocking_mask"}),
                    lambda bug, how=how, pool=pool: MaskedModel(how if bug else "right", pool=pool),
                    lambda kind=kind: (ids(), valid() if kind == "bool" else valid().long()),
                )
            )
for how in ("inverted", "added ones", "queries"):
    CASES.append(
        HistoricBug(
            f"mask_of_one_layer_{how.replace(' ', '_')}",
            "",
            frozenset({"padding_leak"}),
            lambda bug, how=how: MaskedModel(how if bug else "right", depth=3, index=1),
            lambda: (ids(), valid()),
        )
    )


@register("padding_leak", lambda: (vectors(), valid()))
def key_padding_mask_of_torch_is_inverted(bug):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(D, H, 2 * D, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(
                layer, 2, nn.LayerNorm(D), enable_nested_tensor=False
            )
            for weight in self.encoder.parameters():
                if weight.dim() > 1:
                    nn.init.xavier_uniform_(weight)

        def forward(self, x, mask):
            return self.encoder(x, src_key_padding_mask=mask if bug else ~mask)

    return Model()


# Epsilons


class RMS(nn.Module):
    """RMSNorm by hand with an epsilon in the dtype of the input or in float32."""

    def __init__(self, eps, how="native"):
        super().__init__()
        self.weight, self.eps, self.how = nn.Parameter(torch.ones(D)), eps, how

    def forward(self, x):
        if self.how == "float":
            y = x.float()
            return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)).to(
                x.dtype
            ) * self.weight
        if self.how == "norm":
            return x / (x.norm(dim=-1, keepdim=True) * D**-0.5 + self.eps) * self.weight
        if self.how == "clamp":
            return x / x.norm(dim=-1, keepdim=True).clamp(min=self.eps) * D**0.5 * self.weight
        if self.how == "tensor":
            eps = torch.tensor(self.eps, dtype=x.dtype)
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * self.weight
        if self.how == "max":
            v = x.pow(2).mean(-1, keepdim=True)
            return x * torch.rsqrt(torch.maximum(v, torch.full_like(v, self.eps))) * self.weight
        if self.how == "std":
            return (
                (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) * self.weight
            )
        if self.how == "layer_norm":
            return F.layer_norm(x, (D,), self.weight, eps=self.eps)
        if self.how == "normalize":
            return F.normalize(x, dim=-1, eps=self.eps) * D**0.5 * self.weight
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


for how in ("native", "norm", "clamp", "tensor", "max", "std", "layer_norm", "normalize"):
    CASES.append(
        HistoricBug(
            f"eps_float16_{how}",
            "",
            frozenset({"eps_too_small"}),
            lambda bug, how=how: Classifier(
                [PreLayer(norm=lambda d: RMS(1e-12 if bug else 1e-4, how)) for _ in range(2)],
                nn.LayerNorm(D),
            ).half(),
            ids,
        )
    )
for how in ("native", "tensor", "layer_norm", "norm"):
    CASES.append(
        HistoricBug(
            f"eps_underflow_float32_{how}",
            "",
            frozenset({"eps_too_small"}),
            lambda bug, how=how: Classifier(
                [PreLayer(norm=lambda d: RMS(1e-46 if bug else 1e-6, how)) for _ in range(2)],
                nn.LayerNorm(D),
            ),
            ids,
        )
    )
for how in ("native", "layer_norm"):
    CASES.append(
        HistoricBug(
            f"eps_of_one_norm_{how}",
            "",
            frozenset({"eps_too_small"}),
            lambda bug, how=how: Classifier(
                only(1, lambda b: PreLayer(norm=lambda d: RMS(0.0 if b and bug else 1e-6, how))),
                nn.LayerNorm(D),
            ),
            ids,
        )
    )


# Norms over the wrong axis


class Wrong(nn.Module):
    def __init__(self, how):
        super().__init__()
        size = 7 if how == "layer norm of tokens" else (7, D) if how == "tokens and features" else D
        self.how, self.norm = how, nn.LayerNorm(size)

    def forward(self, x):
        if self.how == "layer norm of tokens":
            return self.norm(x.mT).mT
        if self.how in ("right", "tokens and features"):
            return self.norm(x)
        axis = {"sequence": 1, "batch": 0, "both": (0, 1), "all": (0, 1, 2), "pair": (1, 2)}[
            self.how
        ]
        y = x - x.mean(axis, keepdim=True)
        return y / (y.pow(2).mean(axis, keepdim=True) + 1e-5).sqrt() * self.norm.weight


for how in (
    "layer norm of tokens",
    "tokens and features",
    "sequence",
    "batch",
    "both",
    "all",
    "pair",
):
    for index in (None, 1, "final"):
        CASES.append(
            HistoricBug(
                f"axis_{how.replace(' ', '_')}_{index}",
                "",
                frozenset({"wrong_axis", "batch_leak", "future_leak"}),
                lambda bug, how=how, index=index: Classifier(
                    [
                        PreLayer(
                            norm=lambda d, i=i: Wrong(
                                how if bug and index in (None, i) else "right"
                            )
                        )
                        for i in range(LAYERS)
                    ],
                    Wrong(how if bug and index == "final" else "right"),
                ),
                ids,
            )
        )
