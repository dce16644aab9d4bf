"""The rows of a run as it went: what an interrupted attempt left behind is taken out."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from addnorm.core.rows import Row
from addnorm.report.charts.base import Event
from addnorm.report.downsample import Points

EVENT_LABELS = {
    "spike": "spike",
    "skip": "spike, update skipped",
    "rewind": "spike, rewound",
    "diverged": "diverged",
}
"""Rows that tell of something that happened, and how it is called on a page."""
_STANDARD_FIELDS = ("step", "value", "name", "split", "stack", "site", "layer", "kind")


@dataclass(frozen=True)
class History:
    """Rows by step, one for each place and step."""

    rows: tuple[Row, ...]
    resume_steps: tuple[int, ...] = ()
    """Steps from which the run went on once more."""
    num_replaced: int = 0
    """Rows of attempts that were done again."""
    num_invalid: int = 0
    """Rows without a step, a name or a number."""

    @classmethod
    def from_rows(cls, rows: Iterable[Row]) -> "History":
        """The history that rows tell, in the order they were written."""
        written = list(rows)
        good = [row for row in written if _is_valid(row)]
        kept, resumed = _drop_superseded(good)
        newest: dict[tuple[Any, ...], Row] = {}
        for row in kept:
            newest[_row_key(row)] = row
        ordered = sorted(newest.values(), key=lambda row: row["step"])
        return cls(tuple(ordered), resumed, len(good) - len(ordered), len(written) - len(good))

    @property
    def outcome(self) -> str:
        """How it ended: done, stopped, diverged, interrupted; nothing if it was cut off."""
        ends = [row for row in self.rows if row["name"] == "ended"]
        over = bool(ends) and ends[-1]["step"] >= self.last_step
        return str(ends[-1].get("ending", "")) if over else ""

    @property
    def last_step(self) -> int:
        """The last step that has a row; 0 if none."""
        return max((row["step"] for row in self.rows if row["name"] not in EVENT_LABELS), default=0)

    def points(self, name: str, split: str = "train") -> Points:
        """A number of the whole model over steps. Rows without a split count as training."""
        return [
            (row["step"], float(row["value"]))
            for row in self.rows
            if row["name"] == name
            and row.get("site") is None
            and (row.get("split") or "train") == split
        ]

    def stacks(self, name: str) -> dict[str, list[Row]]:
        """The rows of sites of each stack; several numbers of one site and step are averaged."""
        found: dict[str, dict[tuple[int, int], list[Row]]] = {}
        for row in self.rows:
            if row["name"] == name and row.get("site") is not None:
                place = found.setdefault(str(row.get("stack") or ""), {})
                place.setdefault((row["step"], row["site"]), []).append(row)
        return {
            stack: [
                {**rows[0], "value": math.fsum(row["value"] for row in rows) / len(rows)}
                if len(rows) > 1 and all(math.isfinite(row["value"]) for row in rows)
                else rows[-1]
                for rows in places.values()
            ]
            for stack, places in sorted(found.items(), key=lambda item: item[0] != "encoder")
        }

    def names(self) -> list[tuple[str, str, bool]]:
        """(name, split, of sites) of all that was measured, in the order of its first row."""
        found = {
            (row["name"], row.get("split") or "train", row.get("site") is not None): None
            for row in self.rows
        }
        return list(found)

    def events(self) -> list[Event]:
        """Spikes, and from where on the loss was no number."""
        found = [
            Event(
                row["step"], EVENT_LABELS[row["name"]], float(row["value"]), _describe_location(row)
            )
            for row in self.rows
            if row["name"] in EVENT_LABELS
        ]
        lost = [step for step, value in self.points("loss") if not math.isfinite(value)]
        if lost and not any(event.label == "diverged" for event in found):
            found.append(Event(int(lost[0]), "diverged", math.nan, "the loss is not finite"))
        return sorted(found, key=lambda event: event.step)


def _is_valid(row: Row) -> bool:
    step, value, site = row.get("step"), row.get("value"), row.get("site")
    return (
        type(step) is int
        and isinstance(row.get("name"), str)
        and isinstance(value, int | float)
        and (site is None or type(site) is int)
    )


def _drop_superseded(rows: list[Row]) -> tuple[list[Row], tuple[int, ...]]:
    """Without what was written beyond the step from which a later attempt went on."""
    kept: list[Row] = []
    resumed: list[int] = []
    last = None  # of the training loss, which every attempt writes in order
    since = 0  # where in `kept` the rows begin that came after it
    for row in rows:
        kept.append(row)
        if row["name"] != "loss" or (row.get("split") or "train") != "train":
            continue
        if last is not None and row["step"] <= last:
            back = next(n for n in range(since, len(kept)) if kept[n]["step"] <= row["step"])
            start = min(each["step"] for each in kept[back:])
            kept[:back] = [
                each for each in kept[:back] if each["step"] < start or each["name"] == "rewind"
            ]
            resumed.append(start)
        last, since = row["step"], len(kept)
    return kept, tuple(resumed)


def _row_key(row: Row) -> tuple[Any, ...]:
    """What a row is about: two rows of one place say the same thing twice."""
    more = tuple(sorted((name, str(row[name])) for name in row if name not in _STANDARD_FIELDS))
    about = (row["name"], row.get("split") or "train", row.get("stack"), row.get("site"))
    return (row["step"], *about, more)


def _describe_location(row: Row) -> str:
    parts = [str(row["stack"])] if row.get("stack") else []
    parts += [f"site {row['site']}"] if row.get("site") is not None else []
    parts += [str(row["kind"])] if row.get("kind") else []
    return " ".join(parts)
