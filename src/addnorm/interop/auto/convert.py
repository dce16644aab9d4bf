"""Conversion of addnorm models and runs to models of transformers."""

import math
from pathlib import Path
from typing import Any

from addnorm.core.errors import UserError
from addnorm.data.tokenizer import START
from addnorm.interop.auto.base import AddnormGenerativeModel, AddnormPreTrainedModel
from addnorm.interop.auto.config import AddnormConfig
from addnorm.interop.auto.folder import write_extra_files
from addnorm.interop.auto.models import MODEL_CLASSES, AddnormForImageClassification
from addnorm.interop.auto.tokenizer import to_hf_tokenizer
from addnorm.models import Model
from addnorm.models.check_config import check_matches_config
from addnorm.train import TrainedRun
from addnorm.train.run_folder import CONFIG as RUN_CONFIG
from addnorm.train.run_folder import read_arrangement, read_run_rows


def to_hf(model: Model, **options: Any) -> AddnormPreTrainedModel:
    """Return an addnorm model as a model of transformers, with the same weights, not a copy.

    Args:
        model: language model, masked language model, encoder-decoder or classifier with classes
        **options: attributes of the config, such as eos_token_id or id2label

    Raises:
        UserError: the kind has no class in transformers, or parts of the model were replaced

    >>> from addnorm.models import build
    >>> model = to_hf(build(kind="lm", vocab=50, dim=16, depth=2, heads=2, wiring="b2t"))
    >>> type(model).__name__, model.config.model["wiring"]
    ('AddnormForCausalLM', 'b2t')
    """
    if not isinstance(model, Model):
        raise UserError(f"model: expected an addnorm model, got {type(model).__name__}")
    check_matches_config(model)
    model_class = find_model_class(model)
    return model_class(AddnormConfig(model.config, **options), model).train(model.training)


def find_model_class(model: Model) -> type[AddnormPreTrainedModel]:
    """Return the class of transformers for an addnorm model."""
    config = model.config
    if config.pooling == "none":
        raise UserError(
            "model: expected pooling cls or mean for AddnormForSequenceClassification, got none; "
            "use model.save(folder)"
        )
    if config.image is not None and config.classes is not None:
        return AddnormForImageClassification
    for model_class in MODEL_CLASSES:
        if model_class.kind == config.kind and (config.classes or config.kind != "classifier"):
            return model_class
    kinds = ", ".join(dict.fromkeys(each.kind for each in MODEL_CLASSES))
    raise UserError(
        f"model: expected one of the kinds {kinds} with a head, got {config.kind}"
        f"{'' if config.kind != 'classifier' else ' without classes'}; use model.save(folder)"
    )


def run_to_hf(run: TrainedRun) -> AddnormPreTrainedModel:
    """Return the model of a run as a model of transformers, with its labels and special tokens."""
    options: dict[str, Any] = {}
    if run.labels:
        options["id2label"] = dict(enumerate(run.labels))
        options["label2id"] = {label: number for number, label in enumerate(run.labels)}
    if run.model.config.kind == "lm":
        options["eos_token_id"] = START  # in training, the start of the next text ends a text
    model = to_hf(run.model, **options)
    if isinstance(model, AddnormGenerativeModel):
        model.generation_config.max_new_tokens = run.recipe.max_length
    return model


def save_hf(what: Model | TrainedRun | str | Path, folder: str | Path) -> AddnormPreTrainedModel:
    """Save a model, or a run with its tokenizer, data and metrics, as a Hugging Face folder.

    Args:
        what: addnorm model, run, or folder of a run
        folder: output folder, which can be pushed to the Hub

    Returns:
        The model of transformers that was saved.
    """
    if isinstance(what, Model):
        model = to_hf(what)
        model.save_pretrained(folder)
        return model
    if (Path(folder) / RUN_CONFIG).exists():
        raise UserError(f"folder: expected another folder than that of a run, got {folder}")
    run = what if isinstance(what, TrainedRun) else TrainedRun.open(what)
    model = run_to_hf(run)
    model.save_pretrained(folder)
    tokenizer = to_hf_tokenizer(
        run.tokenizer, run.model.config.kind, max_length=run.recipe.max_length
    )
    tokenizer.save_pretrained(str(folder))
    write_extra_files(
        run.model,
        Path(folder),
        class_name=type(model).__name__,
        auto_class=type(model).auto_class,
        facts=collect_facts(run),
    )
    return model


def collect_facts(run: TrainedRun) -> dict[str, dict[str, Any]]:
    """Return the sections of a model card about data, training and metrics of a run."""
    facts = read_arrangement(run.folder)
    corpus = facts.get("corpus", {})
    data = {"task": run.task, **corpus.get("about", {})}
    data |= {f"records, {split}": count for split, count in corpus.get("counts", {}).items()}
    recipe = run.recipe.to_flat_dict()
    names = ("optimizer", "schedule", "lr", "batch_tokens", "seed")
    training = {"step": run.step} | {name: recipe[name] for name in names if name in recipe}
    metrics = {
        f"{row['name']}, validation": row["value"]
        for row in read_run_rows(run.folder)
        if row.get("split") == "valid" and row.get("step") == run.step
    }
    sections = {"Data": data, "Training": training, "Metrics": metrics}
    return {
        title: {name: value for name, value in entries.items() if not _is_nan(value)}
        for title, entries in sections.items()
        if entries
    }


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
