"""Held-out inputs on which an exported model is compared with the original."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, SPECIALS, START
from addnorm.decode.engine import length_limits
from addnorm.decode.stepper import Sentence
from addnorm.exporters.source import ExportSource
from addnorm.models import Model
from addnorm.tasks.base import get_run_task
from addnorm.tasks.evaluation import make_split_batches

MAX_SEQUENCES = 64
"""Sequences of a proof."""
MAX_NEW_TOKENS = 32
"""New tokens of a decoded sentence."""
PROMPT_TOKENS = 8
"""Tokens of a prompt of a language model."""


@dataclass(frozen=True)
class ModelInputs:
    """Arguments of one call of a model."""

    args: tuple[Tensor, ...]
    kwargs: Mapping[str, Tensor | None] = field(default_factory=dict)

    @property
    def num_sequences(self) -> int:
        """Size of the batch."""
        return self.args[0].shape[0]

    def select_valid(self, outputs: Tensor) -> Tensor:
        """Return the outputs at valid tokens, (N, classes); padding has no defined output."""
        mask = self.kwargs.get("target_mask", self.kwargs.get("mask"))
        if mask is None or outputs.ndim < 3:
            return outputs
        return outputs[mask]


@dataclass(frozen=True)
class HeldOutInputs:
    """Batches to compare logits on, and sentences to decode."""

    description: str
    batches: tuple[ModelInputs, ...]
    sentences: tuple[Sentence, ...] = ()
    """Sources or prompts; empty for a model that generates nothing."""
    end: int = END
    """Token that ends a generated text."""

    @property
    def num_sequences(self) -> int:
        """Sequences in all batches."""
        return sum(batch.num_sequences for batch in self.batches)


def collect_inputs(source: ExportSource) -> HeldOutInputs:
    """Return held-out inputs: the validation data of the run, or random ones without any."""
    model, run = source.text_model, source.run
    if run is not None and Path(run.recipe.data).exists():
        try:
            return _from_corpus(source)
        except UserError:  # the corpus was changed or removed since the training
            pass
    return _random_inputs(model, end=START if run is not None and run.task == "lm" else END)


def _from_corpus(source: ExportSource) -> HeldOutInputs:
    run, model = source.run, source.text_model
    assert run is not None
    task = get_run_task(run)
    corpus = task.open_corpus(run.recipe.data)
    split = next((name for name in ("valid", "test", "train") if corpus.counts.get(name)), None)
    if split is None:
        raise UserError(f"{corpus.folder} has no records")
    corpus.verify(split)
    batches: list[ModelInputs] = []
    rows: list[list[int]] = []
    for batch, _ in make_split_batches(run, task, corpus, split).epoch():
        args, kwargs = task.model_inputs(*batch.inputs_and_targets)
        batches.append(ModelInputs(args, kwargs))
        rows += [[token for token in row if token] for row in batch.inputs.tolist()]
        if len(rows) >= MAX_SEQUENCES:
            break
    if not batches:
        raise UserError(f"the {split!r} split of {corpus.folder} has no sequence that fits")
    description = f"{split} split of {run.recipe.data}"
    end = START if run.task == "lm" else END
    return HeldOutInputs(
        description, tuple(batches), tuple(_make_sentences(model, rows[:MAX_SEQUENCES])), end
    )


def _random_inputs(model: Model, *, end: int) -> HeldOutInputs:
    """Return random tokens, or pixels, with padding; sizes differ from each other and from 1."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    if config.image is not None:
        shape = (3, config.channels, config.image, config.image)
        dtype = next(model.parameters()).dtype
        pixels = torch.randn(shape, generator=generator).to(dtype)
        return HeldOutInputs("random pixels", (ModelInputs((pixels,)),))
    source_limit, target_limit = length_limits(model)
    source_length, target_length = min(11, source_limit or 11), min(7, target_limit or 7)
    source, source_mask = _random_tokens(
        config.source_vocab or config.vocab or 1, source_length, generator
    )
    if config.kind == "seq2seq":
        target, target_mask = _random_tokens(config.vocab or 1, target_length, generator)
        masks = {"source_mask": source_mask, "target_mask": target_mask}
        batches = (ModelInputs((source, target), masks),)
    elif config.kind == "prefix_lm":
        prefix = torch.tensor([1, 3, 0, 2, 1]).clamp(max=source_length)
        batches = (ModelInputs((source, prefix), {"mask": source_mask}),)
    else:
        batches = (ModelInputs((source,), {"mask": source_mask}),)
    rows = [row[mask].tolist() for row, mask in zip(source, source_mask, strict=True)]
    return HeldOutInputs("random tokens", batches, tuple(_make_sentences(model, rows)), end)


def _random_tokens(vocab: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return 5 right-padded sequences, (5, length), without special tokens if there are others."""
    low = min(len(SPECIALS), vocab - 1)
    ids = torch.randint(low, vocab, (5, length), generator=generator)
    lengths = torch.tensor([length, max(1, length - 4), max(1, length - 2), length, 1])
    return ids, torch.arange(length) < lengths[:, None]


def _make_sentences(model: Model, rows: Sequence[Sequence[int]]) -> Iterator[Sentence]:
    """Yield the sentences to decode: sources to translate, or prompts to continue."""
    config = model.config
    if config.kind not in ("seq2seq", "lm") or (config.vocab or 0) <= len(SPECIALS):
        return
    _, limit = length_limits(model)
    for number, row in enumerate(rows):
        if config.kind == "seq2seq":
            new = min(2 * len(row) + 10, MAX_NEW_TOKENS, limit or MAX_NEW_TOKENS)
            yield Sentence((START,), new, tuple(row), number)
        else:
            prompt = tuple(islice(row, min(PROMPT_TOKENS, (limit or PROMPT_TOKENS))))
            new = min(MAX_NEW_TOKENS, MAX_NEW_TOKENS if limit is None else limit - len(prompt) + 1)
            yield Sentence(prompt, max(1, new), number=number)
