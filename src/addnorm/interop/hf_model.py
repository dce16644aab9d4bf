"""Converted Hugging Face models: addnorm models with the inputs and outputs of the original."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.core.validation import check_path
from addnorm.interop.family import HeadVariant, PositionNumbering, find_family
from addnorm.interop.greedy import SpecialTokens, greedy_decoder, greedy_seq2seq
from addnorm.interop.verify import check_arrangement, verify_copy
from addnorm.interop.weight_mapping import TensorPair, WeightMapper
from addnorm.kernels.cross_entropy import IGNORE_INDEX
from addnorm.models import (
    Classifier,
    Config,
    LanguageModel,
    MaskedLM,
    Model,
    ModelOutput,
    Seq2Seq,
)
from addnorm.models.keyword_inputs import remove_no_effect_options, to_bool_mask
from addnorm.models.training_interface import TrainingInterface


@dataclass(frozen=True)
class HFOrigin:
    """Class, configs and tensor names of a converted model, for the way back."""

    model_class: type
    """Class in transformers."""
    config: Any
    """Config of transformers."""
    model_config: Config
    """Config of the addnorm model."""
    generation_config: Any
    """Generation config of transformers, or None."""
    pairs: tuple[TensorPair, ...]
    """Correspondence of tensors."""
    unused_tensors: Mapping[str, Tensor]
    """Tensors of the state dict that the class never reads."""


class HFModel(TrainingInterface):
    """Addnorm model with the inputs and outputs of a class of transformers.

    Attributes:
        model: the addnorm model
        notes: differences that affect training only, such as merged dropout rates
        origin: class, configs and tensor names of the original
    """

    def __init__(
        self,
        model: Model,
        variant: HeadVariant,
        numbering: PositionNumbering,
        origin: HFOrigin,
        notes: Sequence[str],
    ) -> None:
        super().__init__()
        self.model, self.variant, self.numbering, self.origin = model, variant, numbering, origin
        self.notes = tuple(notes)

    @property
    def config(self) -> Config:
        """Config of the addnorm model."""
        return self.model.config

    @property
    def loss_type(self) -> str:  # type: ignore[override]
        """Name of the loss in transformers; see `TrainingInterface`."""
        return self.model.loss_type

    def compute_loss(self, logits: Tensor, labels: Tensor, num_items: Any = None) -> Tensor:
        if not self.variant.shifts_labels:  # undo the shift of our loss
            logits = torch.cat((logits, logits[:, -1:]), 1)
            labels = torch.cat((torch.full_like(labels[:, :1], IGNORE_INDEX), labels), 1)
        return self.model.compute_loss(logits, labels, num_items)

    def get_input_embeddings(self) -> nn.Module:
        return self.model.get_input_embeddings()

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the decoder's input for labels, with the special tokens of the original."""
        assert isinstance(self.model, Seq2Seq)
        for name in ("decoder_start_token_id", "bos_token_id", "pad_token_id"):
            setattr(self.model.config, name, getattr(self.origin.config, name, None))
        return self.model.prepare_decoder_input_ids_from_labels(labels)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> ModelOutput:
        """Run the model on the inputs of the original class.

        Args:
            input_ids: (B, L) token ids, or the pixel values if they are passed by position
            attention_mask: (B, L) with 1 at valid tokens
            token_type_ids: (B, L) segments
            position_ids: (L) or (B, L) positions
            decoder_input_ids: (B, T) target tokens; made from labels if None
            decoder_attention_mask: (B, T) with 1 at valid tokens
            pixel_values: (B, C, H, W) images
            labels: targets of the loss, as in the original class
            **options: options of transformers that change nothing, and num_items_in_batch
        """
        first = "input_ids" if self.config.image is None else "pixel_values"
        inputs = {
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "decoder_input_ids": decoder_input_ids,
            "decoder_attention_mask": decoder_attention_mask,
            "pixel_values": pixel_values,
            **options,
        }
        arguments = inputs | {first: inputs.get(first) if input_ids is None else input_ids}
        tensors = {name: value for name, value in arguments.items() if value is not None}
        return_dict, num_items = (
            tensors.pop(name, default)
            for name, default in (("return_dict", True), ("num_items_in_batch", None))
        )
        if return_dict is not True:
            raise UserError(f"return_dict: expected True, got {return_dict!r}; leave it out")
        remove_no_effect_options(tensors)
        if labels is not None and self.config.kind == "seq2seq" and decoder_input_ids is None:
            tensors["decoder_input_ids"] = self.prepare_decoder_input_ids_from_labels(labels)
        output = self._run_on(tensors, options.get("use_cache"))
        if labels is None:
            return output
        if output.logits is None:
            raise UserError(
                f"labels: expected a class with a head, got {self.origin.model_class.__name__}"
            )
        loss = self.compute_loss(output.logits, labels, num_items)
        return ModelOutput({"loss": loss, **output})

    def _run_on(self, tensors: dict[str, Tensor], use_cache: bool | None) -> ModelOutput:
        """Check the inputs, and run the model on them."""
        supported, required = self._input_names()
        class_name = self.origin.model_class.__name__
        for name in tensors:
            if name not in supported:
                raise UserError(
                    f"expected inputs of {class_name} among {', '.join(supported)}, got {name!r}"
                )
        for name in required:
            if name not in tensors:
                raise UserError(f"{name}: expected a tensor for {class_name}, got none")
        masks = {
            name: to_bool_mask(name, tensors.get(name), tensors.get(ids))
            for name, ids in (
                ("attention_mask", "input_ids"),
                ("decoder_attention_mask", "decoder_input_ids"),
            )
        }
        if "position_ids" in tensors:
            tensors["position_ids"] = self._expand_positions(tensors, use_cache)
        return self._run_model(tensors, masks)

    def _expand_positions(self, inputs: dict[str, Tensor], use_cache: bool | None) -> Tensor:
        """Expand positions to (B, L).

        Without mask and cache, transformers interprets positions that do not increase by 1 as
        packed sequences and hides them from each other. This is not supported.
        """
        positions = inputs["position_ids"]
        cached = getattr(self.origin.config, "use_cache", True) if use_cache is None else use_cache
        jumps = positions.shape[-1] > 1 and bool((positions.diff(dim=-1) != 1).any())
        if jumps and not cached and "attention_mask" not in inputs and self.config.kind == "lm":
            raise UserError(
                "position_ids: expected positions that increase by 1, got packed sequences; pass "
                "an attention_mask or one sequence per row"
            )
        return positions.expand(inputs["input_ids"].shape)

    def _run_model(self, inputs: dict[str, Tensor], masks: dict[str, Tensor | None]) -> ModelOutput:
        model, mask = self.model, masks["attention_mask"]
        if isinstance(model, Seq2Seq):
            return self._run_seq2seq(model, inputs, masks)
        if "pixel_values" in inputs:
            assert isinstance(model, Classifier)
            return self._classify(model, model.hidden(inputs["pixel_values"]), None)
        ids = inputs["input_ids"]
        index = self.numbering.position_index(ids, mask, inputs.get("position_ids"))
        options: dict[str, Any] = {"mask": mask, "position_index": index}
        if isinstance(model, LanguageModel):
            if self.variant.output_kind == "hidden":
                return ModelOutput(last_hidden_state=model.hidden(ids, **options))
            return ModelOutput(logits=model(ids, **options))
        if "token_type_ids" in inputs:
            options["type_ids"] = inputs["token_type_ids"]
        if isinstance(model, MaskedLM):
            return ModelOutput(logits=model(ids, **options))
        assert isinstance(model, Classifier)
        return self._classify(model, model.hidden(ids, **options), mask)

    def _classify(self, model: Classifier, hidden: Tensor, mask: Tensor | None) -> ModelOutput:
        if self.variant.output_kind == "logits":
            assert model.head is not None
            return ModelOutput(logits=model.head(model.pool(hidden, mask)))
        pooled = None if model.pooler is None else model.pool(hidden, mask)
        return ModelOutput(last_hidden_state=hidden, pooler_output=pooled)

    def _run_seq2seq(
        self, model: Seq2Seq, inputs: dict[str, Tensor], masks: dict[str, Tensor | None]
    ) -> ModelOutput:
        source, target = inputs["input_ids"], inputs["decoder_input_ids"]
        source_mask, target_mask = masks["attention_mask"], masks["decoder_attention_mask"]
        memory = model.encode(
            source,
            source_mask=source_mask,
            position_index=self.numbering.position_index(source, source_mask, None),
        )
        hidden = model.hidden(
            target,
            memory,
            source_mask=source_mask,
            target_mask=target_mask,
            position_index=self.numbering.position_index(target, target_mask, None),
        )
        if self.variant.output_kind == "hidden":
            return ModelOutput(last_hidden_state=hidden, encoder_last_hidden_state=memory)
        logits = model.head(hidden, model.embed)
        return ModelOutput(logits=logits, encoder_last_hidden_state=memory)

    def _input_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of supported inputs and of required ones."""
        config = self.model.config
        if config.image is not None:
            return ("pixel_values",), ("pixel_values",)
        if config.kind == "seq2seq":
            required = ("input_ids", "decoder_input_ids")
            return (*required, "attention_mask", "decoder_attention_mask"), required
        segments = ("token_type_ids",) if config.types else ()
        return ("input_ids", "attention_mask", "position_ids", *segments), ("input_ids",)

    @torch.no_grad()
    def greedy(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, max_new_tokens: int = 20
    ) -> Tensor:
        """Generate greedily, like `generate(do_sample=False)` of transformers.

        Args:
            input_ids: (B, L) prompts, padded on the left, or source sequences
            attention_mask: (B, L) with 1 at valid tokens
            max_new_tokens: number of tokens to generate at most

        Returns:
            (B, L + new) prompt and continuation of a decoder; (B, 1 + new) start token and
            generated tokens of an encoder-decoder.
        """
        if max_new_tokens < 1:
            raise UserError(f"max_new_tokens: expected an integer >= 1, got {max_new_tokens}")
        mask = to_bool_mask("attention_mask", attention_mask, input_ids)
        tokens = SpecialTokens.from_generation_config(self.origin.generation_config)
        if self.variant.output_kind == "logits":
            if isinstance(self.model, LanguageModel):
                length = (
                    self.origin.config.original_max_position_embeddings
                    if (self.variant.restarts_cache)
                    else None
                )
                return greedy_decoder(
                    self.model,
                    input_ids,
                    mask,
                    self.numbering,
                    tokens,
                    max_new_tokens,
                    restart_length=length,
                )
            if isinstance(self.model, Seq2Seq):
                return greedy_seq2seq(
                    self.model, input_ids, mask, self.numbering, tokens, max_new_tokens
                )
        raise UserError(
            f"greedy: expected a language model with a head, got {self.origin.model_class.__name__}"
        )

    def rewire(self, **changes: Any) -> tuple[Any, Any]:
        """Return a model of another arrangement and a report; see `addnorm.rewire`."""
        from addnorm import rewire

        return rewire(self, **changes)

    def save(self, folder: str | Path) -> None:
        """Save the model as a folder of the class that `to_hf` returns, for `addnorm.load`, too.

        Raises:
            UserError: as `to_hf`
        """
        check_path("folder", folder)
        self.to_hf().save_pretrained(folder)

    def to_hf(self) -> Any:
        """Return a model of the original class and config with a copy of the current weights.

        Raises:
            UserError: the attribute `model` was replaced or changed, so that the original class
                does not compute the same outputs
        """
        origin = self.origin
        check_arrangement(self.model, origin.model_config, origin.model_class.__name__)
        names = {pair.theirs for pair in origin.pairs}
        hf_model = origin.model_class(copy.deepcopy(origin.config))
        if names != set(
            hf_model.state_dict()
        ):  # the config does not tell whether there is a pooler
            hf_model = origin.model_class(copy.deepcopy(origin.config), add_pooling_layer=False)
        state = dict(hf_model.state_dict())
        family, variant = find_family(origin.config.model_type, origin.model_class.__name__)
        mapper = WeightMapper(family, variant, f"{hf_model.base_model_prefix}.", self.model)
        shapes = {name: value.shape for name, value in state.items()}
        weights = mapper.to_theirs(origin.pairs, shapes)
        weights |= {name: value.clone() for name, value in origin.unused_tensors.items()}
        # All names of a tied tensor must get the same Parameter object, or the tie is lost.
        parameters = dict(hf_model.named_parameters(remove_duplicate=False))
        shared: dict[int, nn.Parameter] = {}
        for name, value in weights.items():
            if name in parameters:
                weights[name] = shared.setdefault(id(value), nn.Parameter(value))
        hf_model.load_state_dict(state | weights, assign=True)
        if origin.generation_config is not None:
            hf_model.generation_config = copy.deepcopy(origin.generation_config)
        verify_copy(hf_model, self)
        return hf_model.train(self.training)
