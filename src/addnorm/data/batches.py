"""Batches that hold a number of tokens, in an order that a seed fixes and a position continues."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.data.corpus import Corpus, parsed
from addnorm.data.tokenizer import END, PAD, START, Tokenizer
from addnorm.kernels.cross_entropy import IGNORE

POOL = 8 << 20
"""Bytes of a corpus that are in memory at once; sentences are shuffled inside a pool, and pools."""
CHUNK = 1000
"""Texts that are encoded together."""

Order = Literal["length", "random"]
Ids = np.ndarray[Any, np.dtype[np.int32]]
Row = tuple[Ids, Ids]
"""What the model reads, and what it is to predict."""


@dataclass(frozen=True)
class Batch:
    """Rows of token numbers, padded to the longest.

    inputs: (B, S). translate: the source and END; lm: a block of text; classify: START and the text
    targets: (B, L). translate: START, the target, END; lm: the block one token later; classify:
        the number of the label, (B, 1). Padded with IGNORE, since 0 is a label
    count: how much there is to predict in it
    tokens: as many, or what there is to read where a label is predicted; what speed is told in
    """

    inputs: Tensor
    targets: Tensor
    count: int
    tokens: int

    @property
    def sides(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        return self.inputs, self.targets

    def part(self, rank: int, world: int) -> "Batch":
        """The share of one process; `count` stays that of the whole.

        A process for which there is no row gets one that asks for nothing, so that all do the same
        number of steps.
        """
        if world == 1:
            return self
        inputs, targets = self.inputs[rank::world], self.targets[rank::world]
        if not len(inputs):
            inputs, targets = self.inputs[:1], torch.full_like(self.targets[:1], IGNORE)
        return replace(self, inputs=inputs, targets=targets)

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


@dataclass(frozen=True)
class Position:
    """Where a stream of batches goes on."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


