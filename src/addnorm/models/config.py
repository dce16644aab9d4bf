"""The config of a model: every choice that its weights do not show, typed and checked."""

import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from addnorm.core.errors import UserError
from addnorm.core.validation import format_validation_error
from addnorm.norms.base import registry as norms
from addnorm.stacks.layer_config import LayerConfig
from addnorm.sublayers.positions import registry as positions
from addnorm.wirings.base import registry as wirings

Count = Annotated[int, Field(ge=1, strict=True)]
Rate = Annotated[float, Field(ge=0, lt=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]

KINDS = ("lm", "prefix_lm", "masked_lm", "seq2seq", "classifier")


class Config(BaseModel):
    """A model in plain data, saved as `config.json` beside its weights.

    >>> config = Config.of(kind="lm", vocab=100, dim=32, depth=2, heads=4)
    >>> config.wiring, config.but(wiring="b2t").wiring
    ('pre_ln', 'b2t')
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Literal["lm", "prefix_lm", "masked_lm", "seq2seq", "classifier"]
    """What it does: which model is built and what its masks are."""
    dim: Count
    """Features of the stream."""
    depth: Count
    """Layers; of the decoder, where there are two stacks."""
    heads: Count
    """Attention heads."""
    vocab: Count | None = None
    """Tokens it knows; None where it reads images."""
    source_vocab: Count | None = None
    """Tokens of the source, where it has a table of its own; None shares the table (seq2seq)."""
    encoder_depth: Count | None = None
    """Layers of the encoder; as `depth` if None (seq2seq)."""

    wiring: str = "pre_ln"
    """How sub-layers are joined."""
    norm: str = "layer"
    """The norm that the wiring puts where it wants one."""
    encoder_wiring: str | None = None
    """The encoder's wiring; as `wiring` if None (seq2seq)."""
    encoder_norm: str | None = None
    """The encoder's norm; as `norm` if None (seq2seq)."""

    positions: str = "sinusoid"
    """How a token knows where it stands."""
    table_norm: str = "none"
    """Norm on the rows of the token table, wherever they are used: fixnorm, or none."""
    embed_norm: str = "none"
    """Norm on the embedding, behind the positions."""
    embed_scale: PositiveFloat | Literal["sqrt_dim"] = 1.0
    """Factor on the embedding, before the positions."""
    types: int = Field(0, ge=0)
    """Kinds of segments that are embedded beside the tokens (BERT); 0 for none."""
    tied: bool = True
    """Whether logits are made with the table of the embedding."""
    head_bias: bool = False
    """Whether logits have a bias."""
    head_scale: PositiveFloat | Literal["rsqrt_dim"] = 1.0
    """Factor on what the last matrix reads."""
    head_cap: PositiveFloat | None = None
    """Soft bound c of the logits, c * tanh(logit / c)."""
    head_layer: bool = False
    """Whether a matrix, the activation and a norm stand before the last matrix (masked_lm)."""

    ffn_dim: Count | None = None
    """Hidden features of the feed-forward; the activation's usual share if None."""
    activation: str = "relu"
    """Activation of the feed-forward."""
    kv_heads: Count | None = None
    """Heads of keys and values; as `heads` if None."""
    head_dim: Count | None = None
    """Features of a head; dim / heads if None."""
    qk_norm: str = "none"
    """Query-key norm."""
    bias: bool = True
    """Whether queries, keys and values have biases, and what is None below."""
    out_bias: bool | None = None
    """Whether the attention's output has one."""
    ffn_bias: bool | None = None
    """Whether the feed-forward has them."""
    scale: PositiveFloat | None = None
    """Factor of query . key; 1 / sqrt(head_dim) if None."""
    cap: PositiveFloat | None = None
    """Soft bound of the attention's logits."""
    window: Count | tuple[Count | None, ...] | None = None
    """Tokens that self-attention sees at most; several take turns from layer to layer."""

    classes: Count | None = None
    """Classes that it tells apart; None returns the hidden states (classifier)."""
    pooling: Literal["cls", "mean"] = "cls"
    """What stands for a sequence: its first token, or the mean of the valid ones (classifier)."""
    pooler: bool = False
    """Whether a matrix and an activation stand behind the pooling (BERT)."""
    pooler_activation: Literal["tanh", "relu", "gelu"] = "tanh"
    """The activation there; tanh in BERT, relu in DistilBERT, gelu in ELECTRA."""
    image: Count | None = None
    """Side of an image in pixels; None reads tokens (classifier)."""
    patch: Count | None = None
    """Side of a patch in pixels."""
    channels: Count = 3
    """Colours of a pixel."""
    class_tokens: Count = 1
    """Vectors before the patches; the first stands for the image (DeiT has 2)."""

    dropout: Rate = 0.0
    """Share of the embedding and of every branch dropped in training."""
    attention_dropout: Rate = 0.0
    """Share of attention probabilities dropped in training."""
    activation_dropout: Rate = 0.0
    """Share of the feed-forward's hidden features dropped in training."""

    @classmethod
    def from_kwargs(cls, **values: Any) -> "Config":
        """A config from keywords; mistakes are told in our own words."""
        try:
            return cls(**values)
        except ValidationError as problem:
            raise UserError(format_validation_error(problem, list(cls.model_fields))) from None

    def replace(self, **changes: Any) -> "Config":
        """The same with some fields changed."""
        return Config.from_kwargs(**self.model_dump() | changes)

    @model_validator(mode="after")
    def _check_consistency(self) -> "Config":
        for wiring in (self.wiring, self.encoder_wiring or self.wiring):
            wirings.resolve(wiring)
        for norm in (self.norm, self.encoder_norm or self.norm, self.embed_norm, self.table_norm):
            norms.resolve(norm)
        positions.resolve(self.positions)
        for name, kinds in _FIELD_KINDS.items():
            given = getattr(self, name) != type(self).model_fields[name].default
            if given and self.kind not in kinds:
                raise ValueError(
                    f"{name} is of no use in kind {self.kind!r}, only in {' and '.join(kinds)}; "
                    "leave it out"
                )
        reads_images = self.image is not None or self.patch is not None
        if reads_images == (self.vocab is not None):
            raise ValueError("wanted vocab for tokens, or image and patch for images, not both")
        if reads_images and (not self.image or not self.patch or self.image % self.patch):
            raise ValueError(
                f"image {self.image} cannot be cut into patches of {self.patch}; "
                "wanted both, and a patch that divides the image"
            )
        if self.class_tokens > 1 and not reads_images:
            raise ValueError(f"class_tokens={self.class_tokens} is of no use without images")
        self._reject_unused(reads_images)
        if reads_images and self.image and self.patch:
            tokens = (self.image // self.patch) ** 2 + self.class_tokens
            call = positions.resolve(self.positions)
            usual = (positions.card("learned").options or {})["length"].default
            if call.name == "learned" and call.options.get("length", usual) < tokens:
                raise ValueError(
                    f"{self.positions} is too short: an image of {self.image} with patches of "
                    f"{self.patch} has {tokens} tokens; wanted learned(length={tokens})"
                )
        return self

    def _reject_unused(self, reads_images: bool) -> None:
        """Settings that would change nothing here."""
        pools = self.classes is not None or self.pooler
        for name, idle, why in (
            ("types", reads_images, "an image has no segments"),
            ("embed_scale", reads_images, "an image has no table"),
            ("table_norm", reads_images, "an image has no table"),
            ("channels", not reads_images, "tokens have no colours"),
            ("pooling", not pools, "nothing is pooled without classes or a pooler"),
            ("pooler_activation", not self.pooler, "there is no pooler"),
        ):
            if idle and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is of no use: {why}; leave it out")

    @property
    def embedding_factor(self) -> float:
        """`embed_scale` as a number."""
        return math.sqrt(self.dim) if self.embed_scale == "sqrt_dim" else float(self.embed_scale)

    @property
    def head_factor(self) -> float:
        """`head_scale` as a number."""
        return self.dim**-0.5 if self.head_scale == "rsqrt_dim" else float(self.head_scale)

    @property
    def layer_options(self) -> dict[str, Any]:
        """What goes to the usual sub-layers."""
        return {
            name: getattr(self, name)
            for name in LayerConfig.__dataclass_fields__
            if name in _FIELD_NAMES
        }

    def to_json(self) -> str:
        """What differs from the defaults, as JSON."""
        return json.dumps(self.model_dump(exclude_defaults=True), indent=2) + "\n"

    @classmethod
    def from_json(cls, path: Path) -> "Config":
        """Read a `config.json`."""
        if not path.is_file():
            raise UserError(f"no config at {path}; wanted a folder that a model was saved to")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as problem:
            raise UserError(f"{path} is not JSON ({problem})") from None
        if not isinstance(values, dict):
            raise UserError(f"{path} holds {type(values).__name__}; wanted one object")
        if isinstance(values.get("window"), list):
            values["window"] = tuple(values["window"])
        return cls.from_kwargs(**values)


_FIELD_NAMES = set(Config.model_fields)

# Fields that only some kinds have a use for.
_FIELD_KINDS = {
    "source_vocab": ("seq2seq",),
    "encoder_depth": ("seq2seq",),
    "encoder_wiring": ("seq2seq",),
    "encoder_norm": ("seq2seq",),
    "types": ("masked_lm", "classifier"),
    "head_bias": ("lm", "prefix_lm", "masked_lm", "seq2seq"),
    "head_scale": ("lm", "prefix_lm", "masked_lm", "seq2seq"),
    "head_cap": ("lm", "prefix_lm", "masked_lm", "seq2seq"),
    "channels": ("classifier",),
    "head_layer": ("masked_lm",),
    "classes": ("classifier",),
    "pooling": ("classifier",),
    "pooler": ("classifier",),
    "pooler_activation": ("classifier",),
    "image": ("classifier",),
    "patch": ("classifier",),
    "class_tokens": ("classifier",),
}
