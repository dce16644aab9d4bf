"""The recipe of a run: data, arrangement, sizes and training, typed, checked, kept as YAML."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from addnorm.core.errors import UserError, closest_names
from addnorm.core.files import atomic_write
from addnorm.core.key_values import load_yaml, parse_key_values
from addnorm.core.validation import format_validation_error
from addnorm.data.batches import Order
from addnorm.data.tokenizer import KINDS as TOKENIZERS
from addnorm.models.config import Config
from addnorm.models.presets import PRESETS
from addnorm.train.optimizers.base import registry as optimizers
from addnorm.train.schedules.base import recommended_schedule
from addnorm.train.schedules.base import registry as schedules

PositiveInt = Annotated[int, Field(ge=1, strict=True)]
NonNegativeInt = Annotated[int, Field(ge=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]

MODELS = {"translate": "seq2seq", "lm": "lm", "classify": "classifier"}

# What the data decide, or what has no place in a text model.
_EXCLUDED_MODEL_FIELDS = {"kind", "vocab", "source_vocab", "types", "classes"}
_EXCLUDED_MODEL_FIELDS |= {"image", "patch", "channels", "class_tokens"}
MODEL_FIELDS = [name for name in Config.model_fields if name not in _EXCLUDED_MODEL_FIELDS]

DEFAULT_MODEL_FIELDS: dict[str, Any] = {
    "dim": 256,
    "depth": 3,
    "heads": 4,
    "dropout": 0.1,
    "embed_scale": "sqrt_dim",  # as in the original, where the table is tied and starts small
}
"""The model where nobody says: small enough for two cores."""


class Recipe(BaseModel):
    """All that decides a run, in plain data; keys of the model stand beside those of the training.

    >>> recipe = Recipe.of({"task": "lm", "data": "corpus", "dim": 64, "wiring": "rezero"})
    >>> recipe.schedule, recipe.model["dim"]
    ('cosine(warmup=0)', 64)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: Literal["translate", "lm", "classify"]
    """What is learnt."""
    data: str
    """Folder of the corpus, made by `addnorm data`."""
    preset: str | None = None
    """A famous model to begin with, such as transformer-base; other keys change single choices."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Choices of the model: wiring, norm, dim, depth, ... Written beside the other keys."""

    tokenizer: str = "bpe"
    """bpe, unigram or char, trained on the corpus; or the path of a tokenizer.json."""
    vocab: PositiveInt = 4000
    """Tokens that the tokenizer may have; small corpora give fewer."""
    max_length: PositiveInt = 128
    """Tokens of the longest sentence; of a block of text in a language model."""
    batch_tokens: PositiveInt = 512
    """Tokens a side in a batch over all processes; with order=length padding is included."""
    order: Order = "length"
    """Which sentences share a batch: those of like length, or any."""
    accumulate: PositiveInt = 1
    """Batches that make one update."""

    steps: PositiveInt = 2400
    """Updates."""
    seed: int = Field(0, ge=0)
    """All chance derives from it."""
    optimizer: str = "adamw"
    """adamw, adam, radam, adafactor or muon, with options: adamw(beta2=0.98)."""
    lr: PositiveFloat = 2e-3
    """The highest learning rate; the schedule gives the share of it."""
    schedule: str = ""
    """none, constant, inverse_sqrt, cosine, wsd, ...; what the wiring recommends if left out."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """Decay of matrices; norms, scales, gates and biases never decay."""
    clip: PositiveFloat | None = 1.0
    """Bound of the gradient's norm."""
    label_smoothing: Fraction | None = None
    """Share of the target spread over all tokens; 0.1 for translate and 0 else, if left out."""
    ema: Fraction = 0.0
    """Decay of a running average of the weights, which is then evaluated; 0 for none."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """bfloat16 computes under autocast; weights stay float32."""
    stream: Literal["float32", "bfloat16"] = "float32"
    """Of the residual stream; bfloat16 takes half the memory and loses digits in deep stacks."""
    compile: bool = False
    """Whether torch.compile is used."""
    recompute: bool = False
    """Whether activations inside sub-layers are computed again rather than kept."""
    device: str = "auto"
    """auto takes CUDA, then MPS, then the CPU."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """How several processes share the work: copies of the model, or shards of it."""

    log_every: PositiveInt = 10
    """Updates between rows of loss, learning rate and speed."""
    monitor_every: NonNegativeInt = 100
    """Updates between looks inside: gradients, stream, attention by site; 0 for none."""
    valid_every: NonNegativeInt = 500
    """Updates between validations; 0 for none."""
    save_every: PositiveInt = 500
    """Updates between checkpoints."""
    keep: Annotated[int, Field(ge=2, strict=True)] = 2
    """Newest checkpoints that are kept, beside the best."""
    patience: NonNegativeInt = 0
    """Validations without progress after which it ends; 0 for never."""
    on_spike: Literal["log", "skip", "rewind"] = "log"
    """What a sudden jump of the loss brings: a row, a skipped update, or the last checkpoint."""
    tensorboard: bool = False
    """Whether rows also go to TensorBoard files (needs the package)."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """A recipe from flat keys; mistakes are told in our own words."""
        own = {name: value for name, value in values.items() if name in _RECIPE_FIELDS}
        model = {name: value for name, value in values.items() if name in MODEL_FIELDS}
        for name in values:
            if name not in own and name not in model:
                close = closest_names(name, [*_RECIPE_FIELDS, *MODEL_FIELDS])
                hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "leave it out"
                raise UserError(f"a recipe has no {name!r}; {hint}")
        try:
            return cls(**own, model=model)
        except ValidationError as problem:
            raise UserError(format_validation_error(problem, _RECIPE_FIELDS)) from None

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, values: Any) -> Any:
        """What hangs on other keys, if it was left out."""
        task, model = values.get("task"), dict(values.get("model") or {})
        if task not in MODELS:
            return values
        if isinstance(model.get("window"), list):
            model["window"] = tuple(model["window"])
        filled = dict(values) | {"model": model}
        if isinstance(filled.get("data"), str):  # a run may be opened from anywhere
            filled["data"] = str(Path(filled["data"]).absolute())
        config = _build_config(values.get("preset"), model, MODELS[task])
        filled["model"] = {name: getattr(config, name) for name in _recorded_fields(config)}
        if filled.get("label_smoothing") is None:
            filled["label_smoothing"] = 0.1 if task == "translate" else 0.0
        wirings = {config.wiring, config.encoder_wiring or config.wiring}
        if filled.get("schedule") in (None, ""):
            filled["schedule"] = recommended_schedule(*sorted(wirings))
        for name, registry in (("schedule", schedules), ("optimizer", optimizers)):
            if isinstance(filled.get(name), str):  # what is no text is refused below
                filled[name] = str(registry.resolve(filled[name]))
        return filled

    @model_validator(mode="after")
    def _check_consistency(self) -> "Recipe":
        schedules.make(self.schedule).check(self.steps)
        if self.max_length > self.batch_tokens:
            raise ValueError(
                f"a batch of {self.batch_tokens} tokens cannot hold a sentence of "
                f"{self.max_length}; wanted batch_tokens of at least max_length"
            )
        if self.stream != "float32" and self.dtype != self.stream:
            raise ValueError(
                f"stream={self.stream} with dtype={self.dtype}: a stream cannot be less precise "
                f"than what it is made of; wanted dtype={self.stream}, too"
            )
        if self.patience and not self.valid_every:
            raise ValueError(
                f"patience={self.patience} without validations waits for nothing; wanted "
                "valid_every of 1 or more, or patience=0"
            )
        if self.tokenizer not in TOKENIZERS and not self.tokenizer.endswith(".json"):
            raise ValueError(
                f"tokenizer cannot be {self.tokenizer!r}; wanted {', '.join(TOKENIZERS)}, or the "
                "path of a tokenizer.json"
            )
        return self

    def build_config(self, *, vocab: int, classes: int | None = None) -> Config:
        """The model's config, when the data are known."""
        extra = {} if classes is None else {"classes": classes}
        return Config.from_kwargs(kind=MODELS[self.task], vocab=vocab, **extra, **self.model)

    def to_flat_dict(self) -> dict[str, Any]:
        """Every key with its value, as it is written."""
        own = self.model_dump(exclude={"model", "preset"})
        model = {name: _tuple_to_list(value) for name, value in self.model.items()}
        return {"task": own.pop("task"), "data": own.pop("data"), **model, **own}

    def to_yaml(self) -> str:
        """Every key with its value, as YAML."""
        return yaml.safe_dump(self.to_flat_dict(), sort_keys=False, allow_unicode=True)

    def save(self, path: Path) -> None:
        """Write `config.yaml`."""
        with atomic_write(path) as name:
            name.write_text(self.to_yaml(), encoding="utf-8")


