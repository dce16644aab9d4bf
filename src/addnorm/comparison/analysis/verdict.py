"""The verdict of a comparison in plain sentences; the first two answer it."""

from collections.abc import Iterator, Sequence

from addnorm.comparison.analysis.arm_summary import UNKNOWN_STATES, ArmSummary, join_names
from addnorm.comparison.analysis.significance import describe_chance, describe_power
from addnorm.comparison.analysis.summary import EndedCell
from addnorm.comparison.outcomes import VALIDATION_LOSS, Objective
from addnorm.comparison.statistics import CONFIDENCE_LEVEL, Estimate

TRAINED_PHRASES = ("trained at every setting", "trained without warm-up", "trained")
STATE_PHRASES = {"waiting": "not finished", "cut": "stopped by halving"}
"""States in sentences, where they differ from `outcomes.STATES`."""


def build_verdict(
    lines: Sequence[ArmSummary],
    cells: Sequence[EndedCell],
    *,
    seeds: int,
    level: float = CONFIDENCE_LEVEL,
    objective: Objective = VALIDATION_LOSS,
) -> tuple[str, ...]:
    """Return two sentences per depth, deepest first, and cautions.

    The first sentence of a depth names the best arm, the second what each arm needed to train.

    Args:
        lines: the summary of each arm at each depth
        cells: the cells of the comparison
        seeds: number of seeds that every setting has
        level: confidence level of the intervals in `lines`
        objective: what cells are judged by
    """
    sentences: list[str] = []
    for depth in sorted({line.depth for line in lines}, reverse=True):
        at_depth = [line for line in lines if line.depth == depth]
        sentences.append(_describe_best(depth, at_depth, _count_seeds(at_depth, seeds), objective))
        sentences.append(_describe_training(depth, at_depth, cells))
    sentences += _describe_open_ends(lines)
    sentences += describe_chance(lines, level)
    sentences += describe_power(lines, level)
    return (*sentences, *_list_cautions(cells, _count_seeds(lines, seeds)))


def _count_seeds(lines: Sequence[ArmSummary], seeds: int) -> int:
    """Return the number of seeds of the best arms: `seeds`, or more if some were added."""
    return max(seeds, min((len(line.losses) for line in lines if line.leads), default=0))


def _describe_best(
    depth: int, lines: Sequence[ArmSummary], seeds: int, objective: Objective
) -> str:
    best = next((line for line in lines if line.leads), None)
    if best is None or best.best is None or best.loss is None:
        if any(line.states.get("waiting") for line in lines):
            waiting = sum(line.states.get("waiting", 0) for line in lines)
            total = sum(sum(line.states.values()) for line in lines)
            return (
                f"At depth {depth} no cell has trained yet: {waiting} of {total} cells are not "
                "finished."
            )
        if all(set(line.states) <= UNKNOWN_STATES for line in lines):
            return f"At depth {depth} no cell ran to its end."
        edges = {line.edge for line in lines}
        rates = "higher" if edges == {"highest"} else "lower" if edges == {"lowest"} else "other"
        if rates == "other" and any(line.states.get("diverged") for line in lines):
            rates = "lower"
        return (
            f"At depth {depth} no cell trained: try more steps, {rates} learning rates, or warm-up."
        )
    value = objective.to_estimate(best.loss).format()
    text = f"{best.arm.name} with {best.best.format()}: {objective.label} {value}"
    if not best.whole:
        text += f" ({best.describe_seeds() if best.unfinished else 'not with every seed'})"
    others = [line for line in lines if line.loss is not None and line is not best]
    not_yet = [line.arm.name for line in lines if line.loss is None and "waiting" in line.states]
    if others:
        parts = [text, *_compare_with_best(others, seeds, objective)]
    elif not_yet:
        parts = [text]
    else:
        only = "only this arm trained" if len(lines) > 1 else "there is no other arm to compare"
        parts = [text, only]
    if not_yet:
        parts.append(f"{join_names(not_yet)} {_has(not_yet)} not trained yet")
    so_far = " so far" if not_yet or best.unfinished else ""
    return f"At depth {depth} the best{so_far} is {'; '.join(parts)}."


def _compare_with_best(
    others: Sequence[ArmSummary], seeds: int, objective: Objective
) -> Iterator[str]:
    """Yield how the arms that trained differ from the best one."""
    if seeds == 1:
        ranking = [
            f"{line.arm.name} {objective.to_estimate(line.loss).format()}"
            for line in _sort_by_loss(others)
            if line.loss
        ]
        yield f"then {join_names(ranking)} (one seed: noise is unknown)"
        return
    groups: dict[str, list[str]] = {}
    for line in _sort_by_loss(others):
        kind = _classify_difference(line.behind)
        if kind == "lower" and line.unfinished:
            kind = "early"
        amount = f" by {line.behind.format()}" if kind == "worse" and line.behind else ""
        groups.setdefault(kind, []).append(line.arm.name + amount)
    better = "lower loss" if objective == VALIDATION_LOSS else f"better {objective.label}"
    for kind, template in (
        ("noise", "the difference to {} is within noise"),
        ("worse", "worse {verb} {}"),
        ("lower", "{} had a {better}, but not with every seed"),
        ("early", "{} {has} a {better}, but not all seeds are finished"),
        ("unknown", "{} trained with too few common seeds for a comparison"),
    ):
        if names := groups.get(kind):
            verb = "is" if len(names) == 1 else "are"
            yield template.format(join_names(names), verb=verb, has=_has(names), better=better)


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


