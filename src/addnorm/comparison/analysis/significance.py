"""Sentences about noise: which differences may be chance, and which the seeds could have shown."""

import statistics
from collections.abc import Sequence

from addnorm.comparison.analysis.arm_summary import ArmSummary, join_names
from addnorm.comparison.statistics import (
    detectable_difference,
    paired_difference,
    seeds_to_detect,
)

ROUNDING = 1e-6
"""Deviation between seeds, relative to the loss, that is rounding and not noise."""


def describe_chance(lines: Sequence[ArmSummary], level: float) -> list[str]:
    """Return a sentence for each depth with arms that look worse only because there are many.

    The interval of a difference is right for two arms. Of many equal arms, the lucky one is called
    the best, and some others then differ from it. The sentence names the arms whose difference is
    within noise after Bonferroni's correction for all pairs: the best arm is not known beforehand.
    """
    sentences = []
    for best in (line for line in lines if line.leads):
        known = [line for line in lines if line.depth == best.depth and line.loss is not None]
        num_pairs = len(known) * (len(known) - 1) // 2
        names = []
        for line in known:
            if line.behind is None or not line.behind.excludes_zero:
                continue
            corrected = paired_difference(
                line.losses, best.losses, level=1 - (1 - level) / num_pairs
            )
            if corrected is not None and not corrected.excludes_zero:
                names.append(line.arm.name)
        if names:
            verb = "is" if len(names) == 1 else "are"
            sentences.append(
                f"With {len(known)} arms at depth {best.depth}, some may differ by chance: "
                f"corrected for the {num_pairs} pairs, {join_names(names)} {verb} within noise, "
                "too."
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
