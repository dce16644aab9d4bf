"""Splits by hash of the text, so that equal sentences are always in the same split.

The hash of a record is a number in [0, 2 ** 64). Test takes the smallest hashes, valid the next,
train the rest:

    0          test edge          valid edge                    2 ** 64
    |-- test --|----- valid ------|---------- train -------------|

A fraction fixes an edge directly. A number of records needs the smallest hashes of all records, of
which `Splitter` keeps only as many as it may hold out.
"""

import hashlib
import heapq
import unicodedata
from array import array
from dataclasses import dataclass

from addnorm.core.errors import UserError

HASH_RANGE = 2**64
DEFAULT_HOLDOUT_DIVISOR = 20
"""By default, one record in twenty is held out for each of valid and test."""
MAX_DEFAULT_HOLDOUT = 2000
"""By default, at most this many records are held out for each."""


def split_key(text: str, seed: int = 0) -> int:
    """Return the 64-bit hash of a sentence, ignoring case, Unicode form and white space.

    >>> split_key("Hello  World ") == split_key("hello world")
    True
    >>> split_key("a", seed=0) == split_key("a", seed=1)
    False
    """
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return hash_text(plain, seed)


def hash_text(text: str, seed: int = 0) -> int:
    """Return the 64-bit hash of a text."""
    data = text.encode("utf-8", errors="surrogatepass")
    salt = (seed % HASH_RANGE).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, salt=salt).digest(), "big")


@dataclass(frozen=True)
class HoldoutSize:
    """Size of a held-out split: a fraction, a number of records, or the default (both None)."""

    fraction: float | None = None
    """Fraction of the distinct sentences."""
    count: int | None = None
    """Number of records."""

    @classmethod
    def parse(cls, text: str | None, name: str) -> "HoldoutSize":
        """Return the size of an option: `0.1` is a fraction, `500` a number, None the default.

        Args:
            text: value of the option
            name: name of the option, for the error message
        """
        if text is None:
            return cls()
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if 0 < value < 1:
            return cls(fraction=value)
        if not (value >= 0 and value.is_integer() and value < HASH_RANGE):
            raise UserError(
                f"{name}: expected a number of records such as 500, a fraction such as 0.05, or 0, "
                f"got {text!r}"
            )
        return cls(count=int(value))

    def num_characters(self, total: int) -> int:
        """Return how many of the last characters of a text are held out.

        >>> HoldoutSize(fraction=0.1).num_characters(1_115_394)
        111540
        """
        if self.fraction is not None:
            return total - int(total * (1 - self.fraction))
        if self.count is not None:
            return self.count
        return max(1, total // DEFAULT_HOLDOUT_DIVISOR) if total >= 3 else 0

    def num_hashes(self, total: int) -> int:
        """Return how many of the smallest hashes determine the edge; 0 for a fraction."""
        if self.fraction is not None:
            return 0
        if self.count is not None:
            return self.count
        return (
            min(MAX_DEFAULT_HOLDOUT, max(1, total // DEFAULT_HOLDOUT_DIVISOR)) if total >= 3 else 0
        )


class Splitter:
    """Edges of the splits, determined by one pass over all hashes.

    With numbers of records, the held-out splits may be a few records larger, because records with
    equal sentences stay together.
    """

    def __init__(self, *, valid: HoldoutSize, test: HoldoutSize) -> None:
        self.valid, self.test = valid, test
        self.total = 0
        self.test_threshold = int((test.fraction or 0) * HASH_RANGE)
        """Hashes below are test, whatever comes; 0 unless test is a fraction."""
        counted = [size for size in (valid, test) if size.fraction is None]
        self.capacity = sum(
            MAX_DEFAULT_HOLDOUT if size.count is None else size.count for size in counted
        )
        """Number of distinct hashes to keep."""
        self.heap: list[int] = []
        """The smallest hashes from the threshold on, negated: heap[0] is the largest of them."""
        self.hash_counts: dict[int, int] = {}
        """Number of records of each hash in the heap."""

    def observe(self, key: int) -> None:
        """Count the hash of a record."""
        self.total += 1
        if key < self.test_threshold or not self.capacity:
            return
        if key in self.hash_counts:
            self.hash_counts[key] += 1
        elif len(self.heap) < self.capacity:
            heapq.heappush(self.heap, -key)
            self.hash_counts[key] = 1
        elif -key > self.heap[0]:
            del self.hash_counts[-heapq.heapreplace(self.heap, -key)]
            self.hash_counts[key] = 1

    def edges(self) -> tuple[int, int]:
        """Return the hashes at which test and valid end.

        Raises:
            UserError: nothing would be left for training
        """
        check_holdout_sizes(self.valid, self.test, self.total, "records")
        smallest = sorted(self.hash_counts)
        test = self._find_edge(
            smallest, self.test.num_hashes(self.total), start=self.test_threshold
        )
        if self.valid.fraction is not None:
            return test, min(HASH_RANGE, test + int(self.valid.fraction * HASH_RANGE))
        left = [key for key in smallest if key >= test]
        return test, self._find_edge(left, self.valid.num_hashes(self.total), start=test)

    def _find_edge(self, keys: list[int], count: int, *, start: int) -> int:
        """Return the edge after the smallest hashes that make up `count` records."""
        for key in keys:
            if count <= 0:
                break
            count -= self.hash_counts[key]
            start = key + 1
        return start


def check_holdout_sizes(valid: HoldoutSize, test: HoldoutSize, total: int, noun: str) -> None:
    """Raise UserError if nothing would be left for training.

    Args:
        valid, test: sizes of the held-out splits
        total: number of records or characters
        noun: what is counted, for the error message
    """
    held = (valid.count or 0) + (test.count or 0)
    if held and held >= total:
        raise UserError(
            f"--valid and --test: expected fewer than {total} {noun}, got {held}; none is left "
            "for training"
        )
    if (valid.fraction or 0) + (test.fraction or 0) >= 1:
        raise UserError(
            "--valid and --test: expected fractions with a sum below 1, got "
            f"{valid.fraction} and {test.fraction}; try 0.05 each"
        )


class HashSet64:
    """Set of 64-bit integers in a flat hash table, with at most 32 bytes per element.

    >>> seen = HashSet64()
    >>> seen.add(7), seen.add(7), seen.add(0), seen.add(0)
    (True, False, True, False)
    """

    def __init__(self) -> None:
        self.count = 0
        self.table = array("Q", bytes(8 * 1024))

    def __len__(self) -> int:
        return self.count

    def add(self, key: int) -> bool:
        """Add an integer; return whether it was new."""
        key = key or 1  # 0 marks a free slot, so 0 and 1 count as equal
        if 2 * self.count >= len(self.table):
            self._grow()
        slot = self._find_slot(key)
        if self.table[slot]:
            return False
        self.table[slot] = key
        self.count += 1
        return True

    def __contains__(self, key: int) -> bool:
        return bool(self.table[self._find_slot(key or 1)])

    def _find_slot(self, key: int) -> int:
        table, mask = self.table, len(self.table) - 1
        slot = key & mask
        while table[slot] and table[slot] != key:  # linear probing
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        old = self.table
        self.table = array("Q", bytes(16 * len(old)))
        for key in old:
            if key:
                self.table[self._find_slot(key)] = key