def _classify_difference(difference: Estimate | None) -> str:
    if difference is None or difference.half is None:
        return "unknown"
    if not difference.excludes_zero:
        return "noise"
    return "worse" if difference.mean > 0 else "lower"


def _describe_training(depth: int, lines: Sequence[ArmSummary], cells: Sequence[EndedCell]) -> str:
    """Describe what each arm needed to train, grouping arms with equal descriptions."""
    groups: dict[str, list[str]] = {}
    for line in lines:
        own = [e for e in cells if e.cell.arm == line.arm and e.cell.depth == depth]
        groups.setdefault(training_requirement(own), []).append(line.arm.name)
    order = sorted(groups, key=lambda phrase: phrase not in TRAINED_PHRASES)
    clauses = []
    for phrase in order:
        names = groups[phrase]
        if len(names) > 1 and "trained in " in phrase:  # the counts are those of one arm
            phrase = phrase.replace("trained in ", "each trained in ")
        elif len(names) > 1 and phrase.endswith(")"):
            phrase = phrase.removesuffix(")") + " each)"
        if len(names) > 1 and phrase.startswith("has "):
            phrase = "have " + phrase.removeprefix("has ")
        clauses.append(f"{join_names(names)} {phrase}")
    return f"At depth {depth} " + "; ".join(clauses) + "."


def training_requirement(cells: Sequence[EndedCell]) -> str:
    """Return what an arm needed to train, as the predicate of a sentence."""
    judged = [each for each in cells if each.state not in UNKNOWN_STATES]
    trained = [each for each in judged if each.state == "trained"]
    states = [each.state for each in cells]
    counted = ", ".join(
        f"{states.count(state)} {STATE_PHRASES.get(state, state)}"
        for state in ("stuck", "diverged", "crashed", "cut", "waiting")
        if state in states
    )
    if "waiting" in states and not trained:
        return f"has not trained yet ({counted})"
    if not judged:
        return f"did not run to the end ({counted})"
    if len(trained) == len(cells):
        if all(each.cell.warmup == 0 for each in cells):
            return "trained without warm-up"
        return "trained at every setting" if len(_distinct_settings(cells)) > 1 else "trained"
    if not trained:
        return f"did not train ({counted})"
    if len(trained) == len(judged):
        more = f" ({counted})" if counted else ""
        return f"trained in all {len(judged)} cells that ran to the end{more}"
    so_far = "so far " if "waiting" in states else ""
    cold = [each for each in judged if each.cell.warmup == 0]
    warm = [each for each in judged if each.cell.warmup]
    if cold and warm and not any(each.state == "trained" for each in cold):
        every = all(each.state == "trained" for each in warm)
        always = "" if every else " and not always"
        counts = f" ({counted})" if "waiting" in states or not every else ""
        return f"{so_far}trained only with warm-up{always}{counts}"
    high = max(each.cell.lr for each in trained)
    if {each.cell.lr > high for each in judged if each.state != "trained"} == {True}:
        return f"{so_far}trained only at learning rates up to {high:g} ({counted})"
    return f"{so_far}trained in {len(trained)} of {len(judged)} cells ({counted})"


def _describe_open_ends(lines: Sequence[ArmSummary]) -> list[str]:
    """Return a sentence for each depth and end at which best learning rates lie."""
    ends: dict[tuple[int, str, bool], list[str]] = {}
    for line in lines:
        best = line.best or line.closest
        if best is not None and line.edge:
            name = f"{line.arm.name} ({best.lr:g})"
            ends.setdefault((line.depth, line.edge, line.best is not None), []).append(name)
    better = {"highest": "higher", "lowest": "lower"}
    sentences = []
    for (depth, edge, has_trained), names in sorted(ends.items(), reverse=True):
        rate = "best learning rate" if has_trained else "learning rate with the lowest loss"
        hope = "be better" if has_trained else "train"
        sentences.append(
            f"Open end at depth {depth}: the {rate} of {join_names(names)} is the {edge} that was "
            f"tried; a {better[edge]} one may {hope}."
        )
    return sentences


def _list_cautions(cells: Sequence[EndedCell], seeds: int) -> list[str]:
    cautions = []
    waiting = sum(each.state == "waiting" for each in cells)
    if waiting:
        cautions.append(
            f"{waiting} of {len(cells)} cells are not finished: the result is preliminary."
        )
    crashed = [each.end.why for each in cells if each.state == "crashed" and each.end is not None]
    if crashed:
        cautions.append(
            f"{len(crashed)} of {len(cells)} cells crashed (the first: {crashed[0]}); rerun the "
            "same command to retry them."
        )
    if seeds == 1:
        cautions.append(
            "One seed gives no estimate of the noise: use --seeds 3 or more before you decide."
        )
    if seeds == 2:
        cautions.append(
            "Two seeds give a poor estimate of the noise: use --seeds 3 or more before you decide."
        )
    return cautions


def _distinct_settings(cells: Sequence[EndedCell]) -> set[object]:
    return {each.cell.setting for each in cells}


def _sort_by_loss(lines: Sequence[ArmSummary]) -> list[ArmSummary]:
    return sorted(lines, key=lambda line: line.loss.mean if line.loss else float("inf"))
