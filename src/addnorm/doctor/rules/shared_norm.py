"""One norm at different places."""

from collections.abc import Iterator

from addnorm.doctor.analysis.norms import Norm, is_query_key
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import Case, rule


@rule("shared_norm")
def shared_norm(case: Case) -> Iterator[Finding]:
    """The same gain around different branches; layers shared as a whole are healthy."""
    uses: dict[str, list[Norm]] = {}
    for norm in case.each_norm():
        if is_query_key(case.graph, norm):
            continue
        for name in case.norm_weights(norm)[:1]:
            uses.setdefault(name, []).append(norm)
    for name, norms in uses.items():
        norms = list({norm.source: norm for norm in norms}.values())  # twice on one input is once
        surroundings = {_surroundings(case, norm) for norm in norms}
        surroundings.discard(frozenset())
        if len(norms) < 2 or len(surroundings) < 2:
            continue
        yield Finding(
            "shared_norm", "warning", name.rpartition(".")[0] or name,
            f"one norm stands at {len(norms)} places around different branches; give each place "
            "its own",
            {"weight": name, "places": len(norms), "branches": len(surroundings)},
        )  # fmt: skip


def _surroundings(case: Case, norm: Norm) -> frozenset[str]:
    """The matrices of the block that a norm belongs to."""
    for reading in case.anatomy.readings:
        mine = {*reading.entry, *reading.partial, reading.exit, reading.post_norm, *reading.inner}
        if norm.node in mine or norm.node in reading.link.norms():
            return frozenset(case.branch_weights(reading))
    return frozenset({f"final {norm.node}"}) if _final(case, norm) else frozenset()


def _final(case: Case, norm: Norm) -> bool:
    return any(norm.node in reading.final_norms for reading in case.anatomy.readings)
