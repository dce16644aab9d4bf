"""Rule `missing_norm`: sub-layers of one kind without a norm, beside others with one."""

from collections.abc import Iterator

from addnorm.doctor.analysis.results import AddAnalysis
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.inert_norm import inert_norm

KINDS = ("self-attention", "feed-forward")
TITLES = {"pre_ln": "Pre-LN", "post_ln": "Post-LN"}
MIN_LAYERS = 2
"""Fewest sub-layers of each kind that are compared."""


@rule("missing_norm")
def missing_norm(context: RuleContext) -> Iterator[Finding]:
    """Report streams whose attentions have a norm and whose feed-forwards have none, or reverse.

    Silent if a learned or constant scale bounds the branches without a norm, or if the norm of one
    sub-layer serves the other, too. If a norm is called without effect, its own rule says more.
    """
    if any(finding.severity != "info" for finding in inert_norm(context)):
        return
    streams: dict[int, dict[str, list[AddAnalysis]]] = {}
    for block in context.blocks:
        streams.setdefault(block.stream, {}).setdefault(block.kind, []).append(block)
    for kinds in streams.values():
        if set(kinds) != set(KINDS) or min(map(len, kinds.values())) < MIN_LAYERS:
            continue
        wirings = {kind: {context.wiring(b) for b in blocks} for kind, blocks in kinds.items()}
        bare = [kind for kind, labels in wirings.items() if labels == {"none"}]
        others = [labels for labels in wirings.values() if labels in ({"pre_ln"}, {"post_ln"})]
        if len(bare) != 1 or not others:
            continue
        blocks = kinds[bare[0]]
        if any(b.scales or b.is_parallel or b.is_gated_or_mixed or b.inner_norms for b in blocks):
            continue
        yield Finding(
            "missing_norm", "warning", context.module_path(blocks[0]),
            f"{len(blocks)} {bare[0]} sub-layers have no norm, while the others are "
            f"{TITLES[next(iter(others[0]))]}; add a norm before or after each of them",
            {"without": bare[0], "sub-layers": len(blocks)},
        )  # fmt: skip
