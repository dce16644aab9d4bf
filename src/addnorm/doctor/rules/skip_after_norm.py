"""The skip carries the normalized input."""

from collections.abc import Iterator

from addnorm.doctor.analysis.results import Reading
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rules.base import Case, rule


@rule("skip_after_norm")
def skip_after_norm(case: Case) -> Iterator[Finding]:
    """x_next = N(x) + f(N(x)): Post-LN in disguise, the clean path of Pre-LN is lost."""
    classes = [case.wiring(r) for r in case.blocks]
    for reading in case.blocks:
        if reading.join.mixed or reading.join.gated or reading.join.towards >= 0:
            continue
        norms = reading.link.norms()
        severity: Severity
        if reading.false and case.norms[norms[0]].kind != "batch":
            hybrid = "pre_ln" not in classes and "none" in classes
            severity = "info" if hybrid else "error"
        elif _normed(case, reading):
            severity = "error"
        elif _first_alone(case, reading, classes=classes):
            severity = "info"  # or an embedding with a norm, and no other norm in the first block
        else:
            continue
        yield Finding(
            "skip_after_norm", severity, case.home(reading),
            "the skip carries the normalized input: x = N(x) + f(N(x)); keep the raw x for the "
            "skip and give N(x) to the branch only",
            {
                "skip": case.graph[reading.join.fork].path,
                "norm": case.graph[norms[0]].path if norms else None,
                "shortcut_variance": reading.join.signs.get("shortcut_variance"),
            },
        )  # fmt: skip


def _normed(case: Case, reading: Reading) -> bool:
    """x_next = N(x) + f(x); a batch norm alone on a skip is a scale (RepVGG)."""
    join = reading.join
    if not join.normed or join.via >= 0 or reading.dual:
        return False
    way = case.graph.between(join.fork, join.shortcut)
    return any(case.norms[i].kind != "batch" for i in way if i in case.norms)


def _first_alone(case: Case, reading: Reading, *, classes: list[str]) -> bool:
    """The first block of a Pre-LN stream that reads, and adds to, a normalized embedding."""
    if reading.link.before >= 0 or not reading.link.norms() or case.wiring(reading) != "none":
        return False
    mine = [c for r, c in zip(case.blocks, classes, strict=True) if r.stream == reading.stream]
    return len(mine) > 2 and mine[1:].count("pre_ln") == len(mine) - 1
