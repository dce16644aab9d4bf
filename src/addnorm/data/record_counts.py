"""What became of every record that was read: kept, or left out for a reason."""

from collections import Counter
from typing import Any


class RecordCounts:
    """A tally that must add up: read = kept + every reason.

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
        """Records that come in; called where they are read, before anything is decided."""
        self.read += number

    def keep(self, split: str, number: int = 1) -> None:
        """Records that go on."""
        self.kept[split] += number

    def drop(self, reason: str, location: str = "", number: int = 1) -> None:
        """Records that are left out; the first place of each reason is remembered."""
        self.dropped[reason] += number
        if location:
            self.first_locations.setdefault(reason, location)

    def note(self, message: str, number: int = 1) -> None:
        """Something worth saying about records that stay, or about files."""
        self.notes[message] += number

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for a card or JSON."""
        assert self.read == self.kept.total() + self.dropped.total(), "a record was lost"
        return {
            "read": self.read,
            "kept": dict(self.kept),
            "dropped": dict(sorted(self.dropped.items())),
            "first": dict(sorted(self.first_locations.items())),
            "notes": dict(sorted(self.notes.items())),
        }
