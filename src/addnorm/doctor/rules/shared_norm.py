"""Rule `shared_norm`: one norm module used around different sub-layers."""

from collections.abc import Iterator

from addnorm.doctor.analysis.norms import Norm, is_query_key
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("shared_norm")
def shared_norm(context: RuleContext) -> Iterator[Finding]:
    """Report norms whose gain is used around different branches.

    Layers that are shared as a whole (ALBERT) use their norm around the same matrices and are not
    reported.
    """
    uses: dict[str, list[Norm]] = {}
    for norm in context.iter_norms():
        if is_query_key(context.graph, norm):
            continue
        for name in context.norm_weights(norm)[:1]:
            uses.setdefault(name, []).append(norm)
    for name, norms in uses.items():
        norms = list({norm.source: norm for norm in norms}.values())  # count each input once
        surroundings = {_block_matrices(context, norm) for norm in norms}
        surroundings.discard(frozenset())
        if len(norms) < 2 or len(surroundings) < 2:
            continue
        yield Finding(
            "shared_norm", "warning", name.rpartition(".")[0] or name,
            f"one norm is used at {len(norms)} places around different branches, which share its "
            "gain; create one norm per place",
            {"weight": name, "places": len(norms), "branches": len(surroundings)},
        )  # fmt: skip


def _block_matrices(context: RuleContext, norm: Norm) -> frozenset[str]:
    """Return the matrices of the block that a norm belongs to."""
    for block in context.analysis.add_analyses:
        own = {
            *block.entry_norms,
            *block.partial_norms,
            block.exit_norm,
            block.post_norm,
            *block.inner_norms,
        }
        if norm.node in own or norm.node in block.link.norms():
            return frozenset(context.branch_weights(block))
    return frozenset({f"final {norm.node}"}) if _is_final_norm(context, norm) else frozenset()


def _is_final_norm(context: RuleContext, norm: Norm) -> bool:
    return any(norm.node in block.final_norms for block in context.analysis.add_analyses)
