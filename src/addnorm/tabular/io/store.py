"""Saving and loading of estimators without pickle.

A folder contains `estimator.json` (parameters, encoder, target; see `schema.py`) and
`model.safetensors` (weights and reference rows). Loading executes no code of the file, and checks
all sizes before it allocates a model.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from sklearn.base import ClassifierMixin
from torch import Tensor

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.files import atomic_write, read_json_and_files, to_checked_json
from addnorm.models.tabular import TableBatch, TableConfig, TableModel, build_table_model
from addnorm.tabular.bagged_model import join_networks
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.inspection.importance import Importances
from addnorm.tabular.inspection.intervals import IntervalScores
from addnorm.tabular.io.schema import CLASS_DTYPE_KINDS, FORMAT, VERSION, SavedEstimator
from addnorm.tabular.params import (
    make_model_config,
    make_training_config,
    resolve_threads,
    to_python_scalar,
)
from addnorm.tabular.training.regression_targets import target_from_json
from addnorm.tabular.training.targets import ClassTarget

FILE, WEIGHTS = "estimator.json", "model.safetensors"
DICT_PARAMS = ("class_weight", "column_types")
"""Parameters that may be dicts; stored as pairs, because JSON keys are strings."""
MAX_CHECKED_DEPTH = 64
"""Largest depth of the model that is built on the meta device to check parameters."""


def module_bytes(module: TableModel, reference: TableBatch) -> bytes:
    """Serialize weights and reference rows as safetensors."""
    tensors = {f"module.{name}": value for name, value in module.state_dict().items()}
    tensors |= {
        f"reference.{name}": value
        for name, value in zip(TableBatch._fields, reference, strict=True)
    }
    return save({name: value.cpu().contiguous() for name, value in tensors.items()})


def module_from_bytes(
    data: bytes, config: TableConfig, *, averages_classes: bool = False
) -> tuple[Any, TableBatch]:
    """Rebuild the model and the reference rows from the output of `module_bytes`.

    averages_classes: whether several networks (bagging) predict classes
    """
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise UserError(f"the weights are damaged ({error})") from None
    fields = [tensors.pop(f"reference.{name}", None) for name in TableBatch._fields]
    unknown = [name for name in tensors if not name.startswith("module.")]
    if unknown or any(field is None for field in fields):
        raise UserError(
            "expected the weights of an estimator, got "
            f"{', '.join(unknown) if unknown else 'no reference rows'}"
        )
    weights = {name.removeprefix("module."): value for name, value in tensors.items()}
    reference = TableBatch(*(field for field in fields if field is not None))
    modules = []
    for each in _split_networks(weights):
        _check_shapes(each, reference, config)
        with torch.random.fork_rng(devices=[]):  # the initial weights are overwritten
            module = build_table_model(config)
        try:
            module.load_state_dict(each)
        except RuntimeError as error:
            raise _mismatch_error(" ".join(str(error).split())) from None
        modules.append(module)
    joined = join_networks(modules, averages_classes=averages_classes)
    return joined.eval(), reference


def _split_networks(weights: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the weights of each network: those of a bag are named `models.NUMBER.`."""
    if not any(name.startswith("models.") for name in weights):
        return [weights]
    networks = dict[str, dict[str, Tensor]]()
    for name, value in weights.items():
        prefix, _, rest = name.removeprefix("models.").partition(".")
        networks.setdefault(prefix, {})[rest] = value
    if set(networks) != {str(number) for number in range(len(networks))}:
        raise _mismatch_error(f"expected networks from 0 on, got {', '.join(sorted(networks))}")
    return [networks[str(number)] for number in range(len(networks))]


