"""The recipe of a run: task, data, model and training as flat keys, stored as YAML."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from addnorm.core.errors import UserError, closest_names, unknown_name_message
from addnorm.core.files import write_yaml
from addnorm.core.key_values import load_yaml, parse_key_values
from addnorm.core.validation import (
    MAX_COUNT,
    NonNegativeInt,
    PositiveInt,
    VocabSize,
    format_validation_error,
)
from addnorm.data.batches import Order
from addnorm.data.tokenizer import KINDS as TOKENIZERS
from addnorm.models.config import Config
from addnorm.models.presets import PRESETS
from addnorm.tasks import TextTask, get_task
from addnorm.tasks import registry as tasks
from addnorm.train.optimizers.base import registry as optimizers
from addnorm.train.schedules.base import recommended_schedule
from addnorm.train.schedules.base import registry as schedules

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]

# Fields that the data decide, or that text models do not have.
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
"""Model defaults of a recipe: small enough for two cores."""


class Recipe(BaseModel):
    """Everything that determines a run, as plain data.

    Keys of the model and of the task are flat keys beside those of the training.

    >>> recipe = Recipe.from_dict({"task": "lm", "data": "corpus", "dim": 64, "wiring": "rezero"})
    >>> recipe.schedule, recipe.model["dim"]
    ('cosine(warmup=0)', 64)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: str
    """Name of the task; `addnorm list tasks` lists them."""
    data: str
    """Corpus folder, written by `addnorm data`."""
    preset: str | None = None
    """Published model to start from, such as transformer-base; other keys change single fields."""
    start: str | None = None
    """Folder of a model or run whose weights training starts from; its keys are the defaults."""
    rewire: str | None = None
    """Changes of the model of `start`, as for `addnorm rewire`: norm=rms wiring=layer_scale ..."""
    model: dict[str, Any] = Field(default_factory=dict)
    """Fields of the model: wiring, norm, dim, depth, ... Flat keys in YAML."""
    task_options: dict[str, Any] = Field(default_factory=dict)
    """Keys of the task, such as mask_rate of mlm. Flat keys in YAML."""

    tokenizer: str = "bpe"
    """bpe, unigram, char or word, trained on the corpus; or the path of a tokenizer.json."""
    vocab: VocabSize = 4000
    """Upper bound of the tokenizer's vocabulary size; small corpora give fewer tokens."""
    max_length: PositiveInt = 128
    """Tokens of the longest sentence, or of a block of text in a language model."""
    batch_tokens: PositiveInt = 512
    """Tokens per side in a batch over all processes; order=length includes padding."""
    order: Order = "length"
    """Sentences that share a batch: those of similar length, or random ones."""
    accumulate: PositiveInt = 1
    """Batches per update."""

    steps: PositiveInt = 2400
    """Number of updates."""
    seed: int = Field(0, ge=0)
    """Seed from which all random draws derive."""
    optimizer: str = "adamw"
    """adamw, adam, radam, adafactor or muon, with options: adamw(beta2=0.98)."""
    lr: PositiveFloat = 2e-3
    """Peak learning rate; the schedule scales it."""
    schedule: str = ""
    """none, constant, inverse_sqrt, cosine, wsd, ...; default: recommended for the wiring."""
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """Weight decay of matrices; norms, scales, gates and biases never decay."""
    clip: PositiveFloat | None = 1.0
    """Upper bound of the gradient norm."""
    label_smoothing: Fraction | None = None
    """Probability mass spread over all tokens; default: that of the task."""
    z_loss: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = 0.0
    """Factor of logsumexp(logits)^2, added to the loss of every token; 1e-4 in PaLM."""
    qk_clip: PositiveFloat | None = None
    """Bound of attention logits (QK-clip): after an update, query and key matrices of heads that
    exceeded it are scaled down; 100 in Kimi K2."""
    ema: Fraction = 0.0
    """Decay of a moving average of the weights, which is then evaluated; 0 disables it."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the arithmetic; bfloat16 computes under autocast."""
    master_weights: bool = True
    """Whether weights and optimizer state stay float32 with dtype=bfloat16; False halves their
    memory and loses small updates."""
    stream: Literal["float32", "bfloat16"] = "float32"
    """Dtype of the residual stream; bfloat16 halves memory and loses precision in deep stacks."""
    compile: bool = False
    """Whether to use torch.compile."""
    recompute: bool = False
    """Whether to recompute activations inside sub-layers instead of storing them."""
    device: str = "auto"
    """Device; auto takes CUDA, then MPS, then the CPU."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Multi-process strategy: replicas of the model (ddp) or shards of it (fsdp)."""
    tensor_parallel: PositiveInt = 1
    """Processes that share the heads and feed-forward features of a replica of the model."""

    log_every: PositiveInt = 10
    """Updates between rows of loss, learning rate and throughput, for the first 20,000 rows; then
    the interval doubles whenever the step number has doubled."""
    monitor_every: NonNegativeInt = 100
    """Updates between measurements of gradients, stream and attention by site, for the first 1,000;
    then the interval doubles whenever the step number has doubled. 0 disables them."""
    valid_every: NonNegativeInt = 500
    """Updates between validations; 0 disables them."""
    save_every: PositiveInt = 500
    """Updates between checkpoints."""
    checkpoints: Literal["full", "sharded"] = "full"
    """Tensors of a checkpoint: whole, written by the first process, or what each process holds."""
    keep: Annotated[int, Field(ge=2, le=MAX_COUNT, strict=True)] = 2
    """Newest checkpoints to keep, beside the best one."""
    patience: NonNegativeInt = 0
    """Validations without improvement after which training stops; 0 disables early stopping."""
    on_spike: Literal["log", "skip", "rewind"] = "log"
    """Response to a jump of the loss: log a row, skip the update, or rewind to a checkpoint."""
    tensorboard: bool = False
    """Whether to write rows to TensorBoard files as well (requires the package)."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Recipe":
        """Return a recipe from flat keys.

        Raises:
            UserError: an unknown key, or an invalid value
        """
        task = values.get("task")
        option_names = _task_option_names(task)
        own: dict[str, Any] = {}
        model: dict[str, Any] = {}
        options: dict[str, Any] = {}
        for name, value in values.items():
            if name in _RECIPE_FIELDS:
                own[name] = value
            elif name in MODEL_FIELDS:
                model[name] = value
            elif name in option_names:
                options[name] = value
            else:
                raise UserError(_unknown_key_message(name, option_names))
        try:
            return cls(**own, model=model, task_options=options)
        except ValidationError as problem:
            raise UserError(format_validation_error(problem, _RECIPE_FIELDS)) from None

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, values: Any) -> Any:
        """Fill in defaults that depend on other keys."""
        task, model = values.get("task"), dict(values.get("model") or {})
        if task not in tasks:
            return values
        definition = get_task(task, values.get("task_options"))
        for name in ("window", "head_sigmoid_cap"):
            if isinstance(model.get(name), list):
                model[name] = tuple(model[name])
        options = {name: getattr(definition, name) for name in _task_option_names(task)}
        filled = dict(values) | {"model": model, "task_options": options}
        if isinstance(filled.get("data"), str):  # a run may be opened from anywhere
            filled["data"] = str(Path(filled["data"]).absolute())
        config = _build_config(values.get("preset"), model, definition.model_kind)
        filled["model"] = {name: getattr(config, name) for name in _recorded_fields(config)}
        if filled.get("label_smoothing") is None:
            filled["label_smoothing"] = definition.label_smoothing
        wirings = {config.wiring, config.encoder_wiring or config.wiring}
        if filled.get("schedule") in (None, ""):
            filled["schedule"] = recommended_schedule(*sorted(wirings))
        for name, registry in (("schedule", schedules), ("optimizer", optimizers)):
            if isinstance(filled.get(name), str):  # other types are refused below
                filled[name] = str(registry.resolve(filled[name]))
        return filled

    @field_validator("task")
    @classmethod
    def _check_task(cls, value: str) -> str:
        if value not in tasks:
            raise ValueError(unknown_name_message("task", value, tasks))
        return value

    @model_validator(mode="after")
    def _check_consistency(self) -> "Recipe":
        schedules.make(self.schedule).check(self.steps)
        if self.rewire is not None and self.start is None:
            raise ValueError("rewire: expected start=FOLDER beside it, got none; add it")
        if self.max_length > self.batch_tokens:
            raise ValueError(
                f"batch_tokens: expected at least max_length={self.max_length}, got "
                f"{self.batch_tokens}; a batch must hold the longest sentence"
            )
        if self.stream != "float32" and self.dtype != self.stream:
            raise ValueError(
                f"dtype: expected {self.stream}, as stream, got {self.dtype}; the stream cannot be "
                "less precise than the sub-layers that add to it"
            )
        if not self.master_weights and self.dtype == "float32":
            raise ValueError(
                "master_weights: expected True with dtype=float32, got False; set dtype=bfloat16"
            )
        if self.qk_clip is not None and (self.compile or self.parallel == "fsdp"):
            raise ValueError(
                "qk_clip: expected compile=False and parallel=ddp, because it reads the logits of "
                "every forward pass and changes whole matrices"
            )
        if self.tensor_parallel > 1 and (self.compile or self.monitor_every or self.qk_clip):
            raise ValueError(
                "tensor_parallel: expected compile=False, monitor_every=0 and no qk_clip beside "
                "it, because a process has only some of the heads"
            )
        if self.patience and not self.valid_every:
            raise ValueError(
                f"valid_every: expected 1 or more with patience={self.patience}, got 0; or set "
                "patience=0"
            )
        if self.tokenizer not in TOKENIZERS and not self.tokenizer.endswith(".json"):
            raise ValueError(
                f"tokenizer: expected {', '.join(TOKENIZERS)} or the path of a tokenizer.json, got "
                f"{self.tokenizer!r}"
            )
        return self

    def make_task(self) -> TextTask:
        """Return the task with its options."""
        return get_task(self.task, self.task_options)

    def build_config(self, *, vocab: int, classes: int | None = None) -> Config:
        """Return the model's config for a vocabulary and a number of classes."""
        data: dict[str, Any] = {"kind": self.make_task().model_kind, "vocab": vocab}
        data |= {} if classes is None else {"classes": classes}
        return Config(**data, **self.model)

    def to_flat_dict(self) -> dict[str, Any]:
        """Return every key with its value, as in YAML."""
        own = self.model_dump(exclude={"model", "task_options", "preset"})
        model = {name: _tuple_to_list(value) for name, value in self.model.items()}
        head = {"task": own.pop("task"), "data": own.pop("data")}
        return head | self.task_options | model | own

    def to_yaml(self) -> str:
        """Return every key with its value as YAML."""
        return yaml.safe_dump(self.to_flat_dict(), sort_keys=False, allow_unicode=True)

    def save(self, path: Path) -> None:
        """Write `config.yaml`."""
        write_yaml(path, self.to_yaml())


