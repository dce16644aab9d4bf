"""Expected report of every registered wiring, derived by hand from its formula.

Each entry of `FORMULAS` translates the formula of a wiring's docstring into what the doctor must
report. For example, DeepNorm is `x_next = N(alpha * x + f(x))`:

* the norm follows the sum, so each residual add is `post_ln` and owns one norm `after` it;
* alpha multiplies the skip, so the add carries the tag `scaled-shortcut`, and the skip's factor is
  `K ** (1 / 4)` for a stack of K sub-layers;
* "no final norm", so the stack has none.

Nothing here is read from the doctor or from `signatures.json`. A wiring that is registered without
an entry fails `test_every_wiring_has_an_expectation`.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

LAYERS = {
    "single": ("self-attention", "feed-forward"),
    "encoder": ("self-attention", "feed-forward"),
    "decoder": ("self-attention", "cross-attention", "feed-forward"),
}
"""Sub-layers of one layer, by the role of the stack."""


@dataclass(frozen=True)
class Site:
    """One sub-layer of a stack."""

    role: str
    """single (a lone encoder or decoder), encoder or decoder of a seq2seq model."""
    depth: int
    """Layers of the stack; both stacks of a seq2seq model have as many."""
    index: int
    """Number of the sub-layer in the stack, from 0."""

    @property
    def per_layer(self) -> int:
        return len(LAYERS[self.role])

    @property
    def total(self) -> int:
        return self.depth * self.per_layer

    @property
    def kind(self) -> str:
        return LAYERS[self.role][self.index % self.per_layer]

    @property
    def is_attention(self) -> bool:
        return self.kind != "feed-forward"

    @property
    def layer(self) -> int:
        """Number of the layer, from 1."""
        return self.index // self.per_layer + 1

    @property
    def is_last_of_layer(self) -> bool:
        return self.index % self.per_layer == self.per_layer - 1


@dataclass(frozen=True)
class Add:
    """What the doctor must report about one residual add."""

    wiring: str
    """Position of the norms: `Block.wiring`."""
    tags: frozenset[str] = frozenset()
    skip: float | None = None
    """Factor on the skip; None if the formula has none."""
    branch: float | None = None
    """Factor on the branch; None if the formula has none."""
    norms: tuple[str, ...] = ()
    """Positions of the norms that belong to this add: `NormUse.place`."""


def add(wiring: str, *tags: str, norms: tuple[str, ...] | None = None, **scales: float) -> Add:
    """Build the expectation of one add; `norms` defaults to those that the class implies."""
    implied = {
        "pre_ln": ("entry",), "post_ln": ("after",), "res_post": ("exit",), "none": (),
        "sandwich": ("entry", "exit"), "pre_post": ("entry", "after"),
        "res_post_post": ("exit", "after"), "false_pre_ln": ("entry",),
    }  # fmt: skip
    places = implied[wiring] if norms is None else norms
    return Add(wiring, frozenset(tags), norms=tuple(sorted(places)), **scales)


@dataclass(frozen=True)
class Formula:
    """Expected adds and norms of one stack."""

    site: Callable[[Site], Add]
    """The add that writes a sub-layer's output to the stream."""
    final_norms: int = 0
    """Norms between the last add and the output of the stack."""
    extra: Callable[[str, int], list[Add]] = lambda role, depth: []
    """Adds beside those of the sub-layers, for a role and a depth: long skips, a second stream,
    mixtures of earlier layers. Their own norms are counted in `other_norms`."""
    other_norms: Callable[[str, int], int] = lambda role, depth: 0
    """Norms of one stack that belong neither to a sub-layer's add nor to the end."""


def _per_site(expected: Add) -> Callable[[str, int], list[Add]]:
    return lambda role, depth: [expected] * (depth * len(LAYERS[role]))


# Factors


def _deepnorm_alpha(site: Site) -> float:
    """alpha: K ** (1 / 4); 0.81 (N^4 M) ** (1 / 16) for the encoder of a pair."""
    if site.role == "encoder":
        return 0.81 * site.depth ** (5 / 16)
    return site.total**0.25