def _check_shapes(weights: dict[str, Tensor], reference: TableBatch, config: TableConfig) -> None:
    """Raise `UserError` if weights do not fit a config, before a model of its size is allocated."""
    if config.depth > len(weights):
        raise _mismatch_error(f"expected {config.depth} layers, got {len(weights)} tensors")
    columns = config.numbers, config.numbers, len(config.categories)
    shapes = [tuple(field.shape[:2]) for field in reference]
    rows = reference.num_rows if reference.numbers.ndim else 0
    if shapes != [(rows, each) for each in (*columns, len(config.texts))] or not rows:
        raise _mismatch_error("expected reference rows with the columns of the model")
    try:
        with torch.device("meta"):
            state = build_table_model(config).state_dict()
    except (RuntimeError, OverflowError, MemoryError) as error:  # sizes beyond all limits
        raise _mismatch_error(" ".join(str(error).split())) from None
    names = {*state, *weights}
    for name in sorted(each for each in names if not each.endswith("_extra_state")):
        expected, got = (
            list(each[name].shape) if name in each else None for each in (state, weights)
        )
        if expected != got:
            raise _mismatch_error(f"expected {name} of shape {expected}, got {got}")


def _mismatch_error(reason: str) -> UserError:
    return UserError(f"the weights do not match the model config: {reason}")


def describe_estimator(estimator: Any) -> dict[str, Any]:
    """Return everything of a fitted estimator but its weights, as JSON data."""
    target, scores = estimator.target_, getattr(estimator, "interval_scores_", None)
    return {
        "format": FORMAT,
        "version": VERSION,
        "estimator": type(estimator).__name__,
        "params": _params_to_json(estimator.get_params(deep=False)),
        "config": estimator.module_.config.model_dump(),
        "encoder": estimator.encoder_.to_json(),
        "target": None if isinstance(target, ClassTarget) else target.to_json(),
        "classes": _classes_to_json(getattr(estimator, "classes_", None)),
        "temperature": getattr(estimator, "temperature_", None),
        "interval_scores": None if scores is None else scores.scores.tolist(),
        "history": estimator.history_,
        "importances": _importance_means(estimator),
        "importance_deviations": estimator.importances_.std.tolist(),
        "names": _feature_names(estimator),
        "features": estimator.n_features_in_,
    }


def save_estimator(
    estimator: Any, folder: str | Path, *, files: Mapping[str, str] | None = None
) -> None:
    """Write a fitted estimator to a folder.

    Args:
        estimator: the estimator
        folder: the folder
        files: checksums of further files in the folder, by name
    """
    data = module_bytes(estimator.module_, estimator.reference_)
    contents = describe_estimator(estimator) | {"weights": sha256(data).hexdigest()}
    folder = Path(folder)
    try:
        with atomic_write(folder / WEIGHTS) as weights:
            weights.write_bytes(data)
        with atomic_write(folder / FILE) as file:
            file.write_bytes(to_checked_json(contents, files or {}))
    except OSError as error:
        raise UserError(
            f"cannot write to {folder} ({error.strerror or error}); choose another folder"
        ) from None


def load_estimator(folder: str | Path, known: dict[str, type]) -> Any:
    """Load an estimator from a folder.

    Args:
        folder: folder that `save_estimator` wrote
        known: estimator classes by name

    Raises:
        UserError: if a file is missing, damaged, or has unknown or inconsistent fields
    """
    path = Path(folder) / FILE
    if not path.is_file():
        raise UserError(f"expected a folder with {FILE}, as written by save(), got {folder}")
    data, _ = read_json_and_files(path, nonfinite=True, verify=False)
    estimator, saved, config = restore_estimator(data, path, known)
    weights_path = Path(folder) / WEIGHTS
    if not weights_path.is_file():
        raise UserError(f"expected a weights file, got nothing at {weights_path}")
    weights = weights_path.read_bytes()
    if sha256(weights).hexdigest() != saved.weights:
        raise UserError(
            f"{weights_path} is damaged or belongs to another {FILE}: the checksum differs"
        )
    with _error_context(weights_path):
        estimator.module_, estimator.reference_ = module_from_bytes(
            weights, config, averages_classes=saved.classes is not None
        )
    # Last, because the errors above say which field is wrong.
    edit_hint = 'or delete the "checksum" to accept an edit'
    read_json_and_files(path, nonfinite=True, hint="save the estimator again", edit_hint=edit_hint)
    estimator._n_features_out = estimator.module_.width
    return estimator


