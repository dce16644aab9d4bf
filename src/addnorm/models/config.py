"""Config of a model: every setting that is needed to rebuild it, typed and validated."""

import math
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from addnorm.core.errors import UserError
from addnorm.core.files import read_json_and_files
from addnorm.core.registry import MAX_FACTOR
from addnorm.core.validation import (
    MAX_WIDTH,
    Depth,
    FrozenConfig,
    Size,
    VocabSize,
    Width,
)
from addnorm.norms.base import registry as norms
from addnorm.scales import Scale, make_scale
from addnorm.stacks.layer_config import LayerConfig
from addnorm.sublayers.positions import registry as positions
from addnorm.wirings.base import registry as wirings

Rate = Annotated[float, Field(ge=0, lt=1)]
PositiveFloat = Annotated[float, Field(gt=0, le=MAX_FACTOR, allow_inf_nan=False)]

CONFIG_HINT = "restore it"
CONFIG_EDIT_HINT = 'or delete its "checksum" to accept the change'
TRAINING_SETTINGS = {
    *("use_cache", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"),
}
"""Attributes of `Config` that trainers of other libraries set; not fields, neither saved nor
compared."""
KINDS = ("lm", "prefix_lm", "masked_lm", "seq2seq", "classifier")


class Config(FrozenConfig):
    """Settings of a model, saved as `config.json` beside its weights.

    >>> config = Config(kind="lm", vocab=100, dim=32, depth=2, heads=4)
    >>> config.wiring, config.replace(wiring="b2t").wiring
    ('pre_ln', 'b2t')
    """

    model_type: ClassVar[str] = "addnorm"
    use_cache: ClassVar[bool | None] = None
    pad_token_id: ClassVar[int | None] = 0
    bos_token_id: ClassVar[int | None] = 1
    eos_token_id: ClassVar[int | None] = 2
    decoder_start_token_id: ClassVar[int | None] = 1

    kind: Literal["lm", "prefix_lm", "masked_lm", "seq2seq", "classifier"]
    """Kind of model, which determines its class and its attention masks."""
    dim: Width
    """Width of the residual stream."""
    depth: Depth
    """Number of layers; of the decoder in a seq2seq model."""
    heads: Size
    """Number of attention heads."""
    vocab: VocabSize | None = None
    """Vocabulary size; None for images."""
    source_vocab: VocabSize | None = None
    """Size of a separate source vocabulary; None shares the embedding (seq2seq)."""
    encoder_depth: Depth | None = None
    """Number of encoder layers; `depth` if None (seq2seq)."""

    wiring: str = "pre_ln"
    """Wiring of the sub-layers, as a call string."""
    norm: str = "layer"
    """Norm that the wiring uses, as a call string."""
    scale: str | None = None
    """Rule for another size than that of a base model, as a call string: mup, depth_mup, completep.
    A number is the former form of `attention_scale`."""
    encoder_wiring: str | None = None
    """Wiring of the encoder; `wiring` if None (seq2seq)."""
    encoder_norm: str | None = None
    """Norm of the encoder; `norm` if None (seq2seq)."""

    positions: str = "sinusoid"
    """Position encoding, as a call string."""
    table_norm: str = "none"
    """Norm of the rows of the token embedding, at input and output: fixnorm or none."""
    embed_norm: str = "none"
    """Norm of the embedding, after positions are added."""
    embed_dim: Width | None = None
    """Width of embedding, positions and `embed_norm`, before a linear map to `dim` (ELECTRA); `dim`
    without that map if None (masked_lm with head_layer, classifier of tokens)."""
    embed_scale: PositiveFloat | Literal["sqrt_dim"] = 1.0
    """Factor on the token embedding, before positions are added."""
    types: int = Field(0, ge=0, le=MAX_WIDTH)
    """Number of segment embeddings (BERT); 0 for none."""
    tied: bool = True
    """Whether the output projection shares the token embedding."""
    head_bias: bool = False
    """Whether the output projection has a bias."""
    head_scale: PositiveFloat | Literal["rsqrt_dim"] = 1.0
    """Factor on the input of the output projection."""
    head_cap: PositiveFloat | None = None
    """Soft cap c of the logits, c * tanh(logit / c)."""
    head_sigmoid_cap: tuple[PositiveFloat, float, PositiveFloat] | None = None
    """One-sided soft cap (c, a, b) of the logits, c * sigmoid((logit + a) / b)."""
    logit_scale: bool | None = None
    """Whether each logit has a learned factor (nGPT); if None, for wirings that bound logits."""
    head_layer: bool = False
    """Whether linear layer, activation and norm precede the output projection (masked_lm)."""
    head_activation: str | None = None
    """Activation of `head_layer`; `activation` if None (masked_lm)."""

    ffn_dim: Size | None = None
    """Hidden width of the feed-forward; a multiple of `dim` that fits the activation if None."""
    activation: str = "relu"
    """Activation of the feed-forward."""
    kv_heads: Size | None = None
    """Number of key-value heads; `heads` if None."""
    head_dim: Size | None = None
    """Width of a head; dim / heads if None."""
    qk_norm: str = "none"
    """Query-key norm, as a call string."""
    bias: bool = True
    """Whether the query, key and value projections have biases."""
    out_bias: bool | None = None
    """Whether the attention's output projection has a bias; `bias` if None."""
    ffn_bias: bool | None = None
    """Whether the feed-forward has biases; `bias` if None."""
    attention_scale: PositiveFloat | None = None
    """Factor on query-key products; 1 / sqrt(head_dim) if None."""
    cap: PositiveFloat | None = None
    """Soft cap of the attention logits."""
    window: Size | tuple[Size | None, ...] | None = None
    """Window of self-attention in tokens; a tuple is repeated over the layers."""

    gate: Literal["none", "element", "head"] = "none"
    """Sigmoid gate of the outputs of attention heads."""
    sink: Literal["none", "learned", "off_by_one"] = "none"
    """Addend of the denominator of attention's softmax: learned per head, or 1."""
    exclusive: bool = False
    """Whether self-attention returns nothing along a token's own value."""
    value_residual: Literal["none", "half", "scalar", "token"] = "none"
    """Mixture of the values of self-attention with those of the first layer."""
    value_embed: bool = False
    """Whether every second layer has a table of values per token (lm, prefix_lm)."""
    canon: str = ""
    """Places of Canon layers, letters of ABCD (lm, prefix_lm)."""

    experts: Size | None = None
    """Number of feed-forward networks per layer, of which a router chooses some for every token;
    one network without a router if None."""
    experts_per_token: Size = 2
    """Experts that the router chooses for a token."""
    normalize_routes: bool = True
    """Whether the weights of the chosen experts are divided by their sum."""
    shared_ffn_dim: Size | None = None
    """Hidden width of one more expert, gated, which every token uses; none if None."""

    classes: Size | None = None
    """Number of classes; None returns the hidden states (classifier)."""
    pooling: Literal["cls", "mean", "none"] = "cls"
    """Pooling of a sequence: its first token, the mean of valid tokens, or none, which classifies
    every token (classifier)."""
    pooler: bool = False
    """Whether a linear layer and an activation follow the pooling (BERT)."""
    pooler_activation: Literal["tanh", "relu", "gelu"] = "tanh"
    """Activation of the pooler: tanh in BERT, relu in DistilBERT, gelu in ELECTRA."""
    pooler_norm: str = "none"
    """Norm after the activation of the pooler (ModernBERT)."""
    image: Size | None = None
    """Side of an image in pixels; None for tokens (classifier)."""
    patch: Size | None = None
    """Side of a patch in pixels."""
    channels: Size = 3
    """Number of image channels."""
    class_tokens: Size = 1
    """Number of learned tokens before the patches; the first is pooled (DeiT has 2)."""

    dropout: Rate = 0.0
    """Dropout rate of the embedding and of every residual branch."""
    attention_dropout: Rate = 0.0
    """Dropout rate of attention probabilities."""
    activation_dropout: Rate = 0.0
    """Dropout rate of the feed-forward's hidden features."""

    def replace(self, **changes: Any) -> "Config":
        """Return a copy with some fields changed."""
        return Config(**self.model_dump() | changes)

    @model_validator(mode="before")
    @classmethod
    def _rename_number(cls, values: Any) -> Any:
        """Read a number in `scale` as `attention_scale`, as files of earlier versions have it."""
        number = values.get("scale") if isinstance(values, dict) else None
        if isinstance(number, int | float) and not isinstance(number, bool):
            values = values | {"scale": None, "attention_scale": number}
        return values

    @model_validator(mode="after")
    def _check_consistency(self) -> "Config":
        if self.scale is not None:
            make_scale(self.scale)
        for wiring in (self.wiring, self.encoder_wiring or self.wiring):
            wirings.resolve(wiring)
        own = (self.norm, self.encoder_norm or self.norm, self.embed_norm, self.table_norm)
        for norm in (*own, self.pooler_norm):
            norms.resolve(norm)
        positions.resolve(self.positions)
        for name, kinds in _FIELD_KINDS.items():
            is_set = getattr(self, name) != type(self).model_fields[name].default
            if is_set and self.kind not in kinds:
                raise ValueError(
                    f"{name}: expected kind {' or '.join(kinds)}, got kind {self.kind!r}; leave "
                    f"{name} out"
                )
        reads_images = self.image is not None or self.patch is not None
        if reads_images == (self.vocab is not None):
            raise ValueError(
                "expected either vocab for tokens or image and patch for images, got "
                f"vocab={self.vocab}, image={self.image}, patch={self.patch}"
            )
        if reads_images and (not self.image or not self.patch or self.image % self.patch):
            raise ValueError(
                f"patch: expected a divisor of image, got image={self.image}, patch={self.patch}"
            )
        if self.class_tokens > 1 and not reads_images:
            raise ValueError(
                f"class_tokens: expected 1 for a model without images, got {self.class_tokens}"
            )
        if self.embed_dim is not None and self.kind == "masked_lm" and not self.head_layer:
            raise ValueError(
                "head_layer: expected True with embed_dim, got False; it maps dim to embed_dim"
            )
        if self.scale is not None and self.experts is not None:
            raise ValueError(
                f"scale: expected None for a model with experts, got {self.scale}; the scales have "
                "no rule for routers"
            )
        self._reject_unused(reads_images)
        if reads_images and self.image and self.patch:
            tokens = (self.image // self.patch) ** 2 + self.class_tokens
            call = positions.resolve(self.positions)
            default = (positions.card("learned").options or {})["length"].default
            if call.name == "learned" and call.options.get("length", default) < tokens:
                raise ValueError(
                    f"positions: expected a length of at least {tokens}, the tokens of an image, "
                    f"got {self.positions}; use learned(length={tokens})"
                )
        return self

    def _reject_unused(self, reads_images: bool) -> None:
        """Raise `ValueError` for fields that have no effect on this model."""
        has_pooling = self.classes is not None or self.pooler
        for name, is_unused, reason in (
            ("types", reads_images, "an image has no segments"),
            ("embed_scale", reads_images, "an image has no token embedding"),
            ("embed_dim", reads_images, "an image has no token embedding"),
            ("table_norm", reads_images, "an image has no token embedding"),
            ("channels", not reads_images, "tokens have no channels"),
            ("pooling", not has_pooling, "a model without classes or pooler does not pool"),
            ("pooler_activation", not self.pooler, "the model has no pooler"),
            ("pooler_norm", not self.pooler, "the model has no pooler"),
            ("head_activation", not self.head_layer, "the model has no head_layer"),
            ("experts_per_token", self.experts is None, "the model has no experts"),
            ("normalize_routes", self.experts is None, "the model has no experts"),
            ("shared_ffn_dim", self.experts is None, "the model has no experts"),
        ):
            default = type(self).model_fields[name].default
            if is_unused and getattr(self, name) != default:
                raise ValueError(
                    f"{name}: expected the default because {reason}, got {getattr(self, name)!r}; "
                    f"leave {name} out"
                )

    def __setattr__(self, name: str, value: Any) -> None:
        if name in TRAINING_SETTINGS:
            self.__dict__[name] = value  # beside the fields, which are frozen
        else:
            super().__setattr__(name, value)

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether the model has an encoder and a decoder."""
        return self.kind == "seq2seq"

    def get_text_config(self) -> "Config":
        """Return the config itself; transformers asks for the part that describes text."""
        return self

    @property
    def embedding_width(self) -> int:
        """Number of features of the token embedding."""
        return self.dim if self.embed_dim is None else self.embed_dim

    @property
    def embedding_factor(self) -> float:
        """Value of `embed_scale` as a number; with a scale, that of the base model."""
        is_root = self.embed_scale == "sqrt_dim"
        return math.sqrt(self.base_dim) if is_root else float(self.embed_scale)

    @property
    def head_layer_activation(self) -> str:
        """Name of the activation of `head_layer`."""
        return self.head_activation or self.activation

    @property
    def head_factor(self) -> float:
        """Value of `head_scale` as a number; with a scale, that of the base model over m_N."""
        is_root = self.head_scale == "rsqrt_dim"
        factor = self.base_dim**-0.5 if is_root else float(self.head_scale)
        if self.scale is None or self.embed_dim is not None:  # its input then has a fixed width
            return factor
        return factor * self._rule.output_multiplier(self.dim)

    @property
    def base_dim(self) -> int:
        """Width of the base model of the scale; `dim` without one."""
        return self.dim if self.scale is None else self._rule.base_dim or self.dim

    @property
    def _rule(self) -> Scale:
        assert self.scale is not None
        return make_scale(self.scale)

    @property
    def has_logit_scale(self) -> bool:
        """Whether each logit has a learned factor."""
        if self.logit_scale is not None:
            return self.logit_scale
        call = wirings.resolve(self.wiring)
        while "inner" in call.options:
            call = wirings.resolve(call.options["inner"])
        return wirings.member(call.name).bounds_logits

    @property
    def layer_options(self) -> dict[str, Any]:
        """Fields that `Encoder` and `Decoder` take besides their arguments."""
        return {
            name: getattr(self, name)
            for name in (*LayerConfig.__dataclass_fields__, "attention_scale")
            if name in _FIELD_NAMES
        } | {"value_embed": self.vocab if self.value_embed else None}

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        return self.model_dump(exclude_defaults=True)

    @classmethod
    def from_json(cls, path: Path) -> "Config":
        """Read a `config.json`."""
        if not path.is_file():
            raise UserError(f"expected a folder written by save(), got no config at {path}")
        values, _ = read_json_and_files(path, hint=CONFIG_HINT, edit_hint=CONFIG_EDIT_HINT)
        if not isinstance(values, dict):
            raise UserError(f"{path}: expected a JSON object, got {type(values).__name__}")
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Config":
        """Build a config from JSON data, which stores tuples as lists."""
        lists = ("window", "head_sigmoid_cap")
        return cls(
            **values
            | {name: tuple(values[name]) for name in lists if isinstance(values.get(name), list)}
        )


_FIELD_NAMES = set(Config.model_fields)

# Kinds of models that use a field; fields that are not listed apply to all kinds.
_FIELD_KINDS = {
    "source_vocab": ("seq2seq",),
    "encoder_depth": ("seq2seq",),
    "encoder_wiring": ("seq2seq",),
    "encoder_norm": ("seq2seq",),
    "types": ("masked_lm", "classifier"),
    "embed_dim": ("masked_lm", "classifier"),
    "head_bias": ("lm", "prefix_lm", "masked_lm", "seq2seq"),
    "head_scale": ("lm", "prefix_lm", "masked_lm", "seq2seq"),
    "head_cap": ("lm", "prefix_lm", "masked_lm", "seq2seq"),
    "value_embed": ("lm", "prefix_lm"),
    "canon": ("lm", "prefix_lm"),
    "logit_scale": ("lm", "prefix_lm", "masked_lm", "seq2seq"),
    "head_sigmoid_cap": ("lm", "prefix_lm", "masked_lm", "seq2seq"),
    "channels": ("classifier",),
    "head_layer": ("masked_lm",),
    "head_activation": ("masked_lm",),
    "classes": ("classifier",),
    "pooling": ("classifier",),
    "pooler": ("classifier",),
    "pooler_activation": ("classifier",),
    "pooler_norm": ("classifier",),
    "image": ("classifier",),
    "patch": ("classifier",),
    "class_tokens": ("classifier",),
}
