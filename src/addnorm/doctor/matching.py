"""The closest known arrangement: the visit of a stranger beside visits of our own wirings."""

import functools
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import torch

from addnorm.doctor.diagnose import forward_signature
from addnorm.doctor.report import Report
from addnorm.models.build import build
from addnorm.models.presets import PRESETS
from addnorm.wirings.base import registry as wirings

DEPTH, DIM = 4, 16
KINDS = ("lm", "seq2seq")
SIGNATURES_FILE = "signatures.json"
PLAIN_WIRINGS = ("pre_ln", "post_ln", "none")
"""What is meant where several would look the same."""


def arrangement(report: Report) -> str | None:
    """The call string of the wiring whose own visit looks most like this one; None if none does."""
    fitting = fits(report)
    return _format_call(fitting[0], report) if fitting else None


def fits(report: Report) -> tuple[str, ...]:
    """Every wiring that is as close as the closest, the plainest first.

    One forward cannot tell all of them apart: what only trains otherwise (drop_path, layer_drop) or
    only starts otherwise (t_fixup, skip_init) has the graph of another wiring, and some have it at
    few layers.
    """
    if not report.blocks:
        return ()
    pair = any(block.kind == "cross-attention" for block in report.blocks)
    depth = sum(block.kind == "self-attention" for block in report.blocks) // (1 + pair)
    shares: dict[str, float] = {}
    for layers in {DEPTH, min(max(depth, 1), DEPTH)}:
        for name, theirs in known_signatures("seq2seq" if pair else "lm", layers):
            alike = round(_similarity(report.signature, theirs), 3)
            shares[name] = max(shares.get(name, 0.0), alike)
    best = max(shares.values())
    found = [name for name in shares if shares[name] == best and best >= 0.2]
    return tuple(sorted(found, key=lambda name: name not in PLAIN_WIRINGS))


def families(report: Report) -> tuple[str, ...]:
    """Presets with that wiring and a norm of the same kind."""
    name = (report.arrangement or "").split("(")[0]
    kind = next((b.norm for b in report.blocks if b.norm), None)
    return tuple(
        preset
        for preset in PRESETS
        if PRESETS[preset].config.wiring.split("(")[0] == name
        and (kind is None or PRESETS[preset].config.norm.split("(")[0] == kind)
    )


def _format_call(name: str, report: Report) -> str:
    """The wiring with the constants that were seen."""
    if name in ("deepnorm", "keel"):
        seen = {round(b.shortcut_scale, 4) for b in report.blocks if b.shortcut_scale}
        if len(seen) == 1:
            return f"{name}(alpha={seen.pop():g})"
    if name == "mix_ln":
        post = sum(b.wiring == "post_ln" for b in report.blocks) / len(report.blocks)
        return f"mix_ln(post={post:g})"
    return name


def known_signatures(kind: str, depth: int) -> Iterator[tuple[str, Any]]:
    """The signature of each wiring of ours; looked at where none is stored, as for new ones."""
    stored = _load_signatures().get(f"{kind} {depth}", {})
    for name in wirings:
        yield name, stored[name] if name in stored else wiring_signature(name, kind, depth)


@functools.cache
def _load_signatures() -> dict[str, Any]:
    """What `python tools/signatures.py` wrote: looking at all of them takes seconds."""
    text = files("addnorm.doctor").joinpath(SIGNATURES_FILE).read_text(encoding="utf-8")
    return _to_tuples(json.loads(text))


def _to_tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_tuples(part) for key, part in value.items()}
    return tuple(_to_tuples(part) for part in value) if isinstance(value, list) else value


@functools.cache
def wiring_signature(name: str, kind: str, depth: int) -> tuple[Any, ...]:
    """The signature of one wiring: one forward of a tiny model, no gradients."""
    ids = torch.arange(1, 11).reshape(2, 5)
    sizes: dict[str, Any] = {"vocab": 16, "dim": DIM, "depth": depth, "heads": 2}
    model = build(kind=kind, wiring=name, seed=0, **sizes)
    return forward_signature(model, (ids, ids) if kind == "seq2seq" else (ids,))


def _similarity(one: Any, other: Any) -> float:
    """Share of kinds and classes that two signatures have in common, from 0 to 1."""
    kinds, final = dict(one[0]), one[1]
    theirs, their_final = dict(other[0]), other[1]
    total = 0.0
    for kind, shares in kinds.items():
        match = dict(theirs.get(kind) or theirs.get(_FALLBACK_KINDS.get(kind, ""), ()))
        exact = sum(min(share, match.get(said, 0)) for said, share in shares)
        total += 0.7 * exact + 0.3 * _class_overlap(dict(shares), match)
    score = total / len(kinds) if kinds else 0.0
    missing = sum(kind not in kinds for kind in theirs) if len(kinds) > 1 else 0
    return score - 0.05 * (final != their_final) - 0.1 * missing


_FALLBACK_KINDS = {
    "convolution": "feed-forward",
    "mixer": "feed-forward",
    "cross-attention": "self-attention",
}


def _class_overlap(mine: dict[Any, float], theirs: dict[Any, float]) -> float:
    """The same, by class alone."""
    classes: dict[str, float] = {}
    for said, share in theirs.items():
        classes[said[0]] = classes.get(said[0], 0) + share
    own: dict[str, float] = {}
    for said, share in mine.items():
        own[said[0]] = own.get(said[0], 0) + share
    return sum(min(share, classes.get(name, 0)) for name, share in own.items())