_RECIPE_FIELDS = [name for name in Recipe.model_fields if name != "model"]


def recipe_keys() -> list[tuple[str, str, str]]:
    """(key, default, what it is) of every key of a recipe, those of the model behind the others."""
    own = [(name, Recipe.model_fields[name], None) for name in _RECIPE_FIELDS if name != "task"]
    model = [
        (name, Config.model_fields[name], DEFAULT_MODEL_FIELDS.get(name)) for name in MODEL_FIELDS
    ]
    return [
        (
            name,
            "" if field.is_required() and usual is None else str(usual or field.default),
            field.description or "",
        )
        for name, field, usual in own + model
    ]


def read_recipe(task: str | None, file: Path | None, overrides: Iterable[str]) -> Recipe:
    """A recipe from a YAML file and `key=value` words, which win."""
    values: dict[str, Any] = {} if file is None else load_yaml(file, "recipe")
    if task is not None and values.get("task", task) != task:
        raise UserError(
            f"{file} is a recipe for {values['task']!r}, wanted one for {task!r}; leave out one"
        )
    values |= parse_key_values(overrides)
    if task is not None:
        values["task"] = task
    if not values.get("data"):
        raise UserError("a recipe needs data; add data=FOLDER, made by `addnorm data`")
    return Recipe.from_dict(values)


def _build_config(preset: str | None, model: dict[str, Any], kind: str) -> Config:
    """The model's choices, checked as far as they can be without the data."""
    data = {"vocab": 1000} | ({"classes": 2} if kind == "classifier" else {})
    if preset is None:
        return Config.from_kwargs(**{"kind": kind} | data | DEFAULT_MODEL_FIELDS | model)
    if not isinstance(preset, str):
        raise UserError(f"preset cannot be {preset!r}; wanted a name, one of {', '.join(PRESETS)}")
    known = PRESETS[preset].config
    if known.kind != kind:
        raise UserError(
            f"preset {preset!r} is a {known.kind}, wanted a {kind} for this task; choose another"
        )
    return known.replace(**data | model)


def _recorded_fields(config: Config) -> list[str]:
    """Fields of the model that a recipe names: those not at their default, and the usual."""
    changed = config.model_dump(exclude_defaults=True)
    always = {"wiring", "norm", *DEFAULT_MODEL_FIELDS}
    return [name for name in MODEL_FIELDS if name in changed or name in always]


def _tuple_to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
