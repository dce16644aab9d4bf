"""Recipes that go on training with a model that exists, after a change of its arrangement.

    addnorm train lm start=run rewire="norm=dyt" steps=300 -o run-dyt

The keys of the old run are the defaults of the new one, its tokenizer is kept, and the learning
rate is warmed up again. The rewired model is written to `.start` in the folder of the new run, so
that an interrupted run resumes without a second rewiring.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.core.files import write_json
from addnorm.core.key_values import load_yaml, parse_key_values
from addnorm.data.tokenizer import Tokenizer
from addnorm.models import Config, Model, load
from addnorm.models.build import build_with_weights
from addnorm.rewiring.apply_changes import CHANGES
from addnorm.rewiring.batches import Batch
from addnorm.rewiring.report import RewireReport
from addnorm.rewiring.rewire_model import rewire
from addnorm.rewiring.saved_models import REPORT_FILE
from addnorm.train import TrainedRun
from addnorm.train.recipe import MODEL_FIELDS, Recipe
from addnorm.train.run_folder import CONFIG, START, TOKENIZER

SCHEDULE = "cosine(warmup=0.1)"
"""Default schedule: the moments of the optimizer are new, so the rate is warmed up again."""
RATES = ("dropout", "attention_dropout", "activation_dropout")
"""Fields of a model that may change without a rewiring."""
OWN_KEYS = ("steps", "schedule", "start", "rewire", "data", "tokenizer", "seed")
"""Keys that a run does not take over from the run that it starts from."""
CALIBRATION_BATCHES = 2


def read_start_recipe(
    task: str, file: Path | None, overrides: Iterable[str], out: Path | None
) -> Recipe | None:
    """Return the recipe of a run with the key `start`, and write its first model to the folder.

    Args:
        task: name of the task
        file: YAML file of the recipe, or None
        overrides: `key=value` arguments
        out: folder of the run; None writes nothing

    Returns:
        The recipe; None if there is no key `start`.
    """
    values: dict[str, Any] = {} if file is None else load_yaml(file, "recipe")
    values |= parse_key_values(overrides)
    if values.get("start") is None:
        return None
    start = Path(str(values["start"]))
    run = TrainedRun.open(start, device="cpu") if (start / CONFIG).is_file() else None
    model = load(start) if run is None else run.model
    defaults: dict[str, Any] = {"schedule": SCHEDULE}
    if run is not None:
        old = run.recipe.to_flat_dict()
        defaults |= {k: v for k, v in old.items() if k not in (*MODEL_FIELDS, *OWN_KEYS)}
        defaults |= {"data": old["data"], "tokenizer": str((start / TOKENIZER).absolute())}
    given = {name: values.pop(name) for name in [*values] if name in MODEL_FIELDS}
    merged = defaults | values | {"task": task, "start": str(start.absolute())}
    if not merged.get("data"):
        raise UserError("data: expected a corpus folder, got none; add data=FOLDER")
    config = _start_config(model, given)
    recipe = Recipe.from_dict(merged | _model_keys(config))
    saved = None if out is None else out / START
    if saved is not None and saved.is_dir():
        return Recipe.from_dict(merged | _model_keys(load(saved).config))
    if recipe.rewire is not None:
        model, report = _rewire(model, recipe)
    else:
        report = None
    config = model.config.replace(**{name: getattr(config, name) for name in RATES})
    if saved is not None:
        _save_start(model, config, saved, report)
    return Recipe.from_dict(merged | _model_keys(config))


def _start_config(model: Model, given: dict[str, Any]) -> Config:
    """Return the config of the start model with other rates of dropout."""
    for name, value in given.items():
        if name not in RATES and getattr(model.config, name) != value:
            hint = f"use rewire={name}={value}" if name in CHANGES else f"leave {name} out"
            raise UserError(
                f"{name}: expected {getattr(model.config, name)!r}, as in the model of start, got "
                f"{value!r}; {hint}"
            )
    return model.config.replace(**{k: v for k, v in given.items() if k in RATES})


def _model_keys(config: Config) -> dict[str, Any]:
    default = {name: field.default for name, field in Config.model_fields.items()}
    always = ("dim", "depth", "heads", "embed_scale", "dropout", "wiring", "norm")
    return {
        name: getattr(config, name)
        for name in MODEL_FIELDS
        if name in always or getattr(config, name) != default[name]
    }


def _rewire(model: Model, recipe: Recipe) -> tuple[Model, RewireReport]:
    """Apply the key `rewire`, calibrated on the first batches of the corpus."""
    assert recipe.rewire is not None
    changes = parse_key_values(recipe.rewire.split())
    for name in changes:
        if name not in CHANGES:
            raise UserError(f"rewire: expected {', '.join(CHANGES)}, got {name!r}")
    task = recipe.make_task()
    corpus = task.open_corpus(recipe.data)
    stream = task.make_batches(
        corpus,
        Tokenizer.load(recipe.tokenizer),
        batch_tokens=recipe.batch_tokens,
        max_length=recipe.max_length,
    ).stream()
    batches = []
    for _ in range(CALIBRATION_BATCHES):
        batch, _ = next(stream)
        args, masks = task.model_inputs(*batch.inputs_and_targets)
        batches.append(Batch(args, dict(masks), args))
    return rewire(model.cpu().eval(), calibrate=batches, **changes)


def _save_start(model: Model, config: Config, folder: Path, report: RewireReport | None) -> None:
    if config != model.config:  # only rates of dropout differ, which no tensor depends on
        model = build_with_weights(config, model.state_dict(), source=folder)
    model.save(folder)
    if report is not None:
        write_json(folder / REPORT_FILE, report.to_dict())
