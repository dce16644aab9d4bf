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
from addnorm.data.corpus import Corpus, parse_records
from addnorm.data.tokenizer import END, PAD, START, Tokenizer
from addnorm.kernels.cross_entropy import IGNORE_INDEX

POOL_BYTES = 8 << 20
"""Bytes of a corpus that are in memory at once; sentences are shuffled inside a pool, and pools."""
TEXTS_PER_CHUNK = 1000
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
    def inputs_and_targets(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        return self.inputs, self.targets

    def shard(self, rank: int, world_size: int) -> "Batch":
        """The share of one process; `count` stays that of the whole.

        A process for which there is no row gets one that asks for nothing, so that all do the same
        number of steps.
        """
        if world_size == 1:
            return self
        inputs, targets = self.inputs[rank::world_size], self.targets[rank::world_size]
        if not len(inputs):
            inputs, targets = self.inputs[:1], torch.full_like(self.targets[:1], IGNORE_INDEX)
        return replace(self, inputs=inputs, targets=targets)

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        return replace(self, inputs=self.inputs.to(device), targets=self.targets.to(device))


@dataclass(frozen=True)
class DataPosition:
    """Where a stream of batches goes on."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


class BatchIterator:
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
        self.max_tokens, self.max_length, self.seed, self.order = tokens, longest, seed, order
        self.path = corpus.path(split)
        self.skipped: Counter[str] = Counter()
        """What was not used as it stands, by reason, in the pools read so far."""
        self._counted_pools: set[int] = set()
        self._cached_pool = lru_cache(1)(
            self._read_pool
        )  # a small corpus is one pool: it is encoded once

    def stream(self, position: DataPosition | None = None) -> Iterator[tuple[Batch, DataPosition]]:
        """Batches without end from a position on, each with the position after it."""
        position = position or DataPosition()
        while True:
            seen = False
            for batch, after in self.epoch(position):
                seen = True
                yield batch, after
            if not seen and position == DataPosition(position.epoch):
                raise UserError(
                    f"nothing in {self.path} can be used: {self.describe_skipped() or 'it is empty'}; wanted "
                    f"sentences of at most {self.max_length} tokens"
                )
            position = DataPosition(position.epoch + 1)

    def epoch(self, position: DataPosition | None = None) -> Iterator[tuple[Batch, DataPosition]]:
        """The batches of one pass from a position on, each with the position after it."""
        position = position or DataPosition()
        order = list(range(len(self.byte_ranges)))
        if self.seed is not None:
            random.Random(derive_seed(self.seed, "pools", position.epoch)).shuffle(order)
        for number in range(position.pool, len(order)):
            begin = position.batch if number == position.pool else 0
            rows = self._cached_pool(order[number])
            groups = self._group_rows(rows, position.epoch, order[number])
            for index in range(begin, len(groups)):
                batch = _pad_batch([rows[row] for row in groups[index]], self.corpus.task)
                yield batch, DataPosition(position.epoch, number, index + 1)

    def describe_skipped(self) -> str:
        """What was left out or cut, in words; empty if nothing was."""
        return ", ".join(f"{count} {reason}" for reason, count in self.skipped.items())

    @cached_property
    def byte_ranges(self) -> list[tuple[int, int]]:
        """First and last byte of each pool; a record is never cut."""
        size = self.path.stat().st_size
        starts = [0]
        with self.path.open("rb") as file:
            for mark in range(POOL_BYTES, size, POOL_BYTES):
                file.seek(mark)
                file.readline()
                if starts[-1] < file.tell() < size:
                    starts.append(file.tell())
        return list(zip(starts, [*starts[1:], size], strict=True)) if size else []

    def _read_pool(self, pool: int) -> list[Row]:
        start, end = self.byte_ranges[pool]
        with self.path.open("rb") as file:
            file.seek(start)
            lines = file.read(end - start).splitlines()
        found: Counter[str] = Counter()
        rows = list(
            self._encode_rows(parse_records(lines, self.path, self.corpus.task, start=start), found)
        )
        if pool not in self._counted_pools:
            self._counted_pools.add(pool)
            self.skipped += found
        return rows

    def _encode_rows(
        self, records: Iterator[dict[str, str]], skipped: Counter[str]
    ) -> Iterator[Row]:
        if self.corpus.task == "lm":
            yield from self._iter_blocks(records)
            return
        labels = {label: number for number, label in enumerate(self.corpus.labels)}
        while chunk := list(islice(records, TEXTS_PER_CHUNK)):
            if self.corpus.task == "translate":
                sources = self._encode_texts(record["source"] for record in chunk)
                targets = self._encode_texts(record["target"] for record in chunk)
                for source, target in zip(sources, targets, strict=True):
                    if not len(source) or not len(target):
                        skipped["with an empty side left out"] += 1
                    elif max(len(source) + 1, len(target) + 2) > self.max_length:
                        skipped[f"longer than {self.max_length} tokens left out"] += 1
                    else:
                        yield (
                            _concat_ids(source, suffix=END),
                            _concat_ids(START, target, suffix=END),
                        )
            else:
                texts = self._encode_texts(record["text"] for record in chunk)
                for text, record in zip(texts, chunk, strict=True):
                    if len(text) + 1 > self.max_length:
                        skipped[f"cut to {self.max_length} tokens"] += 1
                    if record["label"] not in labels:
                        raise UserError(
                            f"{self.path} has the label {record['label']!r}, which is not in "
                            "corpus.json; make the corpus again"
                        )
                    label = np.array([labels[record["label"]]], np.int32)
                    yield _concat_ids(START, text)[: self.max_length], label

    def _iter_blocks(self, records: Iterator[dict[str, str]]) -> Iterator[Row]:
        """Running text in blocks: every document begins with START, and nothing is left out."""
        rest = np.empty(0, np.int32)
        while chunk := list(islice(records, TEXTS_PER_CHUNK)):
            documents = [
                _concat_ids(START, ids)
                for ids in self._encode_texts(each["text"] for each in chunk)
            ]
            rest = np.concatenate((rest, *documents))
            whole = (len(rest) - 1) // self.max_length * self.max_length
            for start in range(0, whole, self.max_length):
                block = rest[start : start + self.max_length + 1]
                yield block[:-1], block[1:]
            rest = rest[whole:]
        if len(rest) > 1:
            yield rest[:-1], rest[1:]

    def _encode_texts(self, texts: Iterable[str]) -> list[Ids]:
        return [np.array(ids, np.int32) for ids in self.tokenizer.encode(list(texts))]

    def _group_rows(self, rows: list[Row], epoch: int, pool: int) -> list[list[int]]:
        """Numbers of the rows of each batch, as many as there is room for."""
        order = list(range(len(rows)))
        chance = random.Random(derive_seed(self.seed or 0, "rows", epoch, pool))
        if self.seed is not None:
            chance.shuffle(order)  # rows of one length meet others in every epoch
        if self.order == "random":
            return _fill_groups(order, rows, self.max_tokens)
        order.sort(key=lambda row: (_row_length(rows[row]), len(rows[row][0])))
        groups: list[list[int]] = []
        for row in order:
            if not groups or (len(groups[-1]) + 1) * _row_length(rows[row]) > self.max_tokens:
                groups.append([])
            groups[-1].append(row)
        if self.seed is not None:
            chance.shuffle(groups)
        return groups


def _fill_groups(order: list[int], rows: list[Row], tokens: int) -> list[list[int]]:
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


def _row_length(row: Row) -> int:
    return max(map(len, row))


def _concat_ids(*parts: "int | Ids", suffix: int | None = None) -> Ids:
    ends = () if suffix is None else (suffix,)
    return np.concatenate([np.atleast_1d(np.asarray(part, np.int32)) for part in (*parts, *ends)])


def _pad_batch(rows: list[Row], task: str) -> Batch:
    """The one place where rows become a batch; packed batches without padding would come here."""
    inputs = _pad_sequences([row[0] for row in rows], PAD)
    targets = _pad_sequences([row[1] for row in rows], IGNORE_INDEX)
    given = len(rows) if task == "translate" else 0  # START is not predicted
    count = int((targets != IGNORE_INDEX).sum()) - given
    read = int((inputs != PAD).sum()) if task == "classify" else count
    return Batch(inputs, targets, count, read)


def _pad_sequences(sequences: list[Ids], fill: int) -> Tensor:
    wide = np.full((len(sequences), max(map(len, sequences))), fill, np.int64)
    for number, ids in enumerate(sequences):
        wide[number, : len(ids)] = ids
    return torch.from_numpy(wide)
