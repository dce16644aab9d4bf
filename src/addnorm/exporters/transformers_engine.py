"""Models of transformers as inference engines: stock classes, and addnorm's own."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import ExportMismatchError, UserError
from addnorm.data.tokenizer import PAD, SPECIALS
from addnorm.decode.engine import InferenceEngine
from addnorm.decode.greedy import Hypothesis, make_hypothesis
from addnorm.decode.options import DecodingOptions
from addnorm.decode.sampling import sample_tokens, uniform_draws
from addnorm.decode.stepper import Sentence, pad_tokens
from addnorm.interop.transformers_compat import transformers_library
from addnorm.models import Config


class TransformersEngine(InferenceEngine):
    """Folder of a Hugging Face model, opened by `from_pretrained`.

    Args:
        folder: the folder
        config: config of the original model
        class_name: class of transformers, or Auto class
        max_lengths: most tokens of source and target; None without a limit
    """

    def __init__(
        self,
        folder: str | Path,
        config: Config,
        class_name: str,
        max_lengths: Sequence[int | None] = (None, None),
    ) -> None:
        self.folder, self.config = Path(folder), config
        self.max_source_length, self.max_target_length = max_lengths
        model_class = getattr(transformers_library(), class_name)
        with quiet_transformers():
            self._model, info = model_class.from_pretrained(str(folder), output_loading_info=True)
        self._model.eval()
        problems = {name: values for name, values in info.items() if values}
        if problems:
            raise ExportMismatchError(
                f"{folder}: expected all tensors of {class_name} and no others, got {problems}"
            )

    def __call__(self, *inputs: Tensor, **options: Tensor | None) -> Tensor:
        config, first = self.config, inputs[0]
        arguments: dict[str, Any] = {"use_cache": False} if config.kind in ("lm", "seq2seq") else {}
        if config.image is not None:
            arguments["pixel_values"] = first
        elif config.kind == "seq2seq":
            arguments |= {"input_ids": first, "decoder_input_ids": inputs[1]}
            arguments["attention_mask"] = options.get("source_mask")
            arguments["decoder_attention_mask"] = options.get("target_mask")
        else:
            arguments |= {"input_ids": first, "attention_mask": options.get("mask")}
            if options.get("type_ids") is not None:
                arguments["token_type_ids"] = options["type_ids"]
        arguments = {
            name: value.long() if isinstance(value, Tensor) and value.dtype == torch.bool else value
            for name, value in arguments.items()
            if value is not None
        }
        with torch.inference_mode():
            output = self._model(**arguments)
        logits = getattr(output, "logits", None)
        result: Tensor = output.last_hidden_state if logits is None else logits
        return result

    def decode_batch(
        self, sentences: Sequence[Sentence], options: DecodingOptions, end: int
    ) -> list[list[Hypothesis]]:
        settings = self._settings(options, end)
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, sentence in enumerate(sentences):
            # `generate` has one limit, and prefixes of a decoder cannot be padded.
            length = len(sentence.prefix) if sentence.source else 0
            groups[sentence.limit, length].append(index)
        for group in groups.values():
            decoded = self._generate([sentences[index] for index in group], settings, options, end)
            for index, hypotheses in zip(group, decoded, strict=True):
                results[index] = hypotheses
        return results

    def _settings(self, options: DecodingOptions, end: int) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "num_beams": options.beam,
            "num_return_sequences": options.nbest if options.beam > 1 else 1,
            "do_sample": False,  # samples are drawn by `_Sampler`
            "eos_token_id": end,
            "pad_token_id": PAD,
            "suppress_tokens": [number for number in range(len(SPECIALS)) if number != end],
            "return_dict_in_generate": True,
            "output_logits": options.beam == 1,
            "output_scores": options.beam > 1,
        }
        if options.beam > 1:
            settings["length_penalty"] = _LengthPenalty(options)
            settings["early_stopping"] = "never" if options.stop == "exact" else False
        return settings

    def _generate(
        self,
        batch: Sequence[Sentence],
        settings: dict[str, Any],
        options: DecodingOptions,
        end: int,
    ) -> Iterator[list[Hypothesis]]:
        limit = batch[0].limit
        if options.is_sampling:  # one row per sample
            batch = [sentence for sentence in batch for _ in range(options.nbest)]
        prefixes = [sentence.prefix for sentence in batch]
        if self.config.kind == "seq2seq":
            ids, mask = pad_tokens([sentence.source for sentence in batch], self.device)
            inputs = {"decoder_input_ids": torch.tensor(prefixes)}
            given = len(prefixes[0])
        elif self.config.kind == "lm":
            ids, mask = pad_tokens(prefixes, self.device, pad_left=True)
            inputs, given = {}, ids.shape[1]
        else:
            raise UserError(f"expected a model that generates text, got kind {self.config.kind!r}")
        mask = torch.ones_like(ids) if mask is None else mask.long()
        if options.is_sampling:
            settings = settings | {"logits_processor": [_Sampler(batch, options, given)]}
        with torch.inference_mode(), quiet_transformers():
            output = self._model.generate(
                ids, attention_mask=mask, max_new_tokens=limit, **inputs, **settings
            )
        rows = [_cut(row, end) for row in output.sequences[:, given:].tolist()]
        scores = self._scores(output, rows, options)
        for start in range(0, len(rows), options.nbest):
            yield [
                make_hypothesis(rows[row], scores[row], end)
                for row in range(start, start + options.nbest)
            ]

    def _scores(
        self, output: Any, rows: Sequence[Sequence[int]], options: DecodingOptions
    ) -> list[float]:
        """Return the sums of log-probabilities."""
        if options.beam > 1:
            ranks: Tensor = output.sequences_scores
            steps = (output.beam_indices >= 0).sum(1).tolist()
            pairs = zip(ranks.tolist(), steps, strict=True)
            return [rank * options.penalty(step) for rank, step in pairs]
        log_probs = torch.stack(output.logits, 1).double().log_softmax(-1)  # (rows, steps, vocab)
        return [
            float(steps[: len(row)].gather(1, torch.tensor(row)[:, None]).sum())
            for steps, row in zip(log_probs, rows, strict=True)
        ]


class _LengthPenalty(float):
    """Exponent p of `generate`, which divides scores by length ** p, with our divisor instead.

    >>> round(7 ** _LengthPenalty(DecodingOptions(beam=2, length_penalty=0.6)), 4)  # 2 ** 0.6
    1.5157
    """

    def __new__(cls, options: DecodingOptions) -> "_LengthPenalty":
        is_mean = options.length_penalty == "mean"
        return super().__new__(cls, 1.0 if is_mean else options.length_penalty)

    def __init__(self, options: DecodingOptions) -> None:
        self.options = options

    def __rpow__(self, length: float, mod: None = None) -> float:
        return self.options.penalty(length)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_LengthPenalty":
        return self  # generate copies its config


class _Sampler:
    """Logits processor that leaves one token per row, with the draws of `addnorm.decode`.

    Args:
        sentences: sentence of each row; the samples of a sentence follow each other
        options: filters, number of samples and seed
        given: tokens before the first generated one
    """

    def __init__(self, sentences: Sequence[Sentence], options: DecodingOptions, given: int) -> None:
        numbers = [(sentence.number, row % options.nbest) for row, sentence in enumerate(sentences)]
        self.options, self.given = options, given
        self.draws = uniform_draws(options.seed, numbers, sentences[0].limit)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.given
        token = sample_tokens(scores, self.draws[:, step], self.options)
        return torch.full_like(scores, -torch.inf).scatter(1, token[:, None], 0.0)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide progress bars and messages of transformers inside the block."""
    logging = transformers_library().utils.logging
    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()


def _cut(tokens: list[int], end: int) -> list[int]:
    """Return tokens up to the end token, without the padding behind it."""
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens
