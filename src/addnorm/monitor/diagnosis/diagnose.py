"""Diagnosis of a run in words: facts, changes against its own past, known associations.

Nothing is predicted and no cause is named. Every sentence has its numbers, its site and a page of
the documentation. `benchmarks/monitor_diagnosis.py` plants failures and counts which sentences
appear there and in healthy runs; the thresholds below were chosen on it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

from addnorm.core.rows import Row
from addnorm.doctor.report import Finding
from addnorm.monitor.diagnosis.associations import diagnose_associations
from addnorm.monitor.diagnosis.sentence import Sentence
from addnorm.monitor.diagnosis.series import (
    Change,
    Series,
    collect_series,
    describe_site,
    find_changes,
)
from addnorm.monitor.diagnosis.site_facts import diagnose_sites

GUIDE = "docs/guides/watch-your-training.md"
RULES_PAGE = "docs/catalogue/rules.md"
RISING = {
    "gradient_norm": "Gradient norm",
    "stream_rms": "RMS of the stream",
    "max_logit": "Largest attention logit",
    "update_ratio": "Update ratio",
    "gain_max": "Largest gain",
}
FALLING = {"attention_entropy": "Attention entropy", "gain_min": "Smallest gain"}
"""Metrics whose rise or fall is reported where the loss jumps, and their titles."""
REPORTED_ALONE = frozenset({"update_ratio", "gain_max", "gain_min"})
"""Metrics whose change is a sentence of its own. Gradients, stream, logits and entropy change as
much in healthy runs, when a model with small initial weights starts to attend."""
SETTINGS_RULES = frozenset({"decayed_gain"})
"""Rules about common settings; gains that do shrink are reported from their rows."""
MAX_CHANGES = 3
"""Changes that are told one by one; the others are counted."""
BURST_STEPS = 8


def diagnose_findings(findings: Sequence[Finding]) -> list[Sentence]:
    """Return the warnings and errors of the doctor as sentences."""
    return [
        Sentence(
            f"Doctor, {finding.rule}" + (f" at {finding.path}" if finding.path else "")
            + f": {finding.message.rstrip('.')}.",
            kind="fact", severity=finding.severity, site=finding.path, link=RULES_PAGE,
        )
        for finding in findings
        if finding.severity != "info" and finding.rule not in SETTINGS_RULES
    ]  # fmt: skip


def diagnose_rows(rows: Sequence[Row], *, notes: Sequence[str] = ()) -> list[Sentence]:
    """Return what the rows of a run show.

    Args:
        rows: rows in order of the step, those of a resumed run once
        notes: notes of the monitor; those on attention that cannot be seen become sentences
    """
    series = collect_series(rows)
    changes = [
        change
        for each in series
        for names, upward in ((RISING, True), (FALLING, False))
        if each.name in names
        for change in find_changes(each, upward=upward)
    ]
    looks = sorted({step for each in series for step in each.steps})
    return [
        *_nonfinite_sentences(rows),
        *_loss_sentences(rows, changes, looks),
        *diagnose_sites(series),
        *_change_sentences([each for each in changes if each.series.name in REPORTED_ALONE]),
        *diagnose_associations(series, changes),
        *_visibility_sentences(notes),
    ]


def _nonfinite_sentences(rows: Sequence[Row]) -> Iterator[Sentence]:
    found = [row for row in rows if row["name"] == "nonfinite"]
    for row in found[:1]:
        number = "NaN" if math.isnan(row["value"]) else "infinity"
        place = f"`{row.get('place')}` in `{row.get('path') or 'the model itself'}`"
        label = describe_site(row) if row.get("site") is not None else ""
        location = f" ({label})" if label else " (outside all sites)"
        what = "of the gradients is in" if row.get("pass") == "backward" else "came from"
        yield Sentence(
            f"Step {row['step']:,}: the first {number} {what} {place}{location}; "
            f"{row.get('detail')}.",
            kind="fact", severity="error", step=row["step"], site=label, link=RULES_PAGE,
        )  # fmt: skip
    diverged = [
        row for row in rows if row["name"] == "diverged" and not math.isfinite(row["value"])
    ]
    losses = [row for row in rows if row["name"] == "loss" and not math.isfinite(row["value"])]
    if not found and (diverged or losses):
        step = (diverged or losses)[0]["step"]
        yield Sentence(
            f"Step {step:,}: the loss is not finite; the operation is not known, because the batch "
            "was not kept or its forward and backward pass are finite.",
            kind="fact", severity="error", step=step, link=RULES_PAGE,
        )  # fmt: skip


def _loss_sentences(
    rows: Sequence[Row], changes: Sequence[Change], looks: Sequence[int]
) -> Iterator[Sentence]:
    losses = {row["step"]: row["value"] for row in rows if _is_train_loss(row)}
    for row in rows:
        if row["name"] == "diverged" and math.isfinite(row["value"]):
            start = next(iter(losses.values()), math.nan)
            yield Sentence(
                f"Step {row['step']:,}: the loss is {row['value']:.3g}, and {start:.3g} at the "
                "start; it has been that high for a whole window of steps.",
                kind="fact", severity="error", step=row["step"], link=GUIDE,
            )  # fmt: skip
            break
    spikes = [row["step"] for row in rows if row["name"] == "spike"]
    starts = [s for n, s in enumerate(spikes) if not n or s - spikes[n - 1] > BURST_STEPS]
    values = {row["step"]: row["value"] for row in rows if row["name"] == "spike"}
    for step in starts[:MAX_CHANGES]:
        near = _list_near(step, changes, looks)
        yield Sentence(
            f"Step {step:,}: the loss jumps to {values[step]:.3g}. " + _describe_first(step, near),
            kind="change", severity="warning" if near else "info", step=step, link=GUIDE,
        )  # fmt: skip
    if len(starts) > MAX_CHANGES:
        yield Sentence(
            f"{len(starts) - MAX_CHANGES} further jumps of the loss, the last at step "
            f"{starts[-1]:,}.",
            kind="change", severity="info", step=starts[-1], link=GUIDE,
        )  # fmt: skip


def _is_train_loss(row: Row) -> bool:
    return row["name"] == "loss" and row.get("split", "train") == "train"


def _list_near(step: int, changes: Sequence[Change], looks: Sequence[int]) -> list[Change]:
    """Return the changes at the looks around a jump of the loss."""
    before = [look for look in looks if look < step][-1:]
    after = [look for look in looks if look >= step]
    around = {*before, *after[:1], *(look for look in after if look <= step + BURST_STEPS)}
    return [change for change in changes if change.step in around]


def _describe_first(step: int, near: Sequence[Change]) -> str:
    """Return which sites moved first around a jump of the loss."""
    if not near:
        return "No site has moved by a factor of 5 and 6 deviations."
    first = min(change.step for change in near)
    moved = sorted((c for c in near if c.step == first), key=lambda c: -c.deviations)
    names = "; ".join(
        f"{_title(c.series).lower()} of {c.series.label}, {c.value:.3g} after a median of "
        f"{c.median:.3g}"
        for c in moved[:MAX_CHANGES]
    )
    if first > step:
        when = f"at step {first:,}, the first look after it"
    elif first - moved[0].previous_step == 1:
        when = f"at step {first:,}"
    else:
        when = f"between steps {moved[0].previous_step:,} and {first:,}"
    more = f" (and {len(moved) - MAX_CHANGES} more)" if len(moved) > MAX_CHANGES else ""
    return f"First to move, {when}: {names}{more}."


def _change_sentences(changes: Sequence[Change]) -> Iterator[Sentence]:
    """Yield the largest changes, each series once, and the number of the others."""
    largest: dict[int, Change] = {}
    for change in changes:
        known = largest.get(id(change.series))
        if known is None or change.deviations > known.deviations:
            largest[id(change.series)] = change
    ordered = sorted(largest.values(), key=lambda change: -change.deviations)
    for change in ordered[:MAX_CHANGES]:
        deviations = (
            f"{change.deviations:.0f} deviations"
            if change.deviations < 1e4
            else "no deviation before"
        )
        yield Sentence(
            f"{_title(change.series)} of {change.series.label}: {change.value:.3g} at step "
            f"{change.step:,}, median of the {change.looks} looks before {change.median:.3g} "
            f"({deviations}).",
            kind="change", step=change.step, site=change.series.label, link=GUIDE,
        )  # fmt: skip
    if len(ordered) > MAX_CHANGES:
        steps = sorted(change.step for change in ordered)
        yield Sentence(
            f"{len(ordered) - MAX_CHANGES} further metrics changed as much, between steps "
            f"{steps[0]:,} and {steps[-1]:,}.",
            kind="change", step=steps[0], link=GUIDE,
        )  # fmt: skip


def _title(series: Series) -> str:
    return {**RISING, **FALLING}.get(series.name, series.name)


def _visibility_sentences(notes: Iterable[str]) -> Iterator[Sentence]:
    for note in notes:
        if "attention is not visible" in note:
            yield Sentence(f"{note}.", kind="fact", severity="info", link=GUIDE)
