"""A feed-forward that reads the attention's output before it was added."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import Case, rule


@rule("ffn_fed_unadded")
def ffn_fed_unadded(case: Case) -> Iterator[Finding]:
    """x1 = x + attention(x), x2 = x1 + ffn(attention(x)): the second should read x1."""
    by_node = {r.join.node: r for r in case.anatomy.readings}
    for reading in case.blocks:
        if reading.fed < 0 or reading.dual or reading.around:
            continue
        yield Finding(
            "ffn_fed_unadded", "error", case.home(reading),
            "this branch reads the output of the branch before it, without what the skip carries; "
            "feed it the sum",
            {
                "reads": case.graph[reading.fed].path,
                "sum": case.home(by_node[reading.join.via]),
            },
        )  # fmt: skip
