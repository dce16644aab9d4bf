"""Batches bounded by a number of tokens, in an order that a seed fixes.

A split is read in pools of about 8 MB, so a corpus may be larger than memory. A pool is a part of
one file; those of all shards of a split are shuffled together:

    records of a pool -> rows (token ids) -> groups of rows -> padded batches

`RowFormat` defines the first and the last arrow and is implemented by each task; the iterator
defines the order. The order is a pure function of seed, epoch and pool, so a `DataPosition` is all
that a checkpoint needs to resume.
"""

import random
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.data.corpus import CONTINUES, Corpus, Record, parse_records
from addnorm.data.tokenizer import PAD, Tokenizer
from addnorm.kernels.cross_entropy import IGNORE_INDEX
from addnorm.kernels.host_copies import to_device

POOL_BYTES = 8 << 20
"""Bytes of a corpus in memory at a time; pools are shuffled, and so are the rows of each pool."""
TEXTS_PER_CHUNK = 1000
"""Texts that the tokenizer encodes per call."""

Order = Literal["length", "random"]
Ids = np.ndarray[Any, np.dtype[np.int32]]
Row = tuple[Ids, Ids]
"""Token ids that the model reads, and those that it predicts."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class Batch:
    """Rows of token ids, padded to the longest row.

    inputs: (B, S), padded with PAD
    targets: (B, L), padded with IGNORE_INDEX because 0 may be a label
    count: number of predictions in the whole batch, over all processes
    tokens: tokens that throughput counts
    """

    inputs: Tensor
    targets: Tensor
    count: int
    tokens: int

    @property
    def inputs_and_targets(self) -> tuple[Tensor, Tensor]:
        """The two tensors, as arguments of an objective."""
        return self.inputs, self.targets

    def shard(self, rank: int, world_size: int) -> "Batch":
        """Return the rows of one process; `count` stays that of the whole batch.

        A process without rows gets one row without targets, so that all processes take the same
        number of steps.
        """
        if world_size == 1:
            return self
        inputs, targets = self.inputs[rank::world_size], self.targets[rank::world_size]
        if not len(inputs):
            inputs, targets = self.inputs[:1], torch.full_like(self.targets[:1], IGNORE_INDEX)
        return replace(self, inputs=inputs, targets=targets)

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; the host's copies are remembered."""
        return replace(
            self, inputs=to_device(self.inputs, device), targets=to_device(self.targets, device)
        )


@dataclass(frozen=True)
class DataPosition:
    """Position in a stream of batches, from which the stream can be resumed."""

    epoch: int = 0
    pool: int = 0
    batch: int = 0


class RowKey(NamedTuple):
    """Identity of a row in an epoch, from which its random draws derive."""

    seed: int
    epoch: int
    pool: int
    row: int


@dataclass(frozen=True)
class RowContext:
    """Inputs of `RowFormat.encode_rows` beside the records."""

    corpus: Corpus
    tokenizer: Tokenizer
    path: Path
    """File of the split, for error messages."""
    max_length: int
    skipped: Counter[str]
    """Records that were dropped or truncated, by reason; filled by the format."""

    def encode(self, texts: Iterable[str]) -> list[Ids]:
        """Return the token ids of each text, without special tokens."""
        return [np.array(ids, np.int32) for ids in self.tokenizer.encode(list(texts))]

    def encode_pieces(self, records: Sequence[Record], column: str = "text") -> list[Ids]:
        """Return the token ids of each record, which may continue the document before it."""
        groups: tuple[list[int], list[int]] = ([], [])
        for index, record in enumerate(records):
            groups[CONTINUES in record].append(index)
        encoders = self.tokenizer.encode, self.tokenizer.encode_continuations
        pieces: dict[int, Ids] = {}
        for group, encode in zip(groups, encoders, strict=True):
            ids = encode([records[index][column] for index in group]) if group else []
            pieces |= zip(group, (np.array(each, np.int32) for each in ids), strict=True)
        return [pieces[index] for index in range(len(records))]


