"""Facts about sites: weights without gradients or updates, silent branches, dead gains."""

import math
from collections.abc import Iterator, Sequence

from addnorm.monitor.diagnosis.sentence import Sentence
from addnorm.monitor.diagnosis.series import Series, first_finite, last_finite

MIN_LOOKS = 3
"""Looks before a site without a gradient or an update is reported."""
MAX_LABELS = 3
"""Sites that a sentence names; the others are counted."""
SILENT_DEPENDENCY = 1e-3
"""Fraction of the variance below which a branch counts as silent."""
MIN_SILENT_LOOKS, MAX_SILENT_GROWTH = 8, 10.0
"""Last looks that a silent branch is silent in, and its growth since the first ones."""
MIN_DEAD_GAINS = 0.1
"""Fraction of dead gains that is reported."""
MAX_GAIN_GROWTH = 10.0
"""Factor by which the largest gain exceeds that of the first look when it is reported."""
RULES_PAGE = "docs/catalogue/rules.md"
NORMS_PAGE = "docs/catalogue/index.md#norms"
WIRINGS_PAGE = "docs/catalogue/index.md#wirings"


def diagnose_sites(series: Sequence[Series]) -> list[Sentence]:
    """Return the facts that the latest looks at all sites show."""
    by_name: dict[str, list[Series]] = {}
    for each in series:
        by_name.setdefault(each.name, []).append(each)
    return [
        *_frozen_sentences(by_name),
        *_silent_sentences(by_name.get("dependency", ())),
        *_gain_sentences(by_name),
    ]


def _frozen_sentences(by_name: dict[str, list[Series]]) -> Iterator[Sentence]:
    """Yield one sentence each about weights without gradients, without updates, and frozen ones.

    Nothing is said if it holds for all sites: then gradients or updates are not visible.
    """
    gradients = [s for s in by_name.get("gradient_norm", ()) if s.site is not None]
    updates = {(s.stack, s.site): s for s in by_name.get("update_ratio", ())}
    still = [s for s in gradients if _is_zero(s)]
    if still and len(still) < len(gradients):
        first = still[0]
        yield Sentence(
            f"The weights of {_list_labels(still)} have received no gradient since step "
            f"{first.steps[0]:,} ({len(first.values)} looks).",
            kind="fact", step=first.steps[0], site=first.label, link=RULES_PAGE,
        )  # fmt: skip
    unmoved = [
        s
        for s in gradients
        if not _is_zero(s) and (s.stack, s.site) in updates and _is_zero(updates[s.stack, s.site])
    ]
    if unmoved and len(unmoved) < len(gradients):
        gradient = unmoved[0]
        update = updates[gradient.stack, gradient.site]
        yield Sentence(
            f"The weights of {_list_labels(unmoved)} receive gradients (norm "
            f"{last_finite(gradient.values):.3g}) and have not changed in {len(update.values)} "
            f"looks since step {update.steps[0]:,}.",
            kind="fact", step=update.steps[0], site=gradient.label, link=RULES_PAGE,
        )  # fmt: skip
    known = {(s.stack, s.site) for s in gradients}
    streams = by_name.get("stream_rms", ())
    frozen = [s for s in streams if gradients and (s.stack, s.site) not in known]
    if frozen and len(frozen) < len(streams):
        yield Sentence(
            f"{len(frozen)} of {len(streams)} sites have no weight that is trained, none requires "
            f"a gradient: {_list_labels(frozen)}.",
            kind="fact", severity="info", site=frozen[0].label, link=RULES_PAGE,
        )  # fmt: skip


def _list_labels(series: Sequence[Series]) -> str:
    """Return the labels of the first sites, and the number of the others."""
    names = "; ".join(each.label for each in series[:MAX_LABELS])
    return names if len(series) <= MAX_LABELS else f"{names} and {len(series) - MAX_LABELS} more"


def _is_zero(series: Series) -> bool:
    """Return whether a series has enough looks and all of its values are 0."""
    return len(series.values) >= MIN_LOOKS and all(value == 0 for value in series.values)


def _silent_sentences(series: Sequence[Series]) -> Iterator[Sentence]:
    """Yield one sentence about branches that add almost nothing and do not grow.

    Branches that are initialized close to 0, as with LayerScale or ReZero, grow.
    """
    silent = [
        each
        for each in series
        if len(each.values) >= MIN_SILENT_LOOKS
        and all(value < SILENT_DEPENDENCY for value in each.values[-MIN_SILENT_LOOKS:])
        and last_finite(each.values) < MAX_SILENT_GROWTH * first_finite(each.values, MIN_LOOKS)
    ]
    if not silent:
        return
    first = min(silent, key=lambda each: last_finite(each.values))
    yield Sentence(
        f"{len(silent)} of {len(series)} branches add less than 0.1 % of the variance of their sum "
        f"in the last {MIN_SILENT_LOOKS} looks and do not grow: {_list_labels(silent)}; the "
        f"smallest adds {last_finite(first.values):.2g} at step {first.steps[-1]:,}.",
        kind="fact", step=first.steps[-1], site=first.label, link=WIRINGS_PAGE,
    )  # fmt: skip


def _gain_sentences(by_name: dict[str, list[Series]]) -> Iterator[Sentence]:
    largest = {(s.label, s.site): s for s in by_name.get("gain_max", ())}
    for dead in by_name.get("gain_dead", ()):
        top = largest.get((dead.label, dead.site))
        fraction, step = last_finite(dead.values), dead.steps[-1]
        size = math.nan if top is None else last_finite(top.values)
        if size == 0:
            yield Sentence(
                f"All gains of {dead.label} are 0 at step {step:,}.",
                kind="fact", severity="error", step=step, site=dead.label, link=NORMS_PAGE,
            )  # fmt: skip
        elif fraction >= MIN_DEAD_GAINS:
            yield Sentence(
                f"{fraction:.0%} of the gains of {dead.label} are below 1 % of their median at "
                f"step {step:,}; the largest is {size:.3g}.",
                kind="fact", step=step, site=dead.label, link=NORMS_PAGE,
            )  # fmt: skip
    for top in largest.values():
        start, size = top.values[0], last_finite(top.values)
        if start > 0 and size >= MAX_GAIN_GROWTH * start:
            yield Sentence(
                f"The largest gain of {top.label} is {size:.3g} at step {top.steps[-1]:,}, "
                f"{size / start:.0f} times that of step {top.steps[0]:,}.",
                kind="fact", step=top.steps[-1], site=top.label, link=NORMS_PAGE,
            )  # fmt: skip