class Batches:
    """One split of a corpus as batches of at most `tokens` tokens a side.

    Only a pool of the corpus is in memory at a time. The order is a pure function of seed, epoch
    and pool. order "length": lengths are sorted so that little is padded, the tokens of a batch
    count its padding, and the batches are then shuffled. "random": any sentences meet, and padding
    does not count, for models that leave it out. Without a seed everything comes in one fixed
    order, for evaluation.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        *,
        split: str = "train",
        tokens: int,
        longest: int,
        seed: int | None = None,
        order: Order = "length",
    ) -> None:
        if longest > tokens:
            raise UserError(
                f"a batch of {tokens} tokens cannot hold a sentence of {longest}; wanted "
                "batch_tokens of at least max_length"
            )
        self.corpus, self.tokenizer, self.split = corpus, tokenizer, split
        self.tokens, self.longest, self.seed, self.order = tokens, longest, seed, order
        self.path = corpus.path(split)
        self.left_out: Counter[str] = Counter()
        """What was not used as it stands, by reason, in the pools read so far."""
        self._counted: set[int] = set()
        self._pool = lru_cache(1)(self._read)  # a small corpus is one pool: it is encoded once

    def stream(self, position: Position | None = None) -> Iterator[tuple[Batch, Position]]:
        """Batches without end from a position on, each with the position after it."""
        position = position or Position()
        while True:
            seen = False
            for batch, after in self.epoch(position):
                seen = True
                yield batch, after
            if not seen and position == Position(position.epoch):
                raise UserError(
                    f"nothing in {self.path} can be used: {self.told() or 'it is empty'}; wanted "
                    f"sentences of at most {self.longest} tokens"
                )
            position = Position(position.epoch + 1)

    def epoch(self, position: Position | None = None) -> Iterator[tuple[Batch, Position]]:
        """The batches of one pass from a position on, each with the position after it."""
        position = position or Position()
        order = list(range(len(self.pools)))
        if self.seed is not None:
            random.Random(derive_seed(self.seed, "pools", position.epoch)).shuffle(order)
        for number in range(position.pool, len(order)):
            begin = position.batch if number == position.pool else 0
            rows = self._pool(order[number])
            groups = self._groups(rows, position.epoch, order[number])
            for index in range(begin, len(groups)):
                batch = _padded([rows[row] for row in groups[index]], self.corpus.task)
                yield batch, Position(position.epoch, number, index + 1)

    def told(self) -> str:
        """What was left out or cut, in words; empty if nothing was."""
        return ", ".join(f"{count} {reason}" for reason, count in self.left_out.items())

    @cached_property
    def pools(self) -> list[tuple[int, int]]:
        """First and last byte of each pool; a record is never cut."""
        size = self.path.stat().st_size
        starts = [0]
        with self.path.open("rb") as file:
            for mark in range(POOL, size, POOL):
                file.seek(mark)
                file.readline()
                if starts[-1] < file.tell() < size:
                    starts.append(file.tell())
        return list(zip(starts, [*starts[1:], size], strict=True)) if size else []

    def _read(self, pool: int) -> list[Row]:
        start, end = self.pools[pool]
        with self.path.open("rb") as file:
            file.seek(start)
            lines = file.read(end - start).splitlines()
        found: Counter[str] = Counter()
        rows = list(self._rows(parsed(lines, self.path, self.corpus.task, start=start), found))
        if pool not in self._counted:
            self._counted.add(pool)
            self.left_out += found
        return rows

    def _rows(self, records: Iterator[dict[str, str]], found: Counter[str]) -> Iterator[Row]:
        if self.corpus.task == "lm":
            yield from self._blocks(records)
            return
        labels = {label: number for number, label in enumerate(self.corpus.labels)}
        while chunk := list(islice(records, CHUNK)):
            if self.corpus.task == "translate":
                sources = self._encoded(record["source"] for record in chunk)
                targets = self._encoded(record["target"] for record in chunk)
                for source, target in zip(sources, targets, strict=True):
                    if not len(source) or not len(target):
                        found["with an empty side left out"] += 1
                    elif max(len(source) + 1, len(target) + 2) > self.longest:
                        found[f"longer than {self.longest} tokens left out"] += 1
                    else:
                        yield _with(source, after=END), _with(START, target, after=END)
            else:
                texts = self._encoded(record["text"] for record in chunk)
                for text, record in zip(texts, chunk, strict=True):
                    if len(text) + 1 > self.longest:
                        found[f"cut to {self.longest} tokens"] += 1
                    if record["label"] not in labels:
                        raise UserError(
                            f"{self.path} has the label {record['label']!r}, which is not in "
                            "corpus.json; make the corpus again"
                        )
                    label = np.array([labels[record["label"]]], np.int32)
                    yield _with(START, text)[: self.longest], label

    def _blocks(self, records: Iterator[dict[str, str]]) -> Iterator[Row]:
        """Running text in blocks: every document begins with START, and nothing is left out."""
        rest = np.empty(0, np.int32)
        while chunk := list(islice(records, CHUNK)):
            documents = [_with(START, ids) for ids in self._encoded(each["text"] for each in chunk)]
            rest = np.concatenate((rest, *documents))
            whole = (len(rest) - 1) // self.longest * self.longest
            for start in range(0, whole, self.longest):
                block = rest[start : start + self.longest + 1]
                yield block[:-1], block[1:]
            rest = rest[whole:]
        if len(rest) > 1:
            yield rest[:-1], rest[1:]

    def _encoded(self, texts: Iterable[str]) -> list[Ids]:
        return [np.array(ids, np.int32) for ids in self.tokenizer.encode(list(texts))]

    def _groups(self, rows: list[Row], epoch: int, pool: int) -> list[list[int]]:
        """Numbers of the rows of each batch, as many as there is room for."""
        order = list(range(len(rows)))
        chance = random.Random(derive_seed(self.seed or 0, "rows", epoch, pool))
        if self.seed is not None:
            chance.shuffle(order)  # rows of one length meet others in every epoch
        if self.order == "random":
            return _filled(order, rows, self.tokens)
        order.sort(key=lambda row: (_size(rows[row]), len(rows[row][0])))
        groups: list[list[int]] = []
        for row in order:
            if not groups or (len(groups[-1]) + 1) * _size(rows[row]) > self.tokens:
                groups.append([])
            groups[-1].append(row)
        if self.seed is not None:
            chance.shuffle(groups)
        return groups


def _filled(order: list[int], rows: list[Row], tokens: int) -> list[list[int]]:
    """Rows as they come, until one would bring either side above `tokens`."""
    groups: list[list[int]] = [[]]
    sizes = 0, 0
    for row in order:
        added = len(rows[row][0]), len(rows[row][1])
        sizes = sizes[0] + added[0], sizes[1] + added[1]
        if max(sizes) > tokens and groups[-1]:
            groups.append([])
            sizes = added
        groups[-1].append(row)
    return groups if order else []


def _size(row: Row) -> int:
    return max(map(len, row))


def _with(*parts: "int | Ids", after: int | None = None) -> Ids:
    ends = () if after is None else (after,)
    return np.concatenate([np.atleast_1d(np.asarray(part, np.int32)) for part in (*parts, *ends)])


def _padded(rows: list[Row], task: str) -> Batch:
    """The one place where rows become a batch; packed batches without padding would come here."""
    inputs = _stacked([row[0] for row in rows], PAD)
    targets = _stacked([row[1] for row in rows], IGNORE)
    given = len(rows) if task == "translate" else 0  # START is not predicted
    count = int((targets != IGNORE).sum()) - given
    read = int((inputs != PAD).sum()) if task == "classify" else count
    return Batch(inputs, targets, count, read)


def _stacked(sides: list[Ids], fill: int) -> Tensor:
    wide = np.full((len(sides), max(map(len, sides))), fill, np.int64)
    for number, ids in enumerate(sides):
        wide[number, : len(ids)] = ids
    return torch.from_numpy(wide)
