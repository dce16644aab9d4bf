"""Closest known arrangement: the signature of a model compared with those of addnorm's wirings.

    match_arrangement(signature, blocks)
    Match(arrangement="pre_ln", fits=("pre_ln", "drop_path", "layer_drop"), families=("gpt2", ...))

The signatures of all wirings are stored in `signatures.json`, because tracing them takes seconds.
`python tools/signatures.py` writes that file; `tests/doctor/test_matching.py` checks it.
"""

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch

from addnorm.doctor.report import Block
from addnorm.doctor.signature import Signature, forward_signature
from addnorm.models.build import build
from addnorm.models.presets import PRESETS
from addnorm.wirings.base import registry as wirings

DEPTH, DIM = 4, 16
KINDS = ("lm", "seq2seq")
SIGNATURES_FILE = "signatures.json"
PLAIN_WIRINGS = ("pre_ln", "post_ln", "none")
"""Wirings that come first if several match equally well."""
MIN_SIMILARITY = 0.2
"""Similarity below which no wiring matches."""


@dataclass(frozen=True, slots=True)
class Match:
    """Known arrangements that a model resembles."""

    arrangement: str | None = None
    """Call string of the closest wiring; None if no wiring is similar."""
    fits: tuple[str, ...] = ()
    """Names of all wirings that are as close, the plainest first."""
    families: tuple[str, ...] = ()
    """Presets with that wiring and a norm of the same kind."""


def match_arrangement(signature: Signature, blocks: Sequence[Block]) -> Match:
    """Find the wirings whose signature is closest to that of a model.

    One forward pass cannot distinguish all wirings. Some differ only in training (`drop_path`,
    `layer_drop`) or in their initialization (`t_fixup`, `skip_init`), and some coincide at a small
    depth.

    Args:
        signature: signature of the model
        blocks: its blocks; they determine the kind of model, its depth, and constants
    """
    fits = _find_fits(signature, blocks)
    if not fits:
        return Match()
    return Match(_format_call(fits[0], blocks), fits, _find_families(fits[0], blocks))


def _find_fits(signature: Signature, blocks: Sequence[Block]) -> tuple[str, ...]:
    if not blocks:
        return ()
    has_cross_attention = any(block.kind == "cross-attention" for block in blocks)
    attentions = sum(block.kind == "self-attention" for block in blocks)
    depth = attentions // 2 if has_cross_attention else attentions
    scores: dict[str, float] = {}
    for layers in {DEPTH, min(max(depth, 1), DEPTH)}:
        for name, known in known_signatures("seq2seq" if has_cross_attention else "lm", layers):
            score = round(_similarity(signature, known), 3)
            scores[name] = max(scores.get(name, 0.0), score)
    best = max(scores.values())
    fits = [name for name in scores if scores[name] == best and best >= MIN_SIMILARITY]
    return tuple(sorted(fits, key=lambda name: name not in PLAIN_WIRINGS))


def _find_families(wiring: str, blocks: Sequence[Block]) -> tuple[str, ...]:
    norm = next((block.norm for block in blocks if block.norm), None)
    return tuple(
        name
        for name in PRESETS
        if PRESETS[name].config.wiring.split("(")[0] == wiring
        and (norm is None or PRESETS[name].config.norm.split("(")[0] == norm)
    )


def _format_call(name: str, blocks: Sequence[Block]) -> str:
    """Return the call string of a wiring, with the constants of the model."""
    if name in ("deepnorm", "keel"):
        alphas = {round(block.shortcut_scale, 4) for block in blocks if block.shortcut_scale}
        if len(alphas) == 1:
            return f"{name}(alpha={alphas.pop():g})"
    if name == "scaled":
        factors = {round(block.branch_scale, 4) for block in blocks if block.branch_scale}
        if len(factors) == 1:
            return f"scaled(r={factors.pop():g})"
    if name == "mix_ln":
        post = sum(block.wiring == "post_ln" for block in blocks) / len(blocks)
        return f"mix_ln(post={post:g})"
    return name


def known_signatures(kind: str, depth: int) -> Iterator[tuple[str, Signature]]:
    """Yield name and signature of each wiring; those that are not stored are traced."""
    stored = _load_signatures().get(f"{kind} {depth}", {})
    for name in wirings:
        yield name, stored[name] if name in stored else wiring_signature(name, kind, depth)


@functools.cache
def _load_signatures() -> dict[str, Any]:
    text = files("addnorm.doctor").joinpath(SIGNATURES_FILE).read_text(encoding="utf-8")
    return _to_tuples(json.loads(text))


def _to_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_tuples(part) for key, part in value.items()}
    return tuple(_to_tuples(part) for part in value) if isinstance(value, list) else value


@functools.cache
def wiring_signature(name: str, kind: str, depth: int) -> Signature:
    """Return the signature of a wiring, from one forward pass of a small model."""
    ids = torch.arange(1, 11).reshape(2, 5)
    sizes: dict[str, Any] = {"vocab": 16, "dim": DIM, "depth": depth, "heads": 2}
    model = build(kind=kind, wiring=name, seed=0, **sizes)
    return forward_signature(model, (ids, ids) if kind == "seq2seq" else (ids,))


def _similarity(one: Signature, other: Signature) -> float:
    """Return the similarity of two signatures, at most 1.

    For each kind of branch, 0.7 of the score is the overlap of full labels and 0.3 the overlap of
    wirings alone. A different final norm and missing kinds cost a penalty.
    """
    kinds, final = dict(one[0]), one[1]
    other_kinds, other_final = dict(other[0]), other[1]
    total = 0.0
    for kind, fractions in kinds.items():
        fallback = other_kinds.get(_FALLBACK_KINDS.get(kind, ""), ())
        match = dict(other_kinds.get(kind) or fallback)
        exact = sum(min(fraction, match.get(label, 0)) for label, fraction in fractions)
        total += 0.7 * exact + 0.3 * _wiring_overlap(dict(fractions), match)
    score = total / len(kinds) if kinds else 0.0
    missing = sum(kind not in kinds for kind in other_kinds) if len(kinds) > 1 else 0
    return score - 0.05 * (final != other_final) - 0.1 * missing


_FALLBACK_KINDS = {
    "convolution": "feed-forward",
    "mixer": "feed-forward",
    "cross-attention": "self-attention",
}


def _wiring_overlap(one: dict[Any, float], other: dict[Any, float]) -> float:
    """Return the overlap of two label distributions, by the wiring alone."""
    totals: list[dict[str, float]] = []
    for labels in (one, other):
        total: dict[str, float] = {}
        for label, fraction in labels.items():
            total[label[0]] = total.get(label[0], 0) + fraction
        totals.append(total)
    return sum(min(fraction, totals[1].get(name, 0)) for name, fraction in totals[0].items())
