"""Models that run in CTranslate2, with the decoding interface of `addnorm.decode`."""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from addnorm.core.calls import Call
from addnorm.core.errors import UserError
from addnorm.data.tokenizer import END, SPECIALS
from addnorm.decode.engine import InferenceEngine
from addnorm.decode.greedy import Hypothesis, make_hypothesis
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence
from addnorm.exporters.ctranslate2.head import apply_head
from addnorm.exporters.ctranslate2.library import import_ctranslate2
from addnorm.exporters.ctranslate2.write import HEAD_FILE
from addnorm.kernels.cross_entropy import IGNORE_INDEX, LossSums
from addnorm.models import Config
from addnorm.sublayers.masks import is_right_padded

EXACT_PATIENCE = 4
"""Multiples of the beam that must have finished before a search stops, for `stop="exact"`."""

RANKING_PATIENCE = 2
"""The same where finished hypotheses are ranked here, by a penalty that the engine lacks."""


class CTranslate2Engine(InferenceEngine):
    """Model of a folder that `write_spec` wrote, opened by CTranslate2.

    Args:
        folder: the folder
        config: config of the model that was written
        max_lengths: number of stored positions of source and target; None without a limit
        stored_type: number format of the weights
        threads: number of threads; 0 lets the engine decide
    """

    def __init__(
        self,
        folder: str | Path,
        config: Config,
        max_lengths: Sequence[int | None] = (None, None),
        *,
        stored_type: str = "float32",
        threads: int = 0,
    ) -> None:
        self.folder, self.config = Path(folder), config
        self.max_source_length, self.max_target_length = max_lengths
        self.kind = config.kind if config.kind in ("seq2seq", "lm") else "encoder"
        engine_config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        self._adds_source_end = bool(engine_config.get("add_source_eos"))
        classes = {"seq2seq": "Translator", "lm": "Generator", "encoder": "Encoder"}
        library = import_ctranslate2()
        types = library.get_supported_compute_types("cpu")
        # A type that the CPU lacks would be replaced by the next faster one, such as int8.
        compute_type = stored_type if stored_type in types else "float32"
        self._model = getattr(library, classes[self.kind])(
            str(self.folder), device="cpu", compute_type=compute_type, intra_threads=threads
        )
        self._source_names, self._names = self._read_names()
        self._numbers = {name: number for number, name in enumerate(self._names)}
        head = self.folder / HEAD_FILE
        self._head: dict[str, Tensor] = load_file(head) if head.is_file() else {}

    def _read_names(self) -> tuple[list[str], list[str]]:
        def read(name: str) -> list[str]:
            path = self.folder / f"{name}.json"
            return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []

        shared = read("shared_vocabulary") or read("vocabulary")
        return shared or read("source_vocabulary"), shared or read("target_vocabulary")

    def decode_batch(
        self, sentences: Sequence[Sentence], options: DecodingOptions, end: int
    ) -> list[list[Hypothesis]]:
        """Decode sentences to the tokens of `addnorm.decode.decode`.

        A score is the sum of log-probabilities among the tokens that may be generated.

        Raises:
            UserError: an option that the engine does not have, or a sentence that is too long
        """
        settings = self._search_settings(options, end)
        for sentence in sentences:
            self._check_sentence(sentence)
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        left = list(range(len(sentences)))
        if options.beam == 1 and not options.is_sampling:
            # A greedy search with a larger limit has the same tokens, so limits share a batch.
            for group in self._group(sentences, left, by_limit=False):
                batch = [sentences[index] for index in group]
                decoded = self._decode(batch, self._shared_limit(batch), settings, options, end)
                for index, hypotheses in zip(group, decoded, strict=True):
                    results[index] = hypotheses
            left = [
                index
                for index, (sentence, (best,)) in enumerate(zip(sentences, results, strict=True))
                if best.length > sentence.limit or (not best.ended and best.length < sentence.limit)
            ]
        for group in self._group(sentences, left):
            batch = [sentences[index] for index in group]
            decoded = self._decode(batch, batch[0].limit, settings, options, end)
            for index, hypotheses in zip(group, decoded, strict=True):
                results[index] = hypotheses
        return results

    def _group(
        self, sentences: Sequence[Sentence], indices: list[int], *, by_limit: bool = True
    ) -> Iterator[list[int]]:
        """Yield indices of sentences whose prefixes have the same length, and with the same limit.

        A call takes one limit. The engine forces the rest of longer prefixes upon all beams, which
        then are copies of each other, and returns it as new tokens if a prefix has one token only.
        """
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index in indices:
            sentence = sentences[index]
            groups[len(sentence.prefix), sentence.limit if by_limit else 0].append(index)
        yield from groups.values()

    def _shared_limit(self, sentences: Sequence[Sentence]) -> int:
        limit = max(sentence.limit for sentence in sentences)
        if self.max_target_length is None:
            return limit
        longest = max(len(sentence.prefix) for sentence in sentences)
        return min(limit, self.max_target_length - longest + 1)

    def _check_sentence(self, sentence: Sentence) -> None:
        if len(sentence.prefix) > 1 and Call.parse(self.config.positions).name == "t5":
            # The engine takes the number of cached tokens for the position of all new ones.
            raise UserError(
                "prefix: expected none for CTranslate2 with T5's positions, got "
                f"{len(sentence.prefix) - 1} tokens"
            )
        for what, length, limit in (
            ("source", len(sentence.source), self.max_source_length),
            ("text", len(sentence.prefix) + sentence.limit - 1, self.max_target_length),
        ):
            if limit is not None and length > limit:
                raise UserError(
                    f"{what}: expected at most {limit} tokens, the positions stored in "
                    f"{self.folder}, got {length}; shorten it or set --max-new-tokens"
                )

    def _search_settings(self, options: DecodingOptions, end: int) -> dict[str, Any]:
        if options.min_p is not None:
            raise UserError("min_p: expected None, CTranslate2 has top_k and top_p")
        sampling: dict[str, Any] = {}
        if options.is_sampling:
            # The engine reads the seed once, when its worker draws for the first time.
            import_ctranslate2().set_random_seed(options.seed)
            sampling = {
                "sampling_topk": options.top_k or 0,
                "sampling_topp": options.top_p or 1,
                "sampling_temperature": options.temperature or 1,
            }
        # The engine stops at `beam` finished hypotheses, even if a running one is better.
        patience = EXACT_PATIENCE if options.beam > 1 and options.stop == "exact" else 1
        is_ranked = _ranks_itself(options)
        if not is_ranked:
            patience = max(patience, RANKING_PATIENCE)
        return {
            "beam_size": options.beam,
            "num_hypotheses": options.nbest if is_ranked else options.beam * patience,
            "patience": patience,
            "length_penalty": 1 if options.length_penalty == "mean" else 0,
            "return_scores": True,
            "return_end_token": True,  # so that the length penalty counts it, as ours does
            "end_token": SPECIALS[end],
            "suppress_sequences": [[name] for name in SPECIALS if name != SPECIALS[end]],
            **sampling,
        }

    def _decode(
        self,
        batch: Sequence[Sentence],
        limit: int,
        settings: dict[str, Any],
        options: DecodingOptions,
        end: int,
    ) -> Iterator[list[Hypothesis]]:
        if self.kind == "seq2seq":
            prefixes = [sentence.prefix[1:] for sentence in batch]
            longest = max(map(len, prefixes))
            results = self._model.translate_batch(
                [self._source_tokens(sentence.source) for sentence in batch],
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
                hypotheses.append(make_hypothesis(tokens[given:], score, end))
            if not _ranks_itself(options):
                hypotheses.sort(key=lambda each: -each.score / options.penalty(each.length))
            yield hypotheses[: options.nbest]

    def _tokens(self, numbers: Sequence[int]) -> list[str]:
        return [self._names[number] for number in numbers]

    def _source_tokens(self, source: Sequence[int]) -> list[str]:
        if self._adds_source_end:
            if not source or source[-1] != END:
                raise UserError("source: expected the end token last, got another one")
            source = source[:-1]
        return [self._source_names[number] for number in source]

    def score_targets(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
    ) -> list[Tensor]:
        """Return the log-probabilities of target tokens after START, one tensor per sentence.

        Args:
            sources: token ids of the sources
            targets: token ids, the end token last
        """
        results = self._model.score_batch(
            [self._source_tokens(source) for source in sources],
            [self._tokens(target[:-1]) for target in targets],
            max_input_length=0,
        )
        return [torch.tensor(result.log_probs) for result in results]

    def __call__(self, *inputs: Tensor, **options: Tensor | None) -> Tensor:
        if self.kind == "seq2seq":
            raise UserError(
                "expected a language model or an encoder, got a pair, of which CTranslate2 returns "
                "no logits; use decode"
            )
        (ids,), mask = inputs, options.get("mask")
        lengths = torch.full((len(ids),), ids.shape[1]) if mask is None else mask.sum(1)
        if mask is not None and not is_right_padded(mask):
            raise UserError("mask: expected padding on the right for CTranslate2")
        rows = [row[:length].tolist() for row, length in zip(ids, lengths.tolist(), strict=True)]
        if self.kind == "lm":
            output = self._model.forward_batch(rows)
        else:
            types = options.get("type_ids")
            if types is None and self.config.types:
                types = torch.zeros_like(ids)
            segments = None if types is None else types.tolist()
            output = self._model.forward_batch(rows, token_type_ids=segments).last_hidden_state
        result = torch.from_numpy(np.array(output))
        # The engine pads to the longest sequence.
        result = F.pad(result, (0, 0, 0, ids.shape[1] - result.shape[1]))
        if self.kind == "lm":
            return result
        return apply_head(self.config, self._head, result, mask)

    def loss(
        self, targets: Tensor, *inputs: Tensor, smoothing: float = 0.0, **options: Tensor | None
    ) -> LossSums:
        if self.kind != "seq2seq":
            return super().loss(targets, *inputs, smoothing=smoothing, **options)
        source, mask = inputs[0], options.get("source_mask")
        valid = torch.ones_like(source, dtype=torch.bool) if mask is None else mask
        sources = [row[keep].tolist() for row, keep in zip(source, valid, strict=True)]
        rows = [row[row != IGNORE_INDEX].tolist() for row in targets]
        nll = -torch.cat(self.score_targets(sources, rows)).double().sum()
        count = torch.tensor(sum(map(len, rows)))
        return LossSums(nll, nll, torch.tensor(torch.nan), count)  # it returns no other token


def _ranks_itself(options: DecodingOptions) -> bool:
    """Return whether the engine has the length penalty, score / length ** p with p of 0 or 1."""
    return options.beam == 1 or options.length_penalty in (0, "mean")
