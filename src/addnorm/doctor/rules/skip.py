"""The skip carries the normalized input."""

from collections.abc import Iterator

from addnorm.doctor.readings import Reading
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rules.base import Case, rule

MEANT = (
    "the skip carries the normalized input: x = N(x) + f(N(x)); keep the raw x for the skip and "
    "give N(x) to the branch only"
)
SHIFTED = (
    "a norm stands before the first block and behind every sum: Post-LN with a normalized "
    "embedding, which is the same arithmetic as a Pre-LN whose skips carry the normalized input; "
    "if Pre-LN was meant, keep the raw x for the skip and give N(x) to the branch only"
)


@rule("skip_after_norm")
def skip_after_norm(case: Case) -> Iterator[Finding]:
    """x_next = N(x) + f(N(x)): Post-LN in disguise, the clean path of Pre-LN is lost.

    With a final norm it is Post-LN behind a normalized embedding to the last number, so that
    nothing but the owner can tell which one was meant: said once, as info."""
    classes = [case.wiring(r) for r in case.blocks]
    for reading in case.blocks:
        if reading.join.mixed or reading.join.gated or reading.join.towards >= 0:
            continue
        norms = reading.link.norms()
        severity: Severity
        message = MEANT
        if reading.false and case.norms[norms[0]].kind != "batch":
            hybrid = "pre_ln" not in classes and "none" in classes
            severity = "info" if hybrid else "error"
        elif _normed(case, reading):
            severity = "error"
        elif _first_alone(case, reading, classes=classes):
            severity = "info"  # or an embedding with a norm, and no other norm in the first block
        elif _post_behind_norm(case, reading, classes=classes):
            severity, message = "info", SHIFTED
        else:
            continue
        yield Finding(
            "skip_after_norm", severity, case.home(reading), message,
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
    mine = _behind_norm(case, reading, classes=classes)
    return len(mine) > 2 and mine[0] == "none" and set(mine[1:]) == {"pre_ln"}


def _post_behind_norm(case: Case, reading: Reading, *, classes: list[str]) -> bool:
    """The first block of a Post-LN stream that begins with a norm."""
    mine = _behind_norm(case, reading, classes=classes)
    return len(mine) > 1 and set(mine) == {"post_ln"}


def _behind_norm(case: Case, reading: Reading, *, classes: list[str]) -> list[str]:
    """The classes of a stream, of the first block of one that begins with a norm; else none."""
    norms = reading.link.norms()
    if reading.link.before >= 0 or not norms or case.norms[norms[0]].kind == "batch":
        return []
    return [c for r, c in zip(case.blocks, classes, strict=True) if r.stream == reading.stream]
