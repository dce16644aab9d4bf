"""Hugging Face models as ours, and back."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.interop.config_reader import Fields
from addnorm.interop.conventions import mask_of, transformers_library
from addnorm.interop.families import (
    encoders,  # noqa: F401 families
    fairseq,  # noqa: F401 families
    fused_qkv,  # noqa: F401 families
    gpt,  # noqa: F401 families
    llama,  # noqa: F401 families
    seq2seq,  # noqa: F401 families
    vision,  # noqa: F401 families
)
from addnorm.interop.family import Family, Form, Places, find
from addnorm.interop.greedy import Tokens, continue_decoder, continue_pair
from addnorm.interop.output import Output
from addnorm.interop.verify import probe
from addnorm.interop.weight_mapping import Carrier, Pair
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
IDLE: dict[str, tuple[bool | None, ...]] = {
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
    read, family, form = _read(hf_model)
    theirs = read.tensors
    if any(value.is_meta for value in theirs.values()):
        raise UserError(f"this {read.name} is on the meta device and has no weights to copy")
    config = _config(family, form, read)
    model = build(config, device="meta")
    carrier = Carrier(family, form, f"{hf_model.base_model_prefix}.", model)
    pairs = carrier.pairs(theirs)
    model.load_state_dict(carrier.ours(pairs, theirs), assign=True, strict=False)
    source = Source(
        kind=type(hf_model),
        config=copy.deepcopy(hf_model.config),
        generation=copy.deepcopy(getattr(hf_model, "generation_config", None)),
        pairs=tuple(pairs),
        spare={
            pair.theirs: theirs[pair.theirs].detach().clone()
            for pair in pairs
            if pair.constant is not None and pair.constant.value == "spare"
        },
    )
    made = HFModel(model, form, family.where(read.values), source, tuple(read.notes))
    probe(hf_model, made)
    return made.train(hf_model.training)


def config_of(hf_model: Any) -> Config:
    """The config that a Hugging Face model has with us; it may be on the meta device."""
    read, family, form = _read(hf_model)
    return _config(family, form, read)


@dataclass(frozen=True)
class Source:
    """Where a model came from, and how it goes back."""

    kind: type
    """The class in transformers."""
    config: Any
    """Its config."""
    generation: Any
    """Its generation config, if any."""
    pairs: tuple[Pair, ...]
    """Tensors of theirs and of ours."""
    spare: Mapping[str, Tensor]
    """Tensors that nothing reads."""


class HFModel(nn.Module):
    """One of our models behind the inputs and outputs of a class of transformers.

    model: ours; config: its config; notes: what is the same only outside of training
    """

    def __init__(
        self, model: Model, form: Form, places: Places, source: Source, notes: Sequence[str]
    ) -> None:
        super().__init__()
        self.model, self.form, self.places, self.source = model, form, places, source
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
        for name, idle in IDLE.items():
            if given.pop(name, None) not in idle:
                raise UserError(f"{name}={inputs[name]!r} is not understood; leave it out")
        known, needed = self._inputs()
        for name in given:
            if name not in known:
                raise UserError(
                    f"{self.source.kind.__name__} takes no {name!r} here; wanted some of "
                    f"{', '.join(known)}"
                )
        for name in needed:
            if name not in given:
                raise UserError(f"{self.source.kind.__name__} needs {name!r}")
        masks = {
            name: mask_of(name, given.get(name), given.get(of))
            for name, of in (
                ("attention_mask", "input_ids"),
                ("decoder_attention_mask", "decoder_input_ids"),
            )
        }
        if "position_ids" in given:
            given["position_ids"] = self._placed(given, inputs.get("use_cache"))
        return self._answer(given, masks)

    def _placed(self, given: dict[str, Tensor], use_cache: bool | None) -> Tensor:
        """Positions of every sequence; those that transformers takes for packed are refused."""
        places = given["position_ids"]
        cached = getattr(self.source.config, "use_cache", True) if use_cache is None else use_cache
        jumps = places.shape[-1] > 1 and bool((places.diff(dim=-1) != 1).any())
        if jumps and not cached and "attention_mask" not in given and self.config.kind == "lm":
            raise UserError(
                "position_ids that do not rise by 1, without a mask and without a cache, are "
                "several packed sequences for transformers, and not understood here; pass an "
                "attention_mask, or one sequence a row"
            )
        return places.expand(given["input_ids"].shape)

    def _answer(self, given: dict[str, Tensor], masks: dict[str, Tensor | None]) -> Output:
        model, mask = self.model, masks["attention_mask"]
        if isinstance(model, Seq2Seq):
            return self._pair(model, given, masks)
        if "pixel_values" in given:
            assert isinstance(model, Classifier)
            return self._classified(model, model.hidden(given["pixel_values"]), None)
        ids = given["input_ids"]
        index = self.places.index(ids, mask, given.get("position_ids"))
        options: dict[str, Any] = {"mask": mask, "position_index": index}
        if isinstance(model, LanguageModel):
            if self.form.answer == "hidden":
                return Output(last_hidden_state=model.hidden(ids, **options))
            return Output(logits=model(ids, **options))
        if "token_type_ids" in given:
            options["type_ids"] = given["token_type_ids"]
        if isinstance(model, MaskedLM):
            return Output(logits=model(ids, **options))
        assert isinstance(model, Classifier)
        return self._classified(model, model.hidden(ids, **options), mask)

    def _classified(self, model: Classifier, hidden: Tensor, mask: Tensor | None) -> Output:
        if self.form.answer == "logits":
            assert model.head is not None
            return Output(logits=model.head(model.pooled(hidden, mask)))
        pooled = None if model.pooler is None else model.pooled(hidden, mask)
        return Output(last_hidden_state=hidden, pooler_output=pooled)

    def _pair(
        self, model: Seq2Seq, given: dict[str, Tensor], masks: dict[str, Tensor | None]
    ) -> Output:
        source, target = given["input_ids"], given["decoder_input_ids"]
        source_mask, target_mask = masks["attention_mask"], masks["decoder_attention_mask"]
        memory = model.encode(
            source,
            source_mask=source_mask,
            position_index=self.places.index(source, source_mask, None),
        )
        hidden = model.hidden(
            target,
            memory,
            source_mask=source_mask,
            target_mask=target_mask,
            position_index=self.places.index(target, target_mask, None),
        )
        if self.form.answer == "hidden":
            return Output(last_hidden_state=hidden, encoder_last_hidden_state=memory)
        logits = model.head(hidden, model.embed)
        return Output(logits=logits, encoder_last_hidden_state=memory)

    def _inputs(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
        mask = mask_of("attention_mask", attention_mask, input_ids)
        tokens = Tokens.of(self.source.generation)
        if self.form.answer == "logits":
            if isinstance(self.model, LanguageModel):
                return continue_decoder(
                    self.model, input_ids, mask, self.places, tokens, max_new_tokens
                )
            if isinstance(self.model, Seq2Seq):
                return continue_pair(
                    self.model, input_ids, mask, self.places, tokens, max_new_tokens
                )
        raise UserError(f"{self.source.kind.__name__} writes no tokens; wanted a language model")

    def to_hf(self) -> Any:
        """A model of the same class and config of transformers, with a copy of our weights."""
        source = self.source
        names = {pair.theirs for pair in source.pairs}
        made = source.kind(copy.deepcopy(source.config))
        if names != set(made.state_dict()):  # what the config does not say
            made = source.kind(copy.deepcopy(source.config), add_pooling_layer=False)
        state = dict(made.state_dict())
        family, form = find(source.config.model_type, source.kind.__name__)
        carrier = Carrier(family, form, f"{made.base_model_prefix}.", self.model)
        shapes = {name: value.shape for name, value in state.items()}
        ours = carrier.theirs(source.pairs, shapes)
        ours |= {name: value.clone() for name, value in source.spare.items()}
        parameters = dict(made.named_parameters(remove_duplicate=False))
        known: dict[int, nn.Parameter] = {}
        for name, value in ours.items():
            if name in parameters:  # the same object for all names of a tied tensor
                ours[name] = known.setdefault(id(value), nn.Parameter(value))
        made.load_state_dict(state | ours, assign=True)
        if source.generation is not None:
            made.generation_config = copy.deepcopy(source.generation)
        return made.train(self.training)


def _read(hf_model: Any) -> tuple[Fields, Family, Form]:
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
    family, form = find(config.model_type, name)
    declared = type(config)().to_dict()
    return Fields(name, config.to_dict(), dict(hf_model.state_dict()), declared), family, form


def _config(family: Family, form: Form, read: Fields) -> Config:
    try:
        values = {"kind": form.kind} | family.read(read) | form.read(read)
    except (TypeError, AttributeError):
        read.finish(whole=False)  # a field is missing or of a strange type, and that has been noted
        raise
    read.finish()
    return Config.of(**values)
