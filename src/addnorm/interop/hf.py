"""Conversion of Hugging Face models: `from_hf`, `HFModel` and `HFModel.to_hf`.

`from_hf` works in four steps, and raises `UserError` if any of them fails, so that a model is
converted exactly or not at all:

1. `_read_config` checks the class and wraps the config in a `ConfigReader`;
2. the family's reader maps every field of the config to a `Config` (`_build_config`);
3. `WeightMapper` maps every tensor of the state dict to tensors of our model;
4. `verify_copy` runs both models on a small input and compares the outputs.

In this package, "theirs" always means a model, config or tensor name of transformers, and "ours"
one of addnorm.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.families import (
    encoders,  # noqa: F401 registers its families
    fairseq,  # noqa: F401 registers its families
    fused_qkv,  # noqa: F401 registers its families
    gpt,  # noqa: F401 registers its families
    llama,  # noqa: F401 registers its families
    seq2seq,  # noqa: F401 registers its families
    vision,  # noqa: F401 registers its families
)
from addnorm.interop.family import Family, HeadVariant, PositionNumbering, find_family
from addnorm.interop.greedy import SpecialTokens, greedy_decoder, greedy_seq2seq
from addnorm.interop.output import Output
from addnorm.interop.transformers_compat import to_bool_mask, transformers_library
from addnorm.interop.verify import check_arrangement, verify_copy
from addnorm.interop.weight_mapping import TensorPair, WeightMapper
from addnorm.models import (
    Classifier,
    Config,
    LanguageModel,
    MaskedLM,
    Model,
    Seq2Seq,
    build,
)

# Arguments of transformers' forward that are accepted with these values and ignored.
NO_EFFECT_OPTIONS: dict[str, tuple[bool | None, ...]] = {
    "return_dict": (None, True),
    "use_cache": (None, True, False),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
}


def from_hf(hf_model: Any) -> "HFModel":
    """Convert a Hugging Face model to an addnorm model with a copy of its weights.

    The result takes the keyword inputs of the original class and returns the same outputs
    (`logits`, `last_hidden_state`, ...). Its attribute `model` is an addnorm model that can be
    trained, measured and saved. Nothing is downloaded.

    Args:
        hf_model: model of a supported class of transformers, with weights

    Raises:
        UserError: if the family, a setting or a tensor is not supported, or if the outputs of the
            copy differ from those of the original
    """
    reader, family, variant = _read_config(hf_model)
    theirs = reader.tensors
    if any(value.is_meta for value in theirs.values()):
        raise UserError(f"expected a model with weights, got {reader.name} on the meta device")
    config = _build_config(family, variant, reader)
    model = build(config, device="meta")
    mapper = WeightMapper(family, variant, f"{hf_model.base_model_prefix}.", model)
    pairs = mapper.match_tensors(theirs)
    model.load_state_dict(mapper.to_ours(pairs, theirs), assign=True, strict=False)
    origin = HFOrigin(
        model_class=type(hf_model),
        config=copy.deepcopy(hf_model.config),
        model_config=config,
        generation_config=copy.deepcopy(getattr(hf_model, "generation_config", None)),
        pairs=tuple(pairs),
        unused_tensors={
            pair.theirs: theirs[pair.theirs].detach().clone()
            for pair in pairs
            if pair.constant is not None and pair.constant.value == "unused"
        },
    )
    numbering = family.get_numbering(reader.values)
    converted = HFModel(model, variant, numbering, origin, reader.notes)
    verify_copy(hf_model, converted)
    return converted.train(hf_model.training)


def convert_config(hf_model: Any) -> Config:
    """Return the addnorm config of a Hugging Face model, which may be on the meta device."""
    reader, family, variant = _read_config(hf_model)
    return _build_config(family, variant, reader)


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


class HFModel(nn.Module):
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

    def forward(self, input_ids: Tensor | None = None, **inputs: Any) -> Output:
        """Run the model on the keyword inputs of the original class.

        Args:
            input_ids: (B, L) token ids, or the pixel values if they are passed by position
            **inputs: those of the following that the class takes: attention_mask (B, L) with 1 at
                valid tokens, token_type_ids (B, L), position_ids (L) or (B, L), pixel_values
                (B, C, H, W), decoder_input_ids and decoder_attention_mask (B, T)
        """
        first = "input_ids" if self.config.image is None else "pixel_values"
        arguments = {first: input_ids, **inputs}
        tensors = {name: value for name, value in arguments.items() if value is not None}
        for name, accepted in NO_EFFECT_OPTIONS.items():
            if tensors.pop(name, None) not in accepted:
                raise UserError(
                    f"{name}: expected one of {accepted}, got {arguments[name]!r}; leave it out"
                )
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
            tensors["position_ids"] = self._expand_positions(tensors, arguments.get("use_cache"))
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

    def _run_model(self, inputs: dict[str, Tensor], masks: dict[str, Tensor | None]) -> Output:
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
                return Output(last_hidden_state=model.hidden(ids, **options))
            return Output(logits=model(ids, **options))
        if "token_type_ids" in inputs:
            options["type_ids"] = inputs["token_type_ids"]
        if isinstance(model, MaskedLM):
            return Output(logits=model(ids, **options))
        assert isinstance(model, Classifier)
        return self._classify(model, model.hidden(ids, **options), mask)

    def _classify(self, model: Classifier, hidden: Tensor, mask: Tensor | None) -> Output:
        if self.variant.output_kind == "logits":
            assert model.head is not None
            return Output(logits=model.head(model.pool(hidden, mask)))
        pooled = None if model.pooler is None else model.pool(hidden, mask)
        return Output(last_hidden_state=hidden, pooler_output=pooled)

    def _run_seq2seq(
        self, model: Seq2Seq, inputs: dict[str, Tensor], masks: dict[str, Tensor | None]
    ) -> Output:
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
            return Output(last_hidden_state=hidden, encoder_last_hidden_state=memory)
        logits = model.head(hidden, model.embed)
        return Output(logits=logits, encoder_last_hidden_state=memory)

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
                return greedy_decoder(
                    self.model, input_ids, mask, self.numbering, tokens, max_new_tokens
                )
            if isinstance(self.model, Seq2Seq):
                return greedy_seq2seq(
                    self.model, input_ids, mask, self.numbering, tokens, max_new_tokens
                )
        raise UserError(
            f"greedy: expected a language model with a head, got {self.origin.model_class.__name__}"
        )

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


def _read_config(hf_model: Any) -> tuple[ConfigReader, Family, HeadVariant]:
    transformers = transformers_library()
    if not isinstance(hf_model, transformers.PreTrainedModel):
        raise UserError(
            f"hf_model: expected a model of transformers, got {type(hf_model).__name__}; build it "
            "from a config or load it with from_pretrained first"
        )
    name, config = type(hf_model).__name__, hf_model.config
    if not type(hf_model).__module__.startswith("transformers."):
        raise UserError(
            f"hf_model: expected a class of transformers, got {name} of "
            f"{type(hf_model).__module__}, whose forward may differ"
        )
    family, variant = find_family(config.model_type, name)
    declared = type(config)().to_dict()
    reader = ConfigReader(name, config.to_dict(), dict(hf_model.state_dict()), declared)
    return reader, family, variant


def _build_config(family: Family, variant: HeadVariant, reader: ConfigReader) -> Config:
    try:
        values: dict[str, Any] = {"kind": variant.kind} | family.read(reader) | variant.read(reader)
    except (TypeError, AttributeError):
        # Caused by a missing field or one of another type, which the reader has recorded.
        reader.finish(all_read=False)
        raise
    reader.finish()
    return Config(**values)
