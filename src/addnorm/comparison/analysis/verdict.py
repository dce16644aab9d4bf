"""What follows, in plain sentences; the first two are the answer."""

from collections.abc import Sequence

from addnorm.comparison.analysis.summary import UNKNOWN_STATES, ArmSummary, EndedCell
from addnorm.comparison.statistics import Estimate

MAX_NAMES = 8
TRAINED_PHRASES = ("trained at every setting", "trained without warm-up", "trained")


def build_verdict(
    lines: Sequence[ArmSummary], cells: Sequence[EndedCell], *, seeds: int
) -> tuple[str, ...]:
    """Sentences, the deepest stacks first: the best arm there, and what it took to train."""
    said: list[str] = []
    for depth in sorted({line.depth for line in lines}, reverse=True):
        here = [line for line in lines if line.depth == depth]
        said.append(_describe_best(depth, here, seeds))
        said.append(_describe_training(depth, here, cells))
    return (*said, *_list_cautions(cells, seeds))


def _describe_best(depth: int, lines: Sequence[ArmSummary], seeds: int) -> str:
    """Which arm is best, and which cannot be told from it."""
    best = next((line for line in lines if line.leads), None)
    if best is None or best.best is None or best.loss is None:
        if any(line.states.get("waiting") for line in lines):
            return f"At depth {depth} no cell has trained yet."
        if all(set(line.states) <= UNKNOWN_STATES for line in lines):
            return f"At depth {depth} no cell ran to its end."
        return (
            f"At depth {depth} no cell trained: try more steps, lower learning rates, or warm-up."
        )
    told = f"{best.arm.name} with {best.best.format()}: validation loss {best.loss.format()}"
    if not best.whole:
        told += " (not with every seed)"
    others = [line for line in lines if line.loss is not None and line is not best]
    if not others:
        only = "only this arm trained" if len(lines) > 1 else "there is no other arm to compare"
        return f"At depth {depth} the best is {told}; {only}."
    if seeds == 1:
        near = join_names(
            [f"{line.arm.name} {line.loss.format()}" for line in _sort_by_loss(others) if line.loss]
        )
        return f"At depth {depth} the best is {told}; then {near} (one seed: noise is unknown)."
    groups: dict[str, list[str]] = {"noise": [], "worse": [], "lower": [], "unknown": []}
    for line in _sort_by_loss(others):
        kind = _classify_difference(line.behind)
        by = f" by {line.behind.format()}" if kind == "worse" and line.behind else ""
        groups[kind].append(line.arm.name + by)
    parts = [f"At depth {depth} the best is {told}"]
    for kind, words in (
        ("noise", "the difference to {} is within noise"),
        ("worse", "worse {verb} {}"),
        ("lower", "{} had a lower loss, but not with every seed"),
        ("unknown", "{} trained with too few of the same seeds to be compared"),
    ):
        if names := groups[kind]:
            parts.append(words.format(join_names(names), verb="is" if len(names) == 1 else "are"))
    return "; ".join(parts) + "."


def _classify_difference(difference: Estimate | None) -> str:
    """What a difference to the best says."""
    if difference is None or difference.half is None:
        return "unknown"
    if not difference.excludes_zero:
        return "noise"
    return "worse" if difference.mean > 0 else "lower"


def _describe_training(depth: int, lines: Sequence[ArmSummary], cells: Sequence[EndedCell]) -> str:
    """What each arm needed to train; arms of which the same can be said stand together."""
    groups: dict[str, list[str]] = {}
    for line in lines:
        own = [e for e in cells if e.cell.arm == line.arm and e.cell.depth == depth]
        groups.setdefault(training_requirement(own), []).append(line.arm.name)
    order = sorted(groups, key=lambda words: words not in TRAINED_PHRASES)
    return f"At depth {depth} " + "; ".join(f"{join_names(groups[e])} {e}" for e in order) + "."


def training_requirement(cells: Sequence[EndedCell]) -> str:
    """What an arm at a depth needed to train, as the rest of a sentence."""
    judged = [each for each in cells if each.state not in UNKNOWN_STATES]
    trained = [each for each in judged if each.state == "trained"]
    states = [each.state for each in cells]
    counted = ", ".join(
        f"{states.count(state)} {state}"
        for state in ("stuck", "diverged", "crashed", "cut")
        if state in states
    )
    if not judged:
        return f"did not run to the end ({counted})" if counted else "did not run yet"
    if len(trained) == len(cells):
        if all(each.cell.warmup == 0 for each in cells):
            return "trained without warm-up"
        return "trained at every setting" if len(_distinct_settings(cells)) > 1 else "trained"
    if not trained:
        return f"did not train ({counted})"
    if len(trained) == len(judged):
        more = f" ({counted})" if counted else ""
        return f"trained in all {len(judged)} cells that ran to the end{more}"
    cold = [each for each in judged if each.cell.warmup == 0]
    warm = [each for each in judged if each.cell.warmup]
    if cold and warm and not any(each.state == "trained" for each in cold):
        every = all(each.state == "trained" for each in warm)
        return "trained only with warm-up" + ("" if every else f" and not always ({counted})")
    high = max(each.cell.lr for each in trained)
    if {each.cell.lr > high for each in judged if each.state != "trained"} == {True}:
        return f"trained only at learning rates up to {high:g} ({counted})"
    return f"trained in {len(trained)} of {len(judged)} cells ({counted})"


def _list_cautions(cells: Sequence[EndedCell], seeds: int) -> list[str]:
    said = []
    waiting = sum(each.state == "waiting" for each in cells)
    if waiting:
        said.append(f"{waiting} of {len(cells)} cells have not run yet: this is not the last word.")
    crashed = [each.end.why for each in cells if each.state == "crashed" and each.end is not None]
    if crashed:
        said.append(
            f"{len(crashed)} of {len(cells)} cells crashed (the first: {crashed[0]}); give the "
            "same command again to try them once more."
        )
    if seeds == 1:
        said.append("One seed tells nothing about noise: use --seeds 3 or more before you decide.")
    if seeds == 2:
        said.append("Two seeds tell little about noise: use --seeds 3 or more before you decide.")
    return said


def join_names(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"]), listed(list("abcdefghij"))
    ('a, b and c', 'a, b, c, d, e, f, g and 3 more')
    """
    shown = list(names) if len(names) <= MAX_NAMES else list(names[: MAX_NAMES - 1])
    shown += [f"{len(names) - len(shown)} more"] if len(shown) < len(names) else []
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _distinct_settings(cells: Sequence[EndedCell]) -> set[object]:
    return {each.cell.setting for each in cells}


def _sort_by_loss(lines: Sequence[ArmSummary]) -> list[ArmSummary]:
    return sorted(lines, key=lambda line: line.loss.mean if line.loss else float("inf"))