def restore_estimator(
    data: Any, path: Path, known: dict[str, type]
) -> tuple[Any, SavedEstimator, TableConfig]:
    """Build an estimator without its network from the result of `describe_estimator`.

    Args:
        data: the data, with the checksum of the weights under `weights`
        path: the file that it comes from, for error messages
        known: estimator classes by name

    Returns:
        The estimator, the validated data, and the config of its network.
    """
    saved = SavedEstimator.from_json(data, path, known)
    estimator = _restore_params(saved, path, known)
    with _error_context(path):
        config = TableConfig(**_lists_to_tuples(saved.config))
    estimator.encoder_ = TableEncoder.from_json(data["encoder"])
    if saved.classes is not None and saved.temperature is not None:
        estimator.classes_ = np.array(saved.classes.values, saved.classes.dtype)
        estimator.target_ = ClassTarget(len(estimator.classes_))
        estimator.temperature_ = saved.temperature
    else:
        estimator.target_ = target_from_json(data["target"])
        estimator.interval_scores_ = IntervalScores.from_json(saved.interval_scores)
    layout = estimator.encoder_.layout | {"outputs": estimator.target_.outputs}
    if any(getattr(config, name) != value for name, value in layout.items()):
        raise UserError(f"{path} is damaged: config does not match the columns and the target")
    with _error_context(path):
        _check_params(estimator, layout)
    importances = np.array(saved.importances, float)
    deviations = np.array(saved.importance_deviations or np.zeros(len(importances)), float)
    estimator.importances_ = Importances(importances, deviations)
    estimator.history_, estimator.n_features_in_ = data["history"], saved.features
    if saved.names is not None:
        estimator.feature_names_in_ = np.array(saved.names, dtype=object)
    return estimator, saved, config


def _restore_params(saved: SavedEstimator, path: Path, known: dict[str, type]) -> Any:
    """Build an unfitted estimator with the saved parameters."""
    estimator = known[saved.estimator]()
    if isinstance(estimator, ClassifierMixin) != (saved.classes is not None):
        raise UserError(f"{path} is damaged: {saved.estimator} with the target of another class")
    params = estimator.get_params(deep=False)
    for name in saved.params:
        if name not in params:
            raise UserError(f"{path}: {unknown_name_message('parameter', name, params)}")
    return estimator.set_params(
        **{name: _pairs_to_dict(name, value) for name, value in saved.params.items()}
    )


@contextmanager
def _error_context(path: Path) -> Iterator[None]:
    """Prefix the messages of `UserError` with a file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _check_params(estimator: Any, layout: dict[str, Any]) -> None:
    """Raise `UserError` for parameters that `fit` would reject."""
    config = make_model_config(estimator, estimator.encoder_, layout["outputs"])
    make_training_config(estimator, 1, model=config, seed=0)
    resolve_threads(estimator)
    with torch.device("meta"):
        build_table_model(config.model_copy(update={"depth": min(config.depth, MAX_CHECKED_DEPTH)}))


def _importance_means(estimator: Any) -> list[float]:
    _ = estimator.feature_importances_  # computes them
    means: list[float] = estimator.importances_.mean.tolist()
    return means


def _feature_names(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _params_to_json(params: dict[str, Any]) -> dict[str, Any]:
    converted = {}
    for name, value in params.items():
        if name in DICT_PARAMS and isinstance(value, dict):
            value = [[to_python_scalar(key), to_python_scalar(each)] for key, each in value.items()]
        converted[name] = to_python_scalar(value)
        try:
            json.dumps(converted[name])
        except TypeError:
            raise UserError(
                f"{name}: expected a number, a string or None to save, got {value!r}; call "
                f"set_params({name}=None) before save()"
            ) from None
    return converted


def _pairs_to_dict(name: str, value: Any) -> Any:
    try:
        return dict(value) if name in DICT_PARAMS and type(value) is list else value
    except (TypeError, ValueError):
        raise UserError(f"{name}: expected pairs, got {value!r}") from None


def _classes_to_json(classes: np.ndarray | None) -> dict[str, Any] | None:
    if classes is None:
        return None
    if classes.dtype.kind not in CLASS_DTYPE_KINDS or not all(
        isinstance(each, str | int | float | bool) for each in classes.tolist()
    ):
        raise UserError(f"classes: expected strings or numbers to save, got type {classes.dtype}")
    return {"dtype": str(classes.dtype), "values": classes.tolist()}


def _lists_to_tuples(config: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(each) if type(each) is list else each for name, each in config.items()}