_RECIPE_FIELDS = [name for name in Recipe.model_fields if name not in ("model", "task_options")]


def list_recipe_keys(task: str | None = None) -> list[tuple[str, str, str]]:
    """Return (key, default, description) of every recipe key: training, task, model.

    Args:
        task: name of a task, for its keys only; None for those of all tasks
    """
    own = [(name, Recipe.model_fields[name], None) for name in _RECIPE_FIELDS if name != "task"]
    model = [
        (name, Config.model_fields[name], DEFAULT_MODEL_FIELDS.get(name)) for name in MODEL_FIELDS
    ]
    training, fields = (
        [
            (
                name,
                "" if field.is_required() and default is None else str(default or field.default),
                field.description or "",
            )
            for name, field, default in group
        ]
        for group in (own, model)
    )
    names = tasks if task is None else (task,)
    return training + [key for name in names for key in _task_keys(name)] + fields


def _task_keys(task: str) -> list[tuple[str, str, str]]:
    card = tasks.card(task)
    descriptions = dict(card.symbols)
    return [
        (name, str(option.default), f"{descriptions.get(name, '')} ({task})")
        for name, option in (card.options or {}).items()
    ]


def _task_option_names(task: object) -> list[str]:
    return list(tasks.card(str(task)).options or {}) if task in tasks else []


