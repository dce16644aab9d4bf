"""Summary of the streams of a model, one line each, and of the blocks that differ.

2 x [self-attention, feed-forward], Pre-LN with LayerNorm eps 1e-5, causal, final norm, ...
2 x [self-attention + feed-forward], parallel Pre-LN with RMSNorm eps 1e-6, causal, ...
"""

from collections import Counter
from collections.abc import Iterator

from addnorm.doctor.analysis.norms import TITLES as NORM_TITLES
from addnorm.doctor.analysis.results import AddAnalysis, ModelAnalysis
from addnorm.doctor.analysis.typical_layer import find_period
from addnorm.doctor.model_trace import ModelTrace
from addnorm.doctor.report import Block

WIRING_TITLES = {
    "pre_ln": "Pre-LN", "post_ln": "Post-LN", "res_post": "Res-Post-LN", "sandwich": "Sandwich-LN",
    "none": "no norm", "mid-norm": "a norm inside the branch", "false_pre_ln": "false Pre-LN",
    "pre_post": "a norm before and behind", "res_post_post": "Res-Post-LN and Post-LN",
    "sandwich_post": "Sandwich-LN and Post-LN", "attention_score": "attention scores",
}  # fmt: skip
SCALE_TAGS = ("scaled-shortcut", "scaled-branch", "rezero", "layer-scale", "scaled-input")
MIXING_KINDS = ("self-attention", "mixer", "convolution")
"""Branches in which tokens see other tokens of their own stream."""
TITLE_TAGS = ("parallel", "sub-ln")
"""Tags that are part of the title of a wiring."""


def describe_streams(
    trace: ModelTrace, *, blocks: tuple[Block, ...], reads_ahead: bool | None
) -> Iterator[str]:
    """Yield a line for each stream: layers, wiring, norm, tags, direction, final norm.

    Args:
        trace: the traced model.
        blocks: all blocks of the report.
        reads_ahead: whether the output depends on later tokens; None if unknown.
    """
    adds = trace.analysis.blocks()
    last = blocks[-1].stream if blocks else -1
    for stream in sorted({b.stream for b in blocks}):
        own = [b for b in blocks if b.stream == stream]
        direction = _find_direction(trace, [adds[b.index] for b in own])
        if not direction and stream == last and any(b.kind in MIXING_KINDS for b in own):
            direction = {True: "bidirectional", False: "causal"}.get(reads_ahead, "")  # type: ignore[arg-type]
        yield _describe_stream(trace.analysis, adds[own[-1].index], blocks=own, direction=direction)


def _find_direction(trace: ModelTrace, adds: list[AddAnalysis]) -> str:
    """Return which tokens the self-attentions of a stream see; empty if that is not known."""
    inside = set[int]().union(*(a.add.path for a in adds if a.kind == "self-attention"))
    words = []
    for attention in trace.recorder.stats.attentions:
        if attention.node not in inside or not attention.is_square:
            continue
        hidden = {"later": "sees later tokens only", "prefix": "causal behind a prefix"}
        word = "causal" if attention.is_causal else hidden.get(attention.visible, "bidirectional")
        words.append(word)
    return " and ".join(dict.fromkeys(words))


def _title(block: Block) -> str:
    title = "Sub-LN" if "sub-ln" in block.tags else WIRING_TITLES.get(block.wiring, block.wiring)
    return f"parallel {title}" if "parallel" in block.tags else title


def _describe_stream(
    analysis: ModelAnalysis, last: AddAnalysis, *, blocks: list[Block], direction: str
) -> str:
    kinds = [" + ".join(b.branches) for b in blocks]
    length = find_period(kinds)
    titles = Counter(_title(b) for b in blocks)
    common = [name for name, count in titles.most_common() if 3 * count >= len(blocks)]
    parts = [f"{len(kinds) // length} x [{', '.join(kinds[:length])}]"]
    norm = Counter(b.norm for b in blocks if b.norm).most_common(1)
    title = " and ".join(common or titles)
    if norm:
        kind = norm[0][0]
        eps = {n.eps for n in analysis.norms.values() if n.kind == kind and n.eps}
        eps_text = f" eps {min(eps):.0e}".replace("e-0", "e-") if eps else ""
        title += f" with {NORM_TITLES.get(kind, kind)}{eps_text}"
    parts.append(title)
    tags = Counter(t for b in blocks for t in b.tags if t not in TITLE_TAGS)
    parts += [t.replace("-", " ") for t, count in tags.items() if count * 2 > len(blocks)]
    parts += [direction] if direction else []
    parts.append("final norm" if last.final_norms else "no final norm")
    if not any(t in SCALE_TAGS for b in blocks for t in b.tags):
        parts.append("no warm-up-critical scaling")
    return ", ".join(parts)


def describe_outliers(blocks: tuple[Block, ...]) -> Iterator[str]:
    """Yield a line for each block that differs from most blocks of its kind and stream."""
    for stream in sorted({b.stream for b in blocks}):
        own = [b for b in blocks if b.stream == stream]
        for kind in dict.fromkeys(b.kind for b in own):
            same = [b for b in own if b.kind == kind]
            (wiring, tags), count = Counter((b.wiring, b.tags) for b in same).most_common(1)[0]
            if count * 2 <= len(same):
                continue
            expected = " ".join([wiring, *tags])
            for b in same:
                if (b.wiring, b.tags) != (wiring, tags):
                    actual = " ".join([b.wiring, *b.tags])
                    yield f"{b.path or 'block'} ({kind} {b.index}): {actual}, not {expected}"
