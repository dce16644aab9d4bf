"""What follows, in plain sentences; the first two are the answer."""

from collections.abc import Sequence

from addnorm.lab.statistics import Estimate
from addnorm.lab.summary import Ended, Line

MOST_NAMES = 8
FULLY = ("trained at every setting", "trained without warm-up", "trained")


def verdict(lines: Sequence[Line], cells: Sequence[Ended], *, seeds: int) -> tuple[str, ...]:
    """Sentences, the deepest stacks first: the best arm there, and what it took to train."""
    said: list[str] = []
    for depth in sorted({line.depth for line in lines}, reverse=True):
        here = [line for line in lines if line.depth == depth]
        said.append(_best(depth, here, seeds))
        said.append(_training(depth, here, cells))
    return (*said, *_cautions(cells, seeds))


def _best(depth: int, lines: Sequence[Line], seeds: int) -> str:
    """Which arm is best, and which cannot be told from it."""
    best = next((line for line in lines if line.leads), None)
    if best is None or best.best is None or best.loss is None:
        if any(line.states.get("waiting") for line in lines):
            return f"At depth {depth} no cell has trained yet."
        return (
            f"At depth {depth} no cell trained: try lower learning rates, warm-up, or more steps."
        )
    told = f"{best.arm.name} with {best.best.told()}: validation loss {best.loss.told()}"
    if not best.whole:
        told += " (not with every seed)"
    others = [line for line in lines if line.loss is not None and line is not best]
    if not others:
        only = "only this arm trained" if len(lines) > 1 else "there is no other arm to compare"
        return f"At depth {depth} the best is {told}; {only}."
    if seeds == 1:
        near = listed(
            [f"{line.arm.name} {line.loss.told()}" for line in _sorted(others) if line.loss]
        )
        return f"At depth {depth} the best is {told}; then {near} (one seed: noise is unknown)."
    noise = [line.arm.name for line in _sorted(others) if not (line.behind and line.behind.sure)]
    worse = [
        f"{line.arm.name} by {_difference(line.behind)}"
        for line in _sorted(others)
        if line.behind and line.behind.sure
    ]
    parts = [f"At depth {depth} the best is {told}"]
    if noise:
        parts.append(f"the difference to {listed(noise)} is within noise")
    if worse:
        parts.append(f"worse {'is' if len(worse) == 1 else 'are'} {listed(worse)}")
    return "; ".join(parts) + "."


def _training(depth: int, lines: Sequence[Line], cells: Sequence[Ended]) -> str:
    """What each arm needed to train; arms of which the same can be said stand together."""
    groups: dict[str, list[str]] = {}
    for line in lines:
        own = [e for e in cells if e.cell.arm == line.arm and e.cell.depth == depth]
        groups.setdefault(needed(own), []).append(line.arm.name)
    order = sorted(groups, key=lambda words: words not in FULLY)
    return f"At depth {depth} " + "; ".join(f"{listed(groups[e])} {e}" for e in order) + "."


def needed(own: Sequence[Ended]) -> str:
    """What an arm at a depth needed to train, as the rest of a sentence."""
    states = [each.state for each in own]
    trained = [each for each in own if each.state == "trained"]
    ended = [each for each in own if each.state != "waiting"]
    if not ended:
        return "did not run yet"
    if len(trained) == len(own):
        if all(each.cell.warmup == 0 for each in own):
            return "trained without warm-up"
        return "trained at every setting" if len(_settings(own)) > 1 else "trained"
    counted = ", ".join(
        f"{states.count(state)} {state}"
        for state in ("stuck", "diverged", "crashed", "cut")
        if state in states
    )
    if not trained:
        return f"did not train ({counted})"
    cold = [each for each in ended if each.cell.warmup == 0]
    warm = [each for each in ended if each.cell.warmup]
    if cold and warm and not any(each.state == "trained" for each in cold):
        every = all(each.state == "trained" for each in warm)
        return "trained only with warm-up" + ("" if every else f" and not always ({counted})")
    high = max(each.cell.lr for each in trained)
    if {each.cell.lr > high for each in ended if each.state != "trained"} == {True}:
        return f"trained only at learning rates up to {high:g} ({counted})"
    return f"trained in {len(trained)} of {len(ended)} cells ({counted})"


def _cautions(cells: Sequence[Ended], seeds: int) -> list[str]:
    said = []
    waiting = sum(each.state == "waiting" for each in cells)
    if waiting:
        said.append(f"{waiting} of {len(cells)} cells have not run yet: this is not the last word.")
    crashed = sum(each.state == "crashed" for each in cells)
    if crashed:
        said.append(
            f"{crashed} of {len(cells)} cells crashed; give the same command again to try them "
            "once more."
        )
    if seeds == 1:
        said.append("One seed tells nothing about noise: use --seeds 3 or more before you decide.")
    return said


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a", "b", "c"]), listed(list("abcdefghij"))
    ('a, b and c', 'a, b, c, d, e, f, g and 3 more')
    """
    shown = list(names) if len(names) <= MOST_NAMES else list(names[: MOST_NAMES - 1])
    shown += [f"{len(names) - len(shown)} more"] if len(shown) < len(names) else []
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))


def _settings(own: Sequence[Ended]) -> set[object]:
    return {each.cell.setting for each in own}


def _sorted(lines: Sequence[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: line.loss.mean if line.loss else float("inf"))


def _difference(behind: Estimate) -> str:
    return (
        f"{behind.mean:.3f} ± {behind.half:.3f}"
        if behind.half is not None
        else f"{behind.mean:.3f}"
    )
