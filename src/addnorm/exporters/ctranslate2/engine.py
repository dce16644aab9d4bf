"""Models that run in CTranslate2, with the decoding interface of `addnorm.decode`."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, PAD, SPECIALS, START
from addnorm.decode.batching import batch_sentences
from addnorm.decode.greedy import Hypothesis, make_hypothesis
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence
from addnorm.exporters.ctranslate2.library import import_ctranslate2
from addnorm.exporters.ctranslate2.write import HEAD_FILE

EXACT_PATIENCE = 4
"""Multiples of the beam that must have finished before a search stops, for `stop="exact"`."""


class CTranslate2Engine:
    """Model of a folder that `write_spec` wrote, opened by CTranslate2.

    Args:
        folder: the folder
        threads: number of threads; 0 lets the engine decide

    Attributes:
        kind: "seq2seq", "lm" or "encoder"
        max_length: number of stored positions; None if they have no limit
    """

    def __init__(self, folder: str | Path, *, threads: int = 0) -> None:
        library, self.folder = import_ctranslate2(), Path(folder)
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        self.kind: str = config["addnorm_kind"]
        self.max_length: int | None = config["max_length"]
        self._adds_source_end = bool(config.get("add_source_eos"))
        classes = {"seq2seq": "Translator", "lm": "Generator", "encoder": "Encoder"}
        make = getattr(library, classes[self.kind])
        self._model = make(str(self.folder), device="cpu", intra_threads=threads)
        self._source_names, self._names = self._read_names()
        self._numbers = {name: number for number, name in enumerate(self._names)}
        head = self.folder / HEAD_FILE
        self.head: dict[str, Tensor] = load_file(head) if head.is_file() else {}

    def _read_names(self) -> tuple[list[str], list[str]]:
        def read(name: str) -> list[str]:
            path = self.folder / f"{name}.json"
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []

        shared = read("shared_vocabulary") or read("vocabulary")
        return shared or read("source_vocabulary"), shared or read("target_vocabulary")

    def decode(
        self, sentences: Sequence[Sentence], options: DecodingOptions | None = None
    ) -> list[list[Hypothesis]]:
        """Decode sentences, in their order, with the tokens of `addnorm.decode.decode`.

        A score is the sum of log-probabilities among the tokens that may be generated.

        Raises:
            UserError: an option that the engine does not have, or a sentence that is too long
        """
        options = options or DecodingOptions()
        settings = self._search_settings(options)
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        left = list(range(len(sentences)))
        for sentence in sentences:
            self._check_length(sentence)
        if options.beam == 1 and not options.is_sampling:
            # A greedy search with a larger limit has the same tokens, so all limits share batches.
            for index, hypotheses in self._decode_together(sentences, left, options, settings):
                results[index] = hypotheses
            left = [
                index
                for index, sentence in enumerate(sentences)
                if results[index][0].length > sentence.limit
                or (not results[index][0].ended and results[index][0].length < sentence.limit)
            ]
        for group in self._group(sentences, left):
            for index, hypotheses in self._decode_together(sentences, group, options, settings):
                results[index] = hypotheses
        return results

    def _group(self, sentences: Sequence[Sentence], indices: list[int]) -> Iterator[list[int]]:
        """Yield indices of sentences with the same limit and the same length of the prefix.

        A call takes one limit; and of prefixes with different lengths, the engine's beam search
        forces the rest of the longer ones upon all beams, which then are copies of each other.
        """
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index in indices:
            groups[sentences[index].limit, len(sentences[index].prefix)].append(index)
        yield from groups.values()

    def _decode_together(
        self,
        sentences: Sequence[Sentence],
        indices: list[int],
        options: DecodingOptions,
        settings: dict[str, Any],
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        """Decode sentences in batches, with the largest of their limits."""
        for batch in batch_sentences([sentences[index] for index in indices], options):
            chosen = [sentences[indices[index]] for index in batch]
            limit = max(sentence.limit for sentence in chosen)
            if self.max_length is not None:
                longest = max(len(sentence.prefix) for sentence in chosen)
                limit = min(limit, self.max_length - longest + 1)
            hypotheses = self._decode(chosen, limit, settings)
            yield from zip((indices[index] for index in batch), hypotheses, strict=True)

    def _check_length(self, sentence: Sentence) -> None:
        longest = max(len(sentence.source), len(sentence.prefix) + sentence.limit - 1)
        if self.max_length is not None and longest > self.max_length:
            raise UserError(
                f"expected at most {self.max_length} tokens, the stored positions of "
                f"{self.folder}, got {longest}; shorten the text, set --max-new-tokens, or export "
                "with a larger max_length"
            )

    def _search_settings(self, options: DecodingOptions) -> dict[str, Any]:
        if options.beam > 1 and options.length_penalty not in (0, "mean"):
            raise UserError(
                "length_penalty: expected 0 or 'mean', which CTranslate2 has, got "
                f"{options.length_penalty!r}"
            )
        if options.min_p is not None:
            raise UserError("min_p: expected None, CTranslate2 has top_k and top_p")
        sampling: dict[str, Any] = {}
        if options.is_sampling:
            import_ctranslate2().set_random_seed(options.seed)
            sampling = {
                "sampling_topk": options.top_k or 0,
                "sampling_topp": options.top_p or 1,
                "sampling_temperature": options.temperature or 1,
            }
        return {
            "beam_size": options.beam,
            "num_hypotheses": options.nbest,
            # The engine stops at `beam` finished hypotheses, even if a running one is better.
            "patience": EXACT_PATIENCE if options.beam > 1 and options.stop == "exact" else 1,
            "length_penalty": 1 if options.length_penalty == "mean" else 0,
            "return_scores": True,
            "return_end_token": True,  # so that the length penalty counts it, as ours does
            "disable_unk": True,
            "suppress_sequences": [[SPECIALS[PAD]], [SPECIALS[START]]],
            **sampling,
        }

    def _decode(
        self, batch: list[Sentence], limit: int, settings: dict[str, Any]
    ) -> Iterator[list[Hypothesis]]:
        if self.kind == "seq2seq":
            prefixes = [sentence.prefix[1:] for sentence in batch]
            longest = max(map(len, prefixes))
            results = self._model.translate_batch(
                [self._source_tokens(sentence) for sentence in batch],
                target_prefix=[self._tokens(prefix) for prefix in prefixes] if longest else None,
                max_decoding_length=limit + longest,
                min_decoding_length=0,
                max_input_length=0,
                **settings,
            )
        elif self.kind == "lm":
            results = self._model.generate_batch(
                [self._tokens(sentence.prefix) for sentence in batch],
                max_length=limit,
                min_length=0,
                include_prompt_in_result=False,
                **settings,
            )
        else:
            raise UserError(f"expected a model that generates text, got an encoder, {self.folder}")
        power = settings["length_penalty"]
        for sentence, result in zip(batch, results, strict=True):
            outputs = result.hypotheses if self.kind == "seq2seq" else result.sequences
            hypotheses = []
            for names, score in zip(outputs, result.scores, strict=True):
                tokens = [self._numbers[name] for name in names]
                given = len(sentence.prefix) - 1 if self.kind == "seq2seq" else 0
                score *= len(tokens) ** power
                hypotheses.append(make_hypothesis(tokens[given:], score, END))
            yield hypotheses

    def _tokens(self, numbers: Sequence[int]) -> list[str]:
        return [self._names[number] for number in numbers]

    def _source_tokens(self, sentence: Sentence) -> list[str]:
        source = sentence.source
        if self._adds_source_end and source and source[-1] == END:
            source = source[:-1]
        elif self._adds_source_end:
            raise UserError("source: expected the end token last, got another one")
        return [self._source_names[number] for number in source]

    def score(
        self, sentences: Sequence[Sentence], targets: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        """Return the log-probabilities of given tokens, one tensor per sentence.

        Args:
            sentences: sources (Seq2Seq); the prefixes of a language model
            targets: tokens after START or the prefix; with the end token in a Seq2Seq model
        """
        if self.kind == "seq2seq":
            results = self._model.score_batch(
                [self._source_tokens(sentence) for sentence in sentences],
                [self._tokens(target[:-1]) for target in targets],
                max_input_length=0,
            )
            return [torch.tensor(result.log_probs) for result in results]
        rows = [
            (*sentence.prefix, *target) for sentence, target in zip(sentences, targets, strict=True)
        ]
        scores = self.forward(rows).log_softmax(-1)
        return [
            scores[index, len(sentence.prefix) - 1 : len(row) - 1]
            .gather(-1, torch.tensor(row[len(sentence.prefix) :])[:, None])
            .squeeze(-1)
            for index, (sentence, row) in enumerate(zip(sentences, rows, strict=True))
        ]

    def forward(self, rows: Sequence[Sequence[int]], types: Any = None) -> Tensor:
        """Return logits of a language model, or hidden states of an encoder, (B, L, features)."""
        batch = [list(row) for row in rows]
        if self.kind == "encoder":
            output = self._model.forward_batch(batch, token_type_ids=types).last_hidden_state
        else:
            output = self._model.forward_batch(batch)
        return torch.from_numpy(np.array(output))
