"""Rule `shared_matrices`: layers that share one sub-layer and have their own other ones."""

from collections import Counter
from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

MIN_LAYERS = 3
"""Fewest layers of which all must share the sub-layer."""
KINDS = ("self-attention", "feed-forward")


@rule("shared_matrices")
def shared_matrices(context: RuleContext) -> Iterator[Finding]:
    """Report streams whose layers all use the same feed-forward, but own attentions, or reverse.

    Layers that are shared as a whole (ALBERT) are healthy, and so are those of which only some are
    shared.
    """
    streams: dict[int, dict[str, list[tuple[str, ...]]]] = {}
    for block in context.blocks:
        names = context.branch_weights(block)
        if block.kind in KINDS and names:
            streams.setdefault(block.stream, {}).setdefault(block.kind, []).append(names)
    for kinds in streams.values():
        if set(kinds) != set(KINDS) or len({len(uses) for uses in kinds.values()}) > 1:
            continue
        counts = {kind: Counter(uses) for kind, uses in kinds.items()}
        shared = [kind for kind, count in counts.items() if len(count) == 1]
        own = [kind for kind, count in counts.items() if max(count.values()) == 1]
        if len(shared) != 1 or len(own) != 1 or len(kinds[own[0]]) < MIN_LAYERS:
            continue
        names = kinds[shared[0]][0]
        yield Finding(
            "shared_matrices", "warning", names[0].rpartition(".")[0],
            f"all {len(kinds[own[0]])} layers use the same {shared[0]}, while each has its own "
            f"{own[0]}; create one {shared[0]} for each layer, unless sharing it is intended",
            {"weights": list(names[:4]), "layers": len(kinds[own[0]])},
        )  # fmt: skip
