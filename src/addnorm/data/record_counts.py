"""Counts of the records of a corpus: read, kept and dropped, by reason."""

from collections import Counter
from typing import Any


class RecordCounts:
    """Counts of records, with read = kept + dropped.

    >>> counts = RecordCounts()
    >>> counts.add_read(2)
    >>> counts.drop("empty", "train.en, line 3")
    >>> counts.keep("train")
    >>> counts.to_dict()["dropped"]
    {'empty': 1}
    """

    def __init__(self) -> None:
        self.read = 0
        self.kept: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.first_locations: dict[str, str] = {}
        self.notes: Counter[str] = Counter()

    def add_read(self, number: int = 1) -> None:
        """Count records that were read, before they are kept or dropped."""
        self.read += number

    def keep(self, split: str, number: int = 1) -> None:
        """Count records that are written to a split."""
        self.kept[split] += number

    def drop(self, reason: str, location: str = "", number: int = 1) -> None:
        """Count records that are dropped; the first location of each reason is stored."""
        self.dropped[reason] += number
        if location:
            self.first_locations.setdefault(reason, location)

    def note(self, message: str, number: int = 1) -> None:
        """Count an event that drops nothing, such as a replaced character."""
        self.notes[message] += number

    def to_dict(self) -> dict[str, Any]:
        """Return the counts for the card of a corpus."""
        assert self.read == self.kept.total() + self.dropped.total(), "a record was lost"
        return {
            "read": self.read,
            "kept": dict(self.kept),
            "dropped": dict(sorted(self.dropped.items())),
            "first": dict(sorted(self.first_locations.items())),
            "notes": dict(sorted(self.notes.items())),
        }
