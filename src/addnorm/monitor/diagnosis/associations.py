"""Known associations: published observations, told if their condition holds in this run."""

import math
from collections.abc import Iterator, Sequence
from statistics import median

from addnorm.monitor.diagnosis.sentence import Sentence
from addnorm.monitor.diagnosis.series import Change, Series, first_finite, last_finite

MIN_GRADIENT_RATIO = 30.0
"""Ratio of the gradients of the last and first layers that is reported."""
MIN_LOGIT, MIN_LOGIT_GROWTH = 100.0, 4.0
"""Size and growth of the largest logit that are reported; healthy runs reach a few dozen."""
MAX_ENTROPY, MAX_ENTROPY_FRACTION = 0.1, 0.1
"""Entropy in nats, and fraction of the first looks, below which a collapse is reported."""
MIN_UPDATE_RATIO = 0.2
"""Relative change of all weights in one update that is reported."""
FIRST_LOOKS = 4
QK_NORMS_PAGE = "docs/catalogue/positions.md#query-key-norms"
CLAIMS_PAGE = "docs/claims/claims.md"
SCHEDULES_PAGE = "docs/catalogue/schedules.md"


def diagnose_associations(series: Sequence[Series], changes: Sequence[Change]) -> list[Sentence]:
    """Return the associations whose condition holds at the latest look."""
    return [
        *_gradient_sentences([s for s in series if s.name == "gradient_norm"]),
        *_logit_sentences([s for s in series if s.name == "max_logit"]),
        *_entropy_sentences([s for s in series if s.name == "attention_entropy"]),
        *_update_sentences([s for s in series if s.name == "update_ratio"]),
    ]


def _gradient_sentences(series: Sequence[Series]) -> Iterator[Sentence]:
    """Yield the ratio of the gradients of the last and first layer of each stack, if large."""
    stacks: dict[str, dict[int, list[Series]]] = {}
    for each in series:
        if each.site is not None and each.values:
            stacks.setdefault(each.stack, {}).setdefault(each.layer, []).append(each)
    for stack, layers in stacks.items():
        if len(layers) < 2:
            continue
        first, last = (
            median(last_finite(each.values) for each in layers[number])
            for number in (min(layers), max(layers))
        )
        step = layers[max(layers)][0].steps[-1]
        if not (first > 0 and last > 0 and math.isfinite(first) and math.isfinite(last)):
            continue
        ratio = max(last / first, first / last)
        if ratio < MIN_GRADIENT_RATIO:
            continue
        high, low = (max(layers), min(layers)) if last > first else (min(layers), max(layers))
        text = (
            f"Step {step:,}: the gradient at layer {high} of {stack or 'the stack'} is {ratio:.3g} "
            f"times that at layer {low} ({max(first, last):.2g} and {min(first, last):.2g})."
        )
        is_post = all("post_ln" in each.label for each in layers[max(layers)])
        if is_post and last > first:
            text += (
                " Gradients that grow towards the output are reported for Post-LN, more so in deep "
                "stacks (Xiong et al. 2020, arXiv 2002.04745); the claims last_gradient and "
                "deep_post_ln_fails measure it."
            )
        yield Sentence(
            text, kind="association" if is_post and last > first else "fact", step=step,
            site=layers[high][0].label, link=CLAIMS_PAGE,
        )  # fmt: skip


def _logit_sentences(series: Sequence[Series]) -> Iterator[Sentence]:
    grown = [
        (each, first_finite(each.values, FIRST_LOOKS), last_finite(each.values))
        for each in series
        if len(each.values) > FIRST_LOOKS
    ]
    grown = [
        (each, start, end)
        for each, start, end in grown
        if end >= MIN_LOGIT and end >= MIN_LOGIT_GROWTH * max(start, 0.0)
    ]
    if not grown:
        return
    each, start, end = max(grown, key=lambda item: item[2])
    yield Sentence(
        f"The largest attention logit of {each.label} is {end:.3g} at step {each.steps[-1]:,}, and "
        f"{start:.3g} in the first looks ({len(grown)} of {len(series)} attentions). "
        "Growing logits are reported before divergences (Dehghani et al. 2023, arXiv 2302.05442); "
        "here they rise.",
        kind="association", step=each.steps[-1], site=each.label, link=QK_NORMS_PAGE,
    )  # fmt: skip


def _entropy_sentences(series: Sequence[Series]) -> Iterator[Sentence]:
    fallen = [
        (each, first_finite(each.values, FIRST_LOOKS), last_finite(each.values))
        for each in series
        if len(each.values) > FIRST_LOOKS
    ]
    fallen = [
        (each, start, end)
        for each, start, end in fallen
        if end < MAX_ENTROPY and end < MAX_ENTROPY_FRACTION * start
    ]
    if not fallen:
        return
    each, start, end = min(fallen, key=lambda item: item[2])
    yield Sentence(
        f"The attention entropy of {each.label} is {end:.2g} nats at step {each.steps[-1]:,}, and "
        f"{start:.2g} in the first looks ({len(fallen)} of {len(series)} attentions). An entropy "
        "near 0 is reported with instability (Zhai et al. 2023, arXiv 2303.06296).",
        kind="association", step=each.steps[-1], site=each.label, link=QK_NORMS_PAGE,
    )  # fmt: skip


def _update_sentences(series: Sequence[Series]) -> Iterator[Sentence]:
    for each in series:
        finite = [(v, s) for v, s in zip(each.values, each.steps, strict=True) if math.isfinite(v)]
        if each.site is not None or not finite or max(finite)[0] < MIN_UPDATE_RATIO:
            continue
        ratio, step = max(finite)
        yield Sentence(
            f"The update of step {step:,} changes the weights by {ratio:.0%} of their norm, the "
            f"largest of {len(finite)} looks; about 0.1 % is common (Karpathy, CS231n, 2015).",
            kind="association", step=step, site="the whole model", link=SCHEDULES_PAGE,
        )  # fmt: skip
