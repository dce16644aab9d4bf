"""Addnorm models in transformers, one class per kind, registered with the Auto classes."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    ImageClassifierOutput,
    MaskedLMOutput,
    Seq2SeqLMOutput,
    SequenceClassifierOutput,
)

from addnorm.core.errors import UserError
from addnorm.interop.auto.base import AddnormGenerativeModel, AddnormPreTrainedModel
from addnorm.interop.auto.cache import PastCache, count_positions
from addnorm.models import Seq2Seq
from addnorm.models.keyword_inputs import drop_full_mask, expand_positions


class AddnormForCausalLM(AddnormGenerativeModel):
    """Causal language model."""

    kind, auto_class = "lm", "AutoModelForCausalLM"

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **options: Any,
    ) -> Any:
        """Return logits and, with labels, the loss.

        Args:
            input_ids: (B, L) tokens; with `past_key_values`, only the new ones
            attention_mask: (B, S) with 1 at valid tokens, old and new ones
            position_ids: (L) or (B, L) positions; valid tokens are counted if None
            past_key_values: `DynamicCache`, extended in place
            labels: (B, L) input tokens, which are shifted here; -100 excludes a token
            use_cache: whether to return `past_key_values`
            logits_to_keep: number of last tokens to compute logits for, or their indices; all if 0
            **options: further keywords of transformers
        """
        self._check_options(options)
        ids = _require("input_ids", input_ids)
        if past_key_values is None and self._should_use_cache(use_cache, labels, None):
            past_key_values = DynamicCache(config=self.config)
        step = DecodingStep(ids, attention_mask, position_ids, past_key_values)
        hidden = self.model.hidden(ids, **step.arguments(self.model.decoder))
        logits = self.model.head(hidden[:, _last_tokens(logits_to_keep)], self.model.embed)
        loss = self._compute_loss(logits, labels, options)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
        return self._format_output(output, options)


class AddnormForSeq2SeqLM(AddnormGenerativeModel):
    """Encoder-decoder model."""

    kind, auto_class = "seq2seq", "AutoModelForSeq2SeqLM"

    def get_encoder(self, modality: str | None = None) -> "EncoderOfModel":
        """Return the encoder with its embedding, as a module that returns `last_hidden_state`."""
        return EncoderOfModel(self.model)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the decoder's input for labels: shifted by one, after the start token."""
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            setattr(self.model.config, name, getattr(self.config, name, None))
        return self.model.prepare_decoder_input_ids_from_labels(labels)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Any = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> Any:
        """Return logits and, with labels, the loss.

        Args:
            input_ids: (B, S) source tokens
            attention_mask: (B, S) with 1 at valid source tokens
            decoder_input_ids: (B, L) target tokens after the start token; made from labels if None
            decoder_attention_mask: (B, L) with 1 at valid target tokens, old and new ones
            encoder_outputs: output of `get_encoder()`; computed from `input_ids` if None
            past_key_values: `EncoderDecoderCache`, extended in place
            labels: (B, L) target tokens; -100 excludes a token
            use_cache: whether to return `past_key_values`
            **options: further keywords of transformers
        """
        positions = options.pop("decoder_position_ids", None)
        last = _last_tokens(options.pop("logits_to_keep", 0))
        self._check_options(options)
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        memory = encoder_outputs[0]
        if decoder_input_ids is None and labels is not None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        target = _require("decoder_input_ids", decoder_input_ids)
        if self._should_use_cache(use_cache, labels, past_key_values):
            past_key_values = _as_pair_cache(past_key_values, self.config)
        source_mask = _to_mask("attention_mask", attention_mask, memory.shape[:2])
        step = DecodingStep(target, decoder_attention_mask, positions, past_key_values, source_mask)
        arguments = step.arguments(self.model.decoder)
        hidden = self.model.hidden(
            target,
            memory,
            source_mask=source_mask,
            target_mask=arguments.pop("mask"),
            **arguments,
        )
        logits = self.model.head(hidden[:, last], self.model.embed)
        output = Seq2SeqLMOutput(
            loss=self._compute_loss(logits, labels, options),
            logits=logits,
            past_key_values=past_key_values,
            encoder_last_hidden_state=memory,
        )
        return self._format_output(output, options)


class AddnormEncoderModel(AddnormPreTrainedModel):
    """Base of the classes that read a whole text at once."""

    output_class: ClassVar[type[Any]]
    """Output of transformers that holds loss and logits."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Return logits and, with labels, the loss; arguments as of BERT in transformers."""
        self._check_options(options)
        output = self.model(
            input_ids=_require("input_ids", input_ids),
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
        )
        loss = self._compute_loss(output.logits, labels, options)
        return self._format_output(self.output_class(loss=loss, logits=output.logits), options)