def _layer_scale_start(site: Site) -> float:
    """start: 0.1 up to 18 layers, 1e-5 up to 24, 1e-6 beyond."""
    return 0.1 if site.depth <= 18 else 1e-5 if site.depth <= 24 else 1e-6


# Wirings whose sites differ


def _gpas(site: Site) -> Add:
    """x <- G(x + f(N(x))): every site but the first reads a stream that G has scaled."""
    return add("pre_ln", *(["scaled-stream"] if site.index else []))


def _hybrid_norm(site: Site) -> Add:
    """x + Attn(x) with head-wise norms of query, key, value; then u + FFN(u), u = N(x).

    In cross-attention key and value come from the memory, so that only the norm of the query lies
    between the stream and the add.
    """
    if site.kind == "feed-forward":
        return add("false_pre_ln")
    return add("none", norms=("inside",) * (1 if site.kind == "cross-attention" else 3))


def _ln_scaling(site: Site) -> Add:
    """x + f(N(x) / sqrt(layer)): the factor is 1 in the first layer."""
    return add("pre_ln", *(["scaled-input"] if site.layer > 1 else []))


def _mix_ln(site: Site) -> Add:
    """Post-LN in the first floor(depth / 4) layers, Pre-LN in the others."""
    return add("post_ln" if site.layer <= site.depth // 4 else "pre_ln")


def _ngpt(site: Site) -> Add:
    """n(n(x) + |a| * (n(f(x)) - n(x))), with normalized queries and keys inside attention."""
    inside = {"self-attention": 2, "cross-attention": 1, "feed-forward": 0}[site.kind]
    return add(
        "res_post_post", "interpolated", "layer-scale", "normalized-shortcut", branch=0.05,
        norms=("exit", "after", *["inside"] * inside),
    )  # fmt: skip


def _normformer(site: Site) -> Add:
    """x + N_a(Attn(N(x))); x + FFN(N(x)) with N_b behind the activation."""
    inner = add("pre_ln", "sub-ln", norms=("entry", "inside"))
    return add("sandwich") if site.is_attention else inner


def _parallel(site: Site) -> Add:
    """All sub-layers of a layer read one N(bottom): the last of them is listed as its owner."""
    return add("pre_ln", "parallel", norms=("entry",) if site.is_last_of_layer else ())


def _siamese(site: Site) -> Add:
    """p + b / sqrt(S * layer), b = f(N_in(p + N_pre(q))); N_post or N_p follows the sum."""
    return add("pre_post", "scaled-branch", branch=1 / math.sqrt(site.per_layer * site.layer))


def _sub_ln(site: Site) -> Add:
    """x + W_out N_inner(g(N(x))); cross-attention has no inner norm."""
    if site.kind == "cross-attention":
        return add("pre_ln", norms=("entry",))
    return add("pre_ln", "sub-ln", norms=("entry", "inside"))


def _dlcl(site: Site) -> Add:
    """Pre-LN inside a layer; N_k follows the last sum of layer k."""
    return add("pre_post" if site.is_last_of_layer else "pre_ln")


def _u_skips(site: Site) -> Add:
    """Pre-LN. With an even depth the innermost pair is one layer apart: x + w * x scales x."""
    middle = site.depth % 2 == 0 and site.index == site.total // 2
    return add("pre_ln", *(["scaled-stream"] if middle and site.depth > 1 else []))


def _mudd(site: Site) -> Add:
    """Pre-LN inside a layer, which reads a weighted sum of all earlier outputs."""
    starts_layer = site.index % site.per_layer == 0
    return add("pre_ln", *(["dense"] if starts_layer and site.layer > 1 else []))


def _laurel(site: Site) -> Add:
    """x + (f(N(x)) + B A x): beside the norm, the branch has a map of the raw stream."""
    return add("none", *(["parallel"] if site.is_attention else []), norms=("entry",))


# Adds beside those of the sub-layers


def _embedding_skips(role: str, depth: int) -> list[Add]:
    """r x + i x_0 before each layer but the first, where x = x_0; x - b x_mid at the end.

    Up to two layers, the middle of the stack is its end: (1 - b) x is no add.
    """
    skips = [
        add(
            "none", "long-skip", "rezero", "scaled-shortcut",
            skip=0.20 - 0.15 * layer / (depth - 1), branch=1.15 - 0.10 * layer / (depth - 1),
        )
        for layer in range(1, depth)
    ]  # fmt: skip
    return skips + ([add("none", "dual", "rezero", branch=0.2)] if depth > 2 else [])


def _long_skips(role: str, depth: int) -> list[Add]:
    """x + w_i * x_i for each pair of layers; adjacent pairs are counted in `_u_skips`."""
    pairs = depth // 2 - (depth % 2 == 0)
    return [add("none", "long-skip", "scaled-shortcut", skip=1.0)] * pairs


def _bottom_skips(role: str, depth: int) -> list[Add]:
    """N(x + f(x) + bottom) at the last sub-layer of each layer."""
    return [add("post_ln", "long-skip")] * depth


def _dense_sums(role: str, depth: int) -> list[Add]:
    """y_i = sum_{j <= i} a[i, j] * x_j is i adds; a[i, i] starts at 1, the others at 0."""
    return [
        add("none", branch=1.0 if term == layer else 0.0)
        for layer in range(1, depth + 1)
        for term in range(1, layer + 1)
    ]


def _history_sums(role: str, depth: int) -> list[Add]:
    """x_l = sum_{k <= l} W[l, k] * N_k(y_k) is l adds; row l starts at 1 / (l + 1)."""
    return [
        add("pre_ln", branch=1 / (layer + 1)) for layer in range(1, depth + 1) for _ in range(layer)
    ]


FORMULAS: dict[str, Formula] = {
    # x + f(x)
    "none": Formula(lambda site: add("none")),
    "t_fixup": Formula(lambda site: add("none")),
    # x + alpha * f(x), one learned number
    "rezero": Formula(lambda site: add("none", "rezero", branch=0.0)),
    "skip_init": Formula(lambda site: add("none", "rezero", branch=0.0)),
    "fixup": Formula(lambda site: add("none", "rezero", branch=1.0)),
    # x + f(N(x)), then a final norm
    "pre_ln": Formula(lambda site: add("pre_ln"), final_norms=1),
    "drop_path": Formula(lambda site: add("pre_ln"), final_norms=1),
    "layer_drop": Formula(lambda site: add("pre_ln"), final_norms=1),
    "scaled": Formula(
        lambda site: add("pre_ln", "scaled-branch", branch=0.22), final_norms=1
    ),
    "res_scale": Formula(
        lambda site: add("pre_ln", "scaled-shortcut", skip=1.0), final_norms=1
    ),
    "mudd": Formula(_mudd, final_norms=1, other_norms=lambda role, depth: depth),
    "nanochat": Formula(lambda site: add("pre_ln"), final_norms=1, extra=_embedding_skips),
    "laurel": Formula(_laurel, final_norms=1),
    # x + beta (v - k . x) k, k = f(N(x)) / |f(N(x))|: the branch is normalized, then scaled
    "deep_delta": Formula(
        lambda site: add("mid-norm", norms=("entry", "inside")), final_norms=1
    ),
    "sub_ln": Formula(_sub_ln, final_norms=1),
    "ln_scaling": Formula(_ln_scaling, final_norms=1),
    "gpas": Formula(_gpas, final_norms=1),
    "parallel": Formula(_parallel, final_norms=1),
    "layer_scale": Formula(
        lambda site: add("pre_ln", "layer-scale", branch=_layer_scale_start(site)), final_norms=1
    ),
    "gated": Formula(lambda site: add("pre_ln", "gated"), final_norms=1),
    "normformer": Formula(_normformer, final_norms=1),
    # N(x + f(x)), no final norm
    "post_ln": Formula(lambda site: add("post_ln")),
    "admin": Formula(lambda site: add("post_ln", "scaled-shortcut", skip=1.0)),
    "deepnorm": Formula(
        lambda site: add("post_ln", "scaled-shortcut", skip=_deepnorm_alpha(site))
    ),
    "b2t": Formula(lambda site: add("post_ln"), extra=_bottom_skips),
    "keel": Formula(
        lambda site: add("pre_post", "scaled-shortcut", skip=float(site.total))
    ),
    # a norm at the end of the branch
    "res_post": Formula(lambda site: add("res_post"), final_norms=1),
    "sandwich": Formula(lambda site: add("sandwich"), final_norms=1),
    # norms on the skip, or different norms in different places
    "false_pre_ln": Formula(lambda site: add("false_pre_ln")),
    "hybrid_norm": Formula(
        _hybrid_norm, final_norms=1,
        other_norms=lambda role, depth: 2 * depth * (role == "decoder"),  # of the memory
    ),
    "mix_ln": Formula(_mix_ln, final_norms=1),
    "ngpt": Formula(
        _ngpt,
        # n(x) on the skip of each site, and n(k) of the memory in cross-attention
        other_norms=lambda role, depth: depth * len(LAYERS[role]) + depth * (role == "decoder"),
    ),
    # several streams
    "resi_dual": Formula(
        lambda site: add("post_ln"), final_norms=1,
        extra=_per_site(add("none", "dual", branch=1.0)),
    ),
    "siamese": Formula(
        _siamese, final_norms=1, extra=_per_site(add("pre_ln", "dual")),
        # N_pre of each site; N_post of the first, whose input is the embedding; N_q
        other_norms=lambda role, depth: depth * len(LAYERS[role]) + 2,
    ),
    "hyper": Formula(
        lambda site: add("pre_ln", "hyper-connections"), final_norms=1,
        other_norms=lambda role, depth: depth * len(LAYERS[role]),  # LN(H_i) of the coefficients
    ),
    "mhc": Formula(
        lambda site: add("pre_ln", "hyper-connections"), final_norms=1,
        # RMS(vec(H)) of each site, and one at the end
        other_norms=lambda role, depth: depth * len(LAYERS[role]) + 1,
    ),
    # streams that read earlier layers
    "u_skips": Formula(_u_skips, final_norms=1, extra=_long_skips),
    "denseformer": Formula(lambda site: add("pre_ln"), final_norms=1, extra=_dense_sums),
    "dlcl": Formula(_dlcl, final_norms=1, extra=_history_sums),
    "attn_res": Formula(
        lambda site: add("pre_ln", "dense"), final_norms=1,
        # RMS(v_i) of the keys: at every site but the first, and at the end
        other_norms=lambda role, depth: depth * len(LAYERS[role]),
    ),
}  # fmt: skip


def expected_sites(kind: str, depth: int) -> list[Site]:
    """Return the sub-layers of a model of a kind in the order of the forward pass."""
    roles = ("encoder", "decoder") if kind == "seq2seq" else ("single",)
    return [
        Site(role, depth, index) for role in roles for index in range(depth * len(LAYERS[role]))
    ]


def expected_extra(wiring: str, kind: str, depth: int) -> list[Add]:
    """Return the adds beside those of the sub-layers, in no particular order."""
    roles = dict.fromkeys(site.role for site in expected_sites(kind, depth))
    return [each for role in roles for each in FORMULAS[wiring].extra(role, depth)]


def expected_norms(wiring: str, kind: str, depth: int) -> Counter[str]:
    """Return how many norms have each position; those of no add and no end are `other`."""
    formula, sites = FORMULAS[wiring], expected_sites(kind, depth)
    counts = Counter(place for site in sites for place in formula.site(site).norms)
    roles = dict.fromkeys(site.role for site in sites)
    counts["final"] += formula.final_norms * len(roles)
    counts["other"] += sum(formula.other_norms(role, depth) for role in roles)
    return +counts
