"""Sentences about noise: which differences may be chance, and which the seeds could have shown."""

import statistics
from collections.abc import Sequence

from addnorm.comparison.analysis.arm_summary import ArmSummary, join_names
from addnorm.comparison.statistics import (
    detectable_difference,
    seeds_to_detect,
    simultaneous_half_width,
)

ROUNDING = 1e-6
"""Deviation between seeds, relative to the loss, that is rounding and not noise."""


def describe_chance(lines: Sequence[ArmSummary], level: float) -> list[str]:
    """Return a sentence for each depth with arms that may look worse because there are many.

    The interval of a difference is right for two arms. Of many equal arms, the lucky one is called
    the best, and some others then differ from it. The sentence names the arms whose difference is
    within the interval for all pairs together (all, as the best arm is not known beforehand).
    """
    sentences = []
    for best in (line for line in lines if line.leads):
        known = [line for line in lines if line.depth == best.depth and line.losses]
        half = simultaneous_half_width([line.losses for line in known], level=level)
        if half is None:
            continue
        names = [
            line.arm.name
            for line in known
            if line.behind and line.behind.excludes_zero and abs(line.behind.mean) <= half
        ]
        if names and len(known) > 2:
            verb = "is" if len(names) == 1 else "are"
            sentences.append(
                f"With {len(known)} arms at depth {best.depth}, some may differ by chance: if the "
                f"intervals are to hold for all pairs together (± {half:.3f}), {join_names(names)} "
                f"{verb} within noise, too."
            )
    return sentences


def describe_power(lines: Sequence[ArmSummary], level: float) -> list[str]:
    """Return a sentence for each depth about the differences that its seeds could have shown."""
    sentences = []
    for best in (line for line in lines if line.leads):
        samples, counts = [], []
        for line in lines:
            shared = sorted(line.losses.keys() & best.losses.keys())
            if line.depth == best.depth and line is not best and len(shared) > 1:
                samples.append([line.losses[seed] - best.losses[seed] for seed in shared])
                counts += [len(shared)] if line.is_undecided else []
        if not counts:
            continue
        count = min(counts)
        # Arms that are decided tell about the noise, too, unless they have got fewer seeds.
        variances = [statistics.variance(each) for each in samples if len(each) >= count]
        deviation = statistics.fmean(variances) ** 0.5
        if best.loss is None or deviation <= ROUNDING * abs(best.loss.mean):
            continue
        smallest = detectable_difference(deviation, count, level=level)
        needed = seeds_to_detect(smallest / 2, deviation, level=level)
        more = f"; {needed} seeds would show {smallest / 2:.2g}" if needed else ""
        sentences.append(
            f"At depth {best.depth}, {count} seeds probably miss differences below "
            f"{smallest:.2g}{more}."
        )
    return sentences
