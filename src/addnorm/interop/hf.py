"""Hugging Face models as ours, and back."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.interop.config_reader import ConfigReader
from addnorm.interop.conventions import to_bool_mask, transformers_library
from addnorm.interop.families import (
    encoders,  # noqa: F401 families
    fairseq,  # noqa: F401 families
    fused_qkv,  # noqa: F401 families
    gpt,  # noqa: F401 families
    llama,  # noqa: F401 families
    seq2seq,  # noqa: F401 families
    vision,  # noqa: F401 families
)
from addnorm.interop.family import Family, HeadVariant, PositionNumbering, find_family
from addnorm.interop.greedy import SpecialTokens, greedy_decoder, greedy_seq2seq
from addnorm.interop.output import Output
from addnorm.interop.verify import verify_copy
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

# What may be passed and changes nothing that we return.
NO_EFFECT_OPTIONS: dict[str, tuple[bool | None, ...]] = {
    "return_dict": (None, True),
    "use_cache": (None, True, False),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
}


def from_hf(hf_model: Any) -> "HFModel":
    """A Hugging Face model as one of ours, with a copy of its weights.

    What comes back takes the same keyword inputs and returns an object with the same `logits`,
    `last_hidden_state`, ...; `.model` is ours and can be trained, rewired, measured. A family, a
    setting or a tensor that is not understood is refused: nothing is ever half loaded, and nothing
    is downloaded.
    """
    read, family, form = _read_config(hf_model)
    theirs = read.tensors
    if any(value.is_meta for value in theirs.values()):
        raise UserError(f"this {read.name} is on the meta device and has no weights to copy")
    config = _build_config(family, form, read)
    model = build(config, device="meta")
    carrier = WeightMapper(family, form, f"{hf_model.base_model_prefix}.", model)
    pairs = carrier.match_tensors(theirs)
    model.load_state_dict(carrier.to_ours(pairs, theirs), assign=True, strict=False)
    source = HFOrigin(
        model_class=type(hf_model),
        config=copy.deepcopy(hf_model.config),
        generation_config=copy.deepcopy(getattr(hf_model, "generation_config", None)),
        pairs=tuple(pairs),
        unused_tensors={
            pair.theirs: theirs[pair.theirs].detach().clone()
            for pair in pairs
            if pair.constant is not None and pair.constant.value == "spare"
        },
    )
    made = HFModel(model, form, family.get_numbering(read.values), source, tuple(read.notes))
    verify_copy(hf_model, made)
    return made.train(hf_model.training)


def convert_config(hf_model: Any) -> Config:
    """The config that a Hugging Face model has with us; it may be on the meta device."""
    read, family, form = _read_config(hf_model)
    return _build_config(family, form, read)


@dataclass(frozen=True)
class HFOrigin:
    """Where a model came from, and how it goes back."""

    model_class: type
    """The class in transformers."""
    config: Any
    """Its config."""
    generation_config: Any
    """Its generation config, if any."""
    pairs: tuple[TensorPair, ...]
    """Tensors of theirs and of ours."""
    unused_tensors: Mapping[str, Tensor]
    """Tensors that nothing reads."""


class HFModel(nn.Module):
    """One of our models behind the inputs and outputs of a class of transformers.

    model: ours; config: its config; notes: what is the same only outside of training
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
        """Our config."""
        return self.model.config

    def forward(self, input_ids: Tensor | None = None, **inputs: Any) -> Output:
        """The answer, from the keyword inputs of the class in transformers.

        input_ids, attention_mask (1 at valid tokens), token_type_ids, position_ids, pixel_values,
        decoder_input_ids, decoder_attention_mask: those that the class has.
        """
        first = "input_ids" if self.config.image is None else "pixel_values"
        inputs = {first: input_ids, **inputs}
        given = {name: value for name, value in inputs.items() if value is not None}
        for name, idle in NO_EFFECT_OPTIONS.items():
            if given.pop(name, None) not in idle:
                raise UserError(f"{name}={inputs[name]!r} is not understood; leave it out")
        known, needed = self._input_names()
        for name in given:
            if name not in known:
                raise UserError(
                    f"{self.origin.model_class.__name__} takes no {name!r} here; wanted some of "
                    f"{', '.join(known)}"
                )
        for name in needed:
            if name not in given:
                raise UserError(f"{self.origin.model_class.__name__} needs {name!r}")
        masks = {
            name: to_bool_mask(name, given.get(name), given.get(of))
            for name, of in (
                ("attention_mask", "input_ids"),
                ("decoder_attention_mask", "decoder_input_ids"),
            )
        }
        if "position_ids" in given:
            given["position_ids"] = self._expand_positions(given, inputs.get("use_cache"))
        return self._run_model(given, masks)

    def _expand_positions(self, inputs: dict[str, Tensor], use_cache: bool | None) -> Tensor:
        """Positions of every sequence; those that transformers takes for packed are refused."""
        places = inputs["position_ids"]
        cached = getattr(self.origin.config, "use_cache", True) if use_cache is None else use_cache
        jumps = places.shape[-1] > 1 and bool((places.diff(dim=-1) != 1).any())
        if jumps and not cached and "attention_mask" not in inputs and self.config.kind == "lm":
            raise UserError(
                "position_ids that do not rise by 1, without a mask and without a cache, are "
                "several packed sequences for transformers, and not understood here; pass an "
                "attention_mask, or one sequence a row"
            )
        return places.expand(inputs["input_ids"].shape)

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
        """The inputs that it understands, and those that it needs."""
        config = self.model.config
        if config.image is not None:
            return ("pixel_values",), ("pixel_values",)
        if config.kind == "seq2seq":
            needed = ("input_ids", "decoder_input_ids")
            return (*needed, "attention_mask", "decoder_attention_mask"), needed
        segments = ("token_type_ids",) if config.types else ()
        return ("input_ids", "attention_mask", "position_ids", *segments), ("input_ids",)

    @torch.no_grad()
    def greedy(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, max_new_tokens: int = 20
    ) -> Tensor:
        """The likeliest token, again and again, as `generate(do_sample=False)` of transformers.

        A decoder returns prompt and continuation, (B, L + new); an encoder-decoder the start token
        and what follows. Prompts are padded on the left.
        """
        if max_new_tokens < 1:
            raise UserError(f"max_new_tokens counts from 1, got {max_new_tokens}")
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
            f"{self.origin.model_class.__name__} writes no tokens; wanted a language model"
        )

    def to_hf(self) -> Any:
        """A model of the same class and config of transformers, with a copy of our weights."""
        source = self.origin
        names = {pair.theirs for pair in source.pairs}
        made = source.model_class(copy.deepcopy(source.config))
        if names != set(made.state_dict()):  # what the config does not say
            made = source.model_class(copy.deepcopy(source.config), add_pooling_layer=False)
        state = dict(made.state_dict())
        family, form = find_family(source.config.model_type, source.model_class.__name__)
        carrier = WeightMapper(family, form, f"{made.base_model_prefix}.", self.model)
        shapes = {name: value.shape for name, value in state.items()}
        ours = carrier.to_theirs(source.pairs, shapes)
        ours |= {name: value.clone() for name, value in source.unused_tensors.items()}
        parameters = dict(made.named_parameters(remove_duplicate=False))
        known: dict[int, nn.Parameter] = {}
        for name, value in ours.items():
            if name in parameters:  # the same object for all names of a tied tensor
                ours[name] = known.setdefault(id(value), nn.Parameter(value))
        made.load_state_dict(state | ours, assign=True)
        if source.generation_config is not None:
            made.generation_config = copy.deepcopy(source.generation_config)
        return made.train(self.training)


def _read_config(hf_model: Any) -> tuple[ConfigReader, Family, HeadVariant]:
    transformers = transformers_library()
    if not isinstance(hf_model, transformers.PreTrainedModel):
        raise UserError(
            f"wanted a model of transformers, got {type(hf_model).__name__}; build one from a "
            "config, or load it with transformers first"
        )
    name, config = type(hf_model).__name__, hf_model.config
    if not type(hf_model).__module__.startswith("transformers."):
        raise UserError(
            f"{name} is a class of {type(hf_model).__module__}, not of transformers, and may do "
            "anything; nothing was loaded"
        )
    family, form = find_family(config.model_type, name)
    declared = type(config)().to_dict()
    return ConfigReader(name, config.to_dict(), dict(hf_model.state_dict()), declared), family, form


def _build_config(family: Family, variant: HeadVariant, reader: ConfigReader) -> Config:
    try:
        values = {"kind": variant.kind} | family.read(reader) | variant.read(reader)
    except (TypeError, AttributeError):
        reader.finish(
            all_read=False
        )  # a field is missing or of a strange type, and that has been noted
        raise
    reader.finish()
    return Config.from_kwargs(**values)
