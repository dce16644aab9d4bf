"""The rows of a training run in order of the step, without rows that a resumed run replaced.

A run appends rows to `rows.jsonl`. When it resumes from a checkpoint, it repeats the steps since
that checkpoint, and the file holds both attempts:

    loss 1, loss 2, loss 3, loss 4, (interrupted; resumed from step 2) loss 3, loss 4, loss 5

`History.from_rows` keeps the last attempt of each step.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from addnorm.core.rows import Row
from addnorm.report.downsample import Points

EVENT_LABELS = {
    "spike": "spike",
    "skip": "spike, update skipped",
    "rewind": "spike, rewound",
    "diverged": "diverged",
    "nonfinite": "first non-finite value",
}
"""Names of rows that report an event, and the event's label on a page."""
_STANDARD_FIELDS = ("step", "value", "name", "split", "stack", "site", "layer", "kind")


@dataclass(frozen=True)
class Event:
    """An event at a step, such as a loss spike or a divergence."""

    step: int
    label: str
    value: float = math.nan
    """The loss, if known."""
    location: str = ""
    """Stack, site and kind where the event was detected."""


@dataclass(frozen=True)
class History:
    """Valid rows in order of the step."""

    rows: tuple[Row, ...]
    resume_steps: tuple[int, ...] = ()
    """First step of each resumed attempt."""
    num_replaced: int = 0
    """Number of rows that a later attempt replaced."""
    num_invalid: int = 0
    """Number of rows without a step, a name or a number."""

    @classmethod
    def from_rows(cls, rows: Iterable[Row]) -> "History":
        """Build the history from rows in the order in which they were written."""
        written = list(rows)
        valid = [row for row in written if _is_valid(row)]
        kept, resume_steps = _drop_superseded(valid)
        newest: dict[tuple[Any, ...], Row] = {}
        for row in kept:
            newest[_row_key(row)] = row
        ordered = sorted(newest.values(), key=lambda row: row["step"])
        num_replaced, num_invalid = len(valid) - len(ordered), len(written) - len(valid)
        return cls(tuple(ordered), resume_steps, num_replaced, num_invalid)

    @property
    def outcome(self) -> str:
        """How the run ended: done, stopped, diverged or interrupted; empty if it did not end."""
        ends = [row for row in self.rows if row["name"] == "ended"]
        has_ended = bool(ends) and ends[-1]["step"] >= self.last_step
        return str(ends[-1].get("ending", "")) if has_ended else ""

    @property
    def last_step(self) -> int:
        """The last step that has a row; 0 if there are no rows."""
        return max((row["step"] for row in self.rows if row["name"] not in EVENT_LABELS), default=0)

    def points(self, name: str, split: str = "train") -> Points:
        """Return the values of a model-wide metric; rows without a split count as training."""
        return [
            (row["step"], float(row["value"]))
            for row in self.rows
            if row["name"] == name
            and row.get("site") is None
            and (row.get("split") or "train") == split
        ]

    def stacks(self, name: str) -> dict[str, list[Row]]:
        """Return the rows of a per-site metric by stack, with one value for each site and step.

        Several values of one site and step, such as those of attention heads, are averaged.
        """
        groups: dict[str, dict[tuple[int, int], list[Row]]] = {}
        for row in self.rows:
            if row["name"] == name and row.get("site") is not None:
                sites = groups.setdefault(str(row.get("stack") or ""), {})
                sites.setdefault((row["step"], row["site"]), []).append(row)
        return {
            stack: [_average(rows) for rows in sites.values()]
            for stack, sites in sorted(groups.items(), key=lambda item: item[0] != "encoder")
        }

    def names(self) -> list[tuple[str, str, bool]]:
        """Return (name, split, is per site) of every metric, in order of its first row."""
        metrics = {
            (row["name"], row.get("split") or "train", row.get("site") is not None): None
            for row in self.rows
        }
        return list(metrics)

    def events(self) -> list[Event]:
        """Return spikes and divergences in order of the step.

        A loss that is not finite counts as a divergence if no row reports one.
        """
        events = [
            Event(
                row["step"], EVENT_LABELS[row["name"]], float(row["value"]), _describe_location(row)
            )
            for row in self.rows
            if row["name"] in EVENT_LABELS
        ]
        nonfinite = [step for step, value in self.points("loss") if not math.isfinite(value)]
        if nonfinite and not any(event.label == "diverged" for event in events):
            events.append(Event(int(nonfinite[0]), "diverged", math.nan, "the loss is not finite"))
        return sorted(events, key=lambda event: event.step)


def _average(rows: list[Row]) -> Row:
    if len(rows) == 1 or not all(math.isfinite(row["value"]) for row in rows):
        return rows[-1]
    return {**rows[0], "value": math.fsum(row["value"] for row in rows) / len(rows)}


def _is_valid(row: Row) -> bool:
    step, value, site = row.get("step"), row.get("value"), row.get("site")
    return (
        type(step) is int
        and isinstance(row.get("name"), str)
        and isinstance(value, int | float)
        and (site is None or type(site) is int)
    )


def _drop_superseded(rows: list[Row]) -> tuple[list[Row], tuple[int, ...]]:
    """Drop the rows of steps that a later attempt repeats; return the rest and the resume steps.

    Every attempt writes its training losses in order of the step, so a step that does not increase
    starts a new attempt.
    """
    kept: list[Row] = []
    resume_steps: list[int] = []
    last_step = None  # of the training loss
    after_last = 0  # index into `kept` of the first row after the last training loss
    for row in rows:
        kept.append(row)
        if row["name"] != "loss" or (row.get("split") or "train") != "train":
            continue
        if last_step is not None and row["step"] <= last_step:
            # The new attempt may have written other rows before its first training loss. It starts
            # with the first row since the last loss that is not later than the repeated step.
            attempt = next(
                n for n in range(after_last, len(kept)) if kept[n]["step"] <= row["step"]
            )
            start = min(each["step"] for each in kept[attempt:])
            kept[:attempt] = [
                each for each in kept[:attempt] if each["step"] < start or each["name"] == "rewind"
            ]
            resume_steps.append(start)
        last_step, after_last = row["step"], len(kept)
    return kept, tuple(resume_steps)


def _row_key(row: Row) -> tuple[Any, ...]:
    """Return what identifies a measurement: of two rows with one key, the later one is kept."""
    other_fields = tuple(
        sorted((name, str(row[name])) for name in row if name not in _STANDARD_FIELDS)
    )
    metric = (row["name"], row.get("split") or "train", row.get("stack"), row.get("site"))
    return (row["step"], *metric, other_fields)


def _describe_location(row: Row) -> str:
    if row.get("label"):
        return str(row["label"])
    if row.get("place") and row.get("path"):
        return f"{row['place']} in {row['path']}"
    parts = [str(row["stack"])] if row.get("stack") else []
    parts += [f"site {row['site']}"] if row.get("site") is not None else []
    parts += [str(row["kind"])] if row.get("kind") else []
    return " ".join(parts)
