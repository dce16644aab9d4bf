"""Splitting by source sentence: a hash decides, so that one sentence is never on two sides."""

import hashlib
import heapq
import unicodedata
from array import array
from dataclasses import dataclass

from addnorm.core.errors import UserError

TOP = 2**64
SHARE, MOST = 20, 2000  # unless told otherwise: one record in twenty, at most so many


def key_of(text: str, seed: int = 0) -> int:
    """64 bits of a sentence and a seed; case, form and white space of the sentence do not count.

    >>> key_of("Hello  World ") == key_of("hello world"), key_of("a", 0) == key_of("a", 1)
    (True, False)
    """
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return digest(plain, seed)


def digest(text: str, seed: int = 0) -> int:
    """64 bits of a text as it is."""
    data = text.encode("utf-8", errors="surrogatepass")
    salt = (seed % TOP).to_bytes(8, "little")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, salt=salt).digest(), "big")


@dataclass(frozen=True)
class Size:
    """How much to hold out: a share of the sentences, a number of records, or what is usual."""

    share: float | None = None
    number: int | None = None

    @classmethod
    def parse(cls, text: str | None, name: str) -> "Size":
        """`0.1` is a share, `500` a number, `0` nothing, None the usual."""
        if text is None:
            return cls()
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if 0 < value < 1:
            return cls(share=value)
        if not (value >= 0 and value.is_integer() and value < TOP):
            raise UserError(
                f"{name} is {text!r}; wanted a number of records such as 500, a share of them "
                f"such as 0.05, or 0 for none"
            )
        return cls(number=int(value))

    def wanted(self, total: int) -> int:
        """How many of the smallest hashes it takes to know the edge; 0 for a share."""
        if self.share is not None:
            return 0
        if self.number is not None:
            return self.number
        return min(MOST, max(1, total // SHARE)) if total >= 3 else 0


class Splitter:
    """Decides after a first look at all hashes; holds no more of them than are held out.

    Sentences whose hash lies in [0, test) are test, in [test, valid) valid, the others train. With
    numbers the edges are set so that so many records are held out, or a few more, because records
    with the same sentence stay together.
    """

    def __init__(self, *, valid: Size, test: Size) -> None:
        self.valid, self.test = valid, test
        self.total = 0
        self.first = int((test.share or 0) * TOP)  # hashes below are test for certain
        numbers = [size for size in (valid, test) if size.share is None]
        self.room = sum(MOST if size.number is None else size.number for size in numbers)
        self.heap: list[int] = []  # the smallest hashes from `first` on, negated
        self.times: dict[int, int] = {}  # how often each of them came

    def look(self, key: int) -> None:
        """Count a record in."""
        self.total += 1
        if key < self.first or not self.room:
            return
        if key in self.times:
            self.times[key] += 1
        elif len(self.heap) < self.room:
            heapq.heappush(self.heap, -key)
            self.times[key] = 1
        elif -key > self.heap[0]:
            del self.times[-heapq.heapreplace(self.heap, -key)]
            self.times[key] = 1

    def edges(self) -> tuple[int, int]:
        """Where test ends and where valid ends."""
        self._check()
        smallest = sorted(self.times)
        test = self._edge(smallest, self.test.wanted(self.total), start=self.first)
        if self.valid.share is not None:
            return test, min(TOP, test + int(self.valid.share * TOP))
        left = [key for key in smallest if key >= test]
        return test, self._edge(left, self.valid.wanted(self.total), start=test)

    def _edge(self, keys: list[int], number: int, *, start: int) -> int:
        """Behind the sentences that make up so many records."""
        for key in keys:
            if number <= 0:
                break
            number -= self.times[key]
            start = key + 1
        return start

    def _check(self) -> None:
        held = (self.valid.number or 0) + (self.test.number or 0)
        if held and held >= self.total:
            raise UserError(
                f"{held} records to hold out of {self.total}: none is left for training; "
                f"try smaller --valid and --test"
            )
        if (self.valid.share or 0) + (self.test.share or 0) >= 1:
            raise UserError(
                f"--valid {self.valid.share} and --test {self.test.share} are all there is; wanted "
                f"shares whose sum is below 1; try 0.05 each"
            )


class Seen:
    """A set of 64-bit numbers in a flat table: at most 32 bytes a number.

    >>> seen = Seen()
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
        place = self._place(key)
        if self.table[place]:
            return False
        self.table[place] = key
        self.count += 1
        return True

    def __contains__(self, key: int) -> bool:
        return bool(self.table[self._place(key or 1)])

    def _place(self, key: int) -> int:
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
                self.table[self._place(key)] = key
