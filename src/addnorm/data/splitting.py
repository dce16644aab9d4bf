"""Splitting by source sentence: a hash decides, so that one sentence is never on two sides."""

import hashlib
import heapq
import unicodedata
from array import array
from dataclasses import dataclass

from addnorm.core.errors import UserError

HASH_RANGE = 2**64
DEFAULT_HOLDOUT_DIVISOR, MAX_DEFAULT_HOLDOUT = (
    20,
    2000,
)  # unless told otherwise: one record in twenty, at most so many


def split_key(text: str, seed: int = 0) -> int:
    """64 bits of a sentence and a seed; case, form and white space of the sentence do not count.

    >>> split_key("Hello  World ") == split_key("hello world"), split_key("a", 0) == split_key("a", 1)
    (True, False)
    """
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return hash_text(plain, seed)


def hash_text(text: str, seed: int = 0) -> int:
    """64 bits of a text as it is."""
    data = text.encode("utf-8", errors="surrogatepass")
    salt = (seed % HASH_RANGE).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, salt=salt).digest(), "big")


@dataclass(frozen=True)
class HoldoutSize:
    """How much to hold out: a share of the sentences, a number of records, or what is usual."""

    fraction: float | None = None
    count: int | None = None

    @classmethod
    def parse(cls, text: str | None, name: str) -> "HoldoutSize":
        """`0.1` is a share, `500` a number, `0` nothing, None the usual."""
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
                f"{name} is {text!r}; wanted a number of records such as 500, a share of them "
                f"such as 0.05, or 0 for none"
            )
        return cls(count=int(value))

    def num_hashes(self, total: int) -> int:
        """How many of the smallest hashes it takes to know the edge; 0 for a share."""
        if self.fraction is not None:
            return 0
        if self.count is not None:
            return self.count
        return (
            min(MAX_DEFAULT_HOLDOUT, max(1, total // DEFAULT_HOLDOUT_DIVISOR)) if total >= 3 else 0
        )


class Splitter:
    """Decides after a first look at all hashes; holds no more of them than are held out.

    Sentences whose hash lies in [0, test) are test, in [test, valid) valid, the others train. With
    numbers the edges are set so that so many records are held out, or a few more, because records
    with the same sentence stay together.
    """

    def __init__(self, *, valid: HoldoutSize, test: HoldoutSize) -> None:
        self.valid, self.test = valid, test
        self.total = 0
        self.test_threshold = int(
            (test.fraction or 0) * HASH_RANGE
        )  # hashes below are test for certain
        numbers = [size for size in (valid, test) if size.fraction is None]
        self.capacity = sum(
            MAX_DEFAULT_HOLDOUT if size.count is None else size.count for size in numbers
        )
        self.heap: list[int] = []  # the smallest hashes from `first` on, negated
        self.hash_counts: dict[int, int] = {}  # how often each of them came

    def observe(self, key: int) -> None:
        """Count a record in."""
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
        """Where test ends and where valid ends."""
        self._check_sizes()
        smallest = sorted(self.hash_counts)
        test = self._find_edge(
            smallest, self.test.num_hashes(self.total), start=self.test_threshold
        )
        if self.valid.fraction is not None:
            return test, min(HASH_RANGE, test + int(self.valid.fraction * HASH_RANGE))
        left = [key for key in smallest if key >= test]
        return test, self._find_edge(left, self.valid.num_hashes(self.total), start=test)

    def _find_edge(self, keys: list[int], count: int, *, start: int) -> int:
        """Behind the sentences that make up so many records."""
        for key in keys:
            if count <= 0:
                break
            count -= self.hash_counts[key]
            start = key + 1
        return start

    def _check_sizes(self) -> None:
        held = (self.valid.count or 0) + (self.test.count or 0)
        if held and held >= self.total:
            raise UserError(
                f"{held} records to hold out of {self.total}: none is left for training; "
                f"try smaller --valid and --test"
            )
        if (self.valid.fraction or 0) + (self.test.fraction or 0) >= 1:
            raise UserError(
                f"--valid {self.valid.fraction} and --test {self.test.fraction} are all there is; wanted "
                f"shares whose sum is below 1; try 0.05 each"
            )


class HashSet64:
    """A set of 64-bit numbers in a flat table: at most 32 bytes a number.

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
        """True if the number is new."""
        key = key or 1  # zero marks a free place; two numbers in 2 ** 64 share one
        if 2 * self.count >= len(self.table):
            self._grow()
        place = self._find_slot(key)
        if self.table[place]:
            return False
        self.table[place] = key
        self.count += 1
        return True

    def __contains__(self, key: int) -> bool:
        return bool(self.table[self._find_slot(key or 1)])

    def _find_slot(self, key: int) -> int:
        table, mask = self.table, len(self.table) - 1
        place = key & mask
        while table[place] and table[place] != key:
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        old = self.table
        self.table = array("Q", bytes(16 * len(old)))
        for key in old:
            if key:
                self.table[self._find_slot(key)] = key