class AddnormForMaskedLM(AddnormEncoderModel):
    """Masked language model."""

    kind, auto_class, output_class = "masked_lm", "AutoModelForMaskedLM", MaskedLMOutput


class AddnormForSequenceClassification(AddnormEncoderModel):
    """Classifier of texts."""

    kind, auto_class = "classifier", "AutoModelForSequenceClassification"
    output_class = SequenceClassifierOutput


class AddnormForImageClassification(AddnormPreTrainedModel):
    """Classifier of images."""

    kind, auto_class = "classifier", "AutoModelForImageClassification"
    main_input_name = "pixel_values"

    def forward(
        self, pixel_values: Tensor | None = None, labels: Tensor | None = None, **options: Any
    ) -> Any:
        """Return logits and, with labels, the loss; arguments as of ViT in transformers."""
        self._check_options(options)
        logits = self.model(_require("pixel_values", pixel_values))
        loss = self._compute_loss(logits, labels, options)
        return self._format_output(ImageClassifierOutput(loss=loss, logits=logits), options)


class EncoderOfModel(nn.Module):
    """Encoder of a pair with its embedding; does not register the pair as its part."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple, so that its parameters are not counted twice

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **options: Any
    ) -> Any:
        """Return the memory, (B, S, dim), as `last_hidden_state`."""
        ids = _require("input_ids", input_ids)
        mask = _to_mask("attention_mask", attention_mask, ids.shape)
        return BaseModelOutput(last_hidden_state=self._model[0].encode(ids, source_mask=mask))


class DecodingStep:
    """New tokens of a decoder, with a cache of transformers or without.

    Args:
        ids: (B, L) new tokens
        attention_mask: (B, S) with 1 at valid tokens, old and new ones
        position_ids: (L), (1, L) or (B, L) positions of the new tokens, or None to count them
        past: cache, or None
        memory_mask: (B, M) boolean mask of the memory, for a cache of a pair
    """

    def __init__(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        position_ids: Tensor | None,
        past: Any,
        memory_mask: Tensor | None = None,
    ) -> None:
        self.past, self.memory_mask = past, memory_mask
        self.past_length = 0 if past is None else int(past.get_seq_length())
        self.length = ids.shape[1]
        total = self.past_length + self.length
        self.mask = _to_mask("attention_mask", attention_mask, (ids.shape[0], total))
        self.positions = count_positions(self.mask, self.past_length, ids)
        if position_ids is not None:
            new = expand_positions(position_ids, ids)
            old = self.positions[..., : self.past_length].expand(len(ids), -1)
            self.positions = torch.cat((old, new), 1)

    def arguments(self, stack: Any) -> dict[str, Any]:
        """Return mask, cache and positions of the new tokens for a decoder."""
        new = slice(self.past_length, None)
        cache = None
        if self.past is not None:
            cache = PastCache(
                stack,
                self.past,
                valid=self.mask,
                positions=self.positions,
                memory_valid=self.memory_mask,
            )
        return {
            "mask": None if self.mask is None else self.mask[:, new],
            "cache": cache,
            "position_index": self.positions[..., new],
        }


def _require(name: str, value: Tensor | None) -> Tensor:
    if value is None:
        raise UserError(f"{name}: expected a tensor, got none")
    return value


def _to_mask(name: str, mask: Tensor | None, shape: Any) -> Tensor | None:
    """Return a boolean mask of a shape, or None without padding."""
    if mask is None:
        return None
    if tuple(mask.shape) != tuple(shape):
        raise UserError(
            f"{name}: expected shape {tuple(shape)}, that of all tokens, got {tuple(mask.shape)}"
        )
    return drop_full_mask(mask.bool())


def _last_tokens(logits_to_keep: int | Tensor) -> Any:
    """Return an index of the tokens whose logits are computed."""
    return slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep


def _as_pair_cache(past: Any, config: Any) -> Any:
    """Return a cache of a pair; one that holds self-attention only gets a second part."""
    if isinstance(past, EncoderDecoderCache):
        return past
    return EncoderDecoderCache(
        DynamicCache(config=config) if past is None else past, DynamicCache(config=config)
    )


MODEL_CLASSES = (
    AddnormForCausalLM,
    AddnormForSeq2SeqLM,
    AddnormForMaskedLM,
    AddnormForSequenceClassification,
    AddnormForImageClassification,
)