def _unknown_key_message(name: str, option_names: list[str]) -> str:
    owners = [task for task in tasks if name in _task_option_names(task)]
    if owners:
        return f"{name} is a key of task {owners[0]!r} only; leave it out"
    close = closest_names(name, [*_RECIPE_FIELDS, *MODEL_FIELDS, *option_names])
    hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "leave it out"
    return f"a recipe has no {name!r}; {hint}"


def read_recipe(
    task: str | None, file: Path | None, overrides: Iterable[str], *, verify: bool = False
) -> Recipe:
    """Return the recipe of a YAML file and `key=value` arguments, which take precedence.

    Args:
        task: name of the task; None takes that of the file
        file: YAML file, or None
        overrides: `key=value` arguments
        verify: whether the file is that of a run, which must not have changed
    """
    values: dict[str, Any] = {} if file is None else load_yaml(file, "recipe", verify=verify)
    if task is not None and values.get("task", task) != task:
        raise UserError(
            f"{file}: expected a recipe for {task!r}, got one for {values['task']!r}; leave one out"
        )
    values |= parse_key_values(overrides)
    if task is not None:
        values["task"] = task
    if not values.get("data"):
        raise UserError(
            "data: expected a corpus folder, got none; add data=FOLDER, made by `addnorm data`"
        )
    return Recipe.from_dict(values)


def _build_config(preset: str | None, model: dict[str, Any], kind: str) -> Config:
    """Return the model's config, validated as far as possible without the data."""
    data = {"vocab": 1000} | ({"classes": 2} if kind == "classifier" else {})
    if model.get("pooling") == "none":
        raise UserError(
            "pooling: expected cls or mean for a task with one label per text, got none"
        )
    if preset is None:
        return Config(**{"kind": kind} | data | DEFAULT_MODEL_FIELDS | model)
    if not isinstance(preset, str):
        raise UserError(f"preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
    known = PRESETS[preset].config
    if known.kind != kind:
        raise UserError(
            f"preset: expected a {kind} for this task, got {preset!r}, which is a {known.kind}"
        )
    return known.replace(**data | model)


def _recorded_fields(config: Config) -> list[str]:
    """Return the model fields that a recipe stores: common ones and those not at their default."""
    changed = config.model_dump(exclude_defaults=True)
    always = {"wiring", "norm", *DEFAULT_MODEL_FIELDS}
    return [name for name in MODEL_FIELDS if name in changed or name in always]


def _tuple_to_list(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