class RowFormat(ABC):
    """Conversion of records into rows, and of rows into targets."""

    counts_inputs: ClassVar[bool] = False
    """Whether throughput counts the tokens read instead of the tokens predicted."""

    @abstractmethod
    def encode_rows(self, records: Iterator[Record], context: RowContext) -> Iterator[Row]:
        """Yield the rows of a pool of records; they are cached across epochs."""

    def transform_row(self, row: Row, key: RowKey, tokenizer: Tokenizer) -> Row:
        """Return the row as it enters a batch, with random draws that depend on `key` only."""
        return row

    def select_targets(self, targets: Tensor) -> Tensor:
        """Return the targets of the logits: `Batch.targets` without given tokens.

        Args:
            targets: (B, L) as in `Batch`
        """
        return targets


class BatchIterator:
    """Batches of one split of a corpus, each with at most `batch_tokens` tokens on either side.

    Args:
        corpus: the corpus
        tokenizer: its tokenizer
        row_format: the task, which makes rows of records
        split: train, valid or test
        batch_tokens: upper bound of the tokens of a batch, for inputs and for targets
        max_length: upper bound of the tokens of a row
        seed: seed of the order and of row transforms; None gives one fixed order, for evaluation
        order: "length" groups rows of similar length and counts padding; "random" groups any rows
            and does not count padding, for models that skip it
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: Tokenizer,
        row_format: RowFormat,
        *,
        split: str = "train",
        batch_tokens: int,
        max_length: int,
        seed: int | None = None,
        order: Order = "length",
    ) -> None:
        if max_length > batch_tokens:
            raise UserError(
                f"batch_tokens: expected at least max_length={max_length}, got {batch_tokens}; a "
                "batch must hold the longest sentence"
            )
        self.corpus, self.tokenizer, self.row_format = corpus, tokenizer, row_format
        self.split, self.paths = split, corpus.paths(split)
        is_sharded = len(self.paths) > 1
        self.path = corpus.folder / f"{split}-*.jsonl" if is_sharded else self.paths[0]
        """The file or the pattern of the shards, for messages."""
        self.batch_tokens, self.max_length = batch_tokens, max_length
        self.seed, self.order = seed, order
        self.skipped: Counter[str] = Counter()
        """Records dropped or truncated in the pools read so far, by reason."""
        self._counted_pools: set[int] = set()
        self._cached_pool = lru_cache(1)(self._read_pool)  # a small corpus is encoded once

    def stream(self, position: DataPosition | None = None) -> Iterator[tuple[Batch, DataPosition]]:
        """Yield batches without end from a position, each with the position after it."""
        position = position or DataPosition()
        while True:
            is_empty = True
            for batch, after in self.epoch(position):
                is_empty = False
                yield batch, after
            if is_empty and position == DataPosition(position.epoch):
                raise UserError(
                    f"{self.path} has no usable record: "
                    f"{self.describe_skipped() or 'it is empty'}; expected sentences of at most "
                    f"{self.max_length} tokens"
                )
            position = DataPosition(position.epoch + 1)

    def epoch(self, position: DataPosition | None = None) -> Iterator[tuple[Batch, DataPosition]]:
        """Yield the batches of one epoch from a position, each with the position after it."""
        position = position or DataPosition()
        order = list(range(len(self.pools)))
        if self.seed is not None:
            random.Random(derive_seed(self.seed, "pools", position.epoch)).shuffle(order)
        for number in range(position.pool, len(order)):
            pool = order[number]
            first = position.batch if number == position.pool else 0
            rows = self._cached_pool(pool)
            groups = self._group_rows(rows, position.epoch, pool)
            for index in range(first, len(groups)):
                batch = self._make_batch(rows, groups[index], position.epoch, pool)
                yield batch, DataPosition(position.epoch, number, index + 1)

    def describe_skipped(self) -> str:
        """Return the counts of dropped and truncated records as text; empty if there are none."""
        return ", ".join(f"{count} {reason}" for reason, count in self.skipped.items())

    @cached_property
    def pools(self) -> list[tuple[Path, int, int]]:
        """File, start and end offset of each pool."""
        return [(path, start, end) for path in self.paths for start, end in _find_byte_ranges(path)]

    def _read_pool(self, pool: int) -> list[Row]:
        path, start, end = self.pools[pool]
        with path.open("rb") as file:
            file.seek(start)
            lines = file.read(end - start).splitlines()
        skipped: Counter[str] = Counter()
        context = RowContext(self.corpus, self.tokenizer, path, self.max_length, skipped)
        records = parse_records(lines, path, self.corpus.columns, start=start)
        rows = list(self.row_format.encode_rows(records, context))
        if pool not in self._counted_pools:
            self._counted_pools.add(pool)
            self.skipped += skipped
        return rows

    def _group_rows(self, rows: list[Row], epoch: int, pool: int) -> list[list[int]]:
        """Return the row indices of each batch."""
        order = list(range(len(rows)))
        rng = random.Random(derive_seed(self.seed or 0, "rows", epoch, pool))
        if self.seed is not None:
            rng.shuffle(order)  # rows of equal length meet different rows in every epoch
        if self.order == "random":
            return _fill_groups(order, rows, self.batch_tokens)
        order.sort(key=lambda row: (_row_length(rows[row]), len(rows[row][0])))
        groups: list[list[int]] = []
        for row in order:
            if not groups or (len(groups[-1]) + 1) * _row_length(rows[row]) > self.batch_tokens:
                groups.append([])
            groups[-1].append(row)
        if self.seed is not None:
            rng.shuffle(groups)
        return groups

    def _make_batch(self, rows: list[Row], group: list[int], epoch: int, pool: int) -> Batch:
        seed = self.seed or 0
        transformed = [
            self.row_format.transform_row(rows[row], RowKey(seed, epoch, pool, row), self.tokenizer)
            for row in group
        ]
        inputs = _pad_sequences([row[0] for row in transformed], PAD)
        targets = _pad_sequences([row[1] for row in transformed], IGNORE_INDEX)
        count = int((self.row_format.select_targets(targets) != IGNORE_INDEX).sum())
        tokens = int((inputs != PAD).sum()) if self.row_format.counts_inputs else count
        return Batch(inputs, targets, count, tokens)


def _find_byte_ranges(path: Path) -> list[tuple[int, int]]:
    """Return start and end offset of each pool of a file; pools begin and end at line breaks."""
    size = path.stat().st_size
    starts = [0]
    with path.open("rb") as file:
        for mark in range(POOL_BYTES, size, POOL_BYTES):
            file.seek(mark)
            file.readline()
            if starts[-1] < file.tell() < size:
                starts.append(file.tell())
    return list(zip(starts, [*starts[1:], size], strict=True)) if size else []


def iter_chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield lists of `size` items; the last one may be shorter."""
    if not 1 <= size <= sys.maxsize:
        raise UserError(f"chunk: expected a number of lines from 1, got {size}")
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


def concat_ids(*parts: int | Ids) -> Ids:
    """Return single token ids and arrays of token ids as one array."""
    return np.concatenate([np.atleast_1d(np.asarray(part, np.int32)) for part in parts])


def _fill_groups(order: list[int], rows: list[Row], batch_tokens: int) -> list[list[int]]:
    """Group rows in order; a row that would exceed `batch_tokens` on either side starts a group."""
    groups: list[list[int]] = [[]]
    sizes = 0, 0
    for row in order:
        added = len(rows[row][0]), len(rows[row][1])
        sizes = sizes[0] + added[0], sizes[1] + added[1]
        if max(sizes) > batch_tokens and groups[-1]:
            groups.append([])
            sizes = added
        groups[-1].append(row)
    return groups if order else []


def _row_length(row: Row) -> int:
    return max(map(len, row))


def _pad_sequences(sequences: list[Ids], fill: int) -> Tensor:
    padded = np.full((len(sequences), max(map(len, sequences))), fill, np.int64)
    for number, ids in enumerate(sequences):
        padded[number, : len(ids)] = ids
    return torch.from_numpy(padded)
