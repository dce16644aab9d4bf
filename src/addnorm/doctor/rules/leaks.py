"""Leaks: between examples, from the future, from padding. Found by changing an input a little."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import Case, rule
from addnorm.doctor.rules.layout import without_last
from addnorm.doctor.rules.probes import (
    NOTICEABLE,
    first_moved,
    inputs,
    mask_of,
    moved_by,
    named_inputs,
    other_than,
    probed,
    replaced,
    run,
    sequence,
)


@rule("batch_leak")
def batch_leak(case: Case) -> Iterator[Finding]:
    """One example changes another."""
    probe = probed(case)
    if probe is not None and probe.leaks:
        yield Finding(
            "batch_leak", "error", "",
            "changing one example changes the output of another: something normalizes or looks "
            "across the batch; take statistics within each example",
            {"change": probe.others},
        )  # fmt: skip


@rule("future_leak")
def future_leak(case: Case) -> Iterator[Finding]:
    """A later token changes an earlier one, in a model some of whose attention is causal."""
    if not _meant_causal(case):
        return
    probe = probed(case)
    if probe is None or probe.length < 2 or probe.length not in probe.before.shape[1:-1]:
        return
    axis = probe.before.shape[1:-1].index(probe.length)
    before, after = (without_last(t[0], probe.length) for t in (probe.before, probe.after))
    moved = moved_by(before, after)
    if moved > NOTICEABLE:
        attentions = case.visit.recorder.signs.attentions
        open_ones = [a.path for a in attentions if a.square and not a.causal]
        yield Finding(
            "future_leak", "error", "",
            "some attention is causal, yet changing the last token changes earlier ones: a mask is "
            "missing or something else looks ahead, such as a norm over tokens",
            {
                "change": moved,
                "first token": first_moved(before, after, axis),
                "attention without mask": open_ones[:4],
            },
        )  # fmt: skip


@rule("padding_leak")
def padding_leak(case: Case) -> Iterator[Finding]:
    """What stands at padding changes valid tokens."""
    mask_name, mask = mask_of(case)
    if mask is None:
        return
    example, names = inputs(case), named_inputs(case)
    alike = [n for n, t in names.items() if sequence(t) and t.shape[1] == mask.shape[1]]
    target = next((name for name in alike if name != mask_name), None)
    if target is None or mask.shape[1] < 3:
        return
    padded = mask.clone()
    padded[:, -1] = 0
    with_mask = replaced(example, {mask_name: padded})
    changed = names[target].clone()
    changed[:, -1] = other_than(changed[:, -1])
    before = run(case, with_mask)
    after = run(case, replaced(with_mask, {target: changed}))
    if before is None or after is None or before.shape != after.shape:
        return
    moved = moved_by(*(without_last(t, mask.shape[1]) for t in (before, after)))
    if moved > NOTICEABLE:
        yield Finding(
            "padding_leak", "error", "",
            "a token that the mask hides changes the output of valid tokens; apply the mask "
            "wherever tokens meet: attention, norms over tokens, pooling",
            {"change": moved, "mask": mask_name},
        )  # fmt: skip


def _meant_causal(case: Case) -> bool:
    """Whether an attention on the stream that reaches the output hides the future."""
    last = case.blocks[-1].stream if case.blocks else -1
    mine = [r for r in case.blocks if r.stream == last and r.kind == "self-attention"]
    spans = [(r.join.fork, r.join.node) for r in mine]
    return any(
        a.causal and any(start <= a.node <= end for start, end in spans)
        for a in case.visit.recorder.signs.attentions
    )
