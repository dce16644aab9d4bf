"""Estimators as files: JSON for what was chosen and learned, safetensors for numbers; no pickle."""

import json
from collections.abc import Iterator
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
from addnorm.core.files import atomic_write
from addnorm.models.tabular import TableBatch, TableConfig, TableModel, build_table_model
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.io.schema import CLASS_DTYPE_KINDS, FORMAT, VERSION, SavedEstimator
from addnorm.tabular.params import model_config, resolve_threads, training_config
from addnorm.tabular.params import to_python_scalar as plain_value
from addnorm.tabular.training.targets import ClassTarget, NumberTarget

FILE, WEIGHTS = "estimator.json", "model.safetensors"
DICT_PARAMS = ("class_weight", "column_types")
"""Parameters that may be dicts; JSON would turn their keys into text."""
MAX_CHECKED_DEPTH = 64
"""Layers of a model at most that is only tried."""


def module_bytes(module: TableModel, reference: TableBatch) -> bytes:
    """Weights and reference rows as safetensors; weights in float32, as they were trained."""
    tensors = {f"module.{name}": _to_float32(value) for name, value in module.state_dict().items()}
    tensors |= {
        f"reference.{name}": value
        for name, value in zip(TableBatch._fields, reference, strict=True)
    }
    return save({name: value.cpu().contiguous() for name, value in tensors.items()})


def module_from_bytes(data: bytes, config: TableConfig) -> tuple[TableModel, TableBatch]:
    """What `module_bytes` wrote."""
    try:
        tensors = load(data)
    except SafetensorError as problem:
        raise UserError(f"the weights are damaged ({problem})") from None
    reference = [tensors.pop(f"reference.{name}", None) for name in TableBatch._fields]
    strange = [name for name in tensors if not name.startswith("module.")]
    if strange or any(part is None for part in reference):
        raise UserError(f"the weights are not those of an estimator: {strange or 'no reference'}")
    weights = {name.removeprefix("module."): value for name, value in tensors.items()}
    kept = TableBatch(*(part for part in reference if part is not None))
    _check_shapes(weights, kept, config)
    with torch.random.fork_rng(devices=[]):  # drawn in vain, then overwritten
        module = build_table_model(config)
    try:
        module.load_state_dict(weights)
    except RuntimeError as problem:
        told = " ".join(str(problem).split())
        raise UserError(f"the weights do not fit their model: {told}") from None
    return module.double().eval(), kept


def _check_shapes(weights: dict[str, Tensor], reference: TableBatch, config: TableConfig) -> None:
    """Refuse weights of another model before any model is built whose size somebody else chose."""
    if config.depth > len(weights):
        raise UserError(f"the weights do not fit their model: they have no {config.depth} layers")
    columns = config.numbers, config.numbers, len(config.categories)
    shapes = [tuple(part.shape[:2]) for part in reference]
    rows = reference.num_rows if reference.numbers.ndim else 0
    if shapes != [(rows, each) for each in (*columns, len(config.texts))] or not rows:
        raise UserError("the weights do not fit their model: reference rows have other columns")
    try:
        with torch.device("meta"):
            wanted = build_table_model(config).state_dict()
    except (RuntimeError, OverflowError, MemoryError) as problem:  # numbers beyond all bounds
        told = " ".join(str(problem).split())
        raise UserError(f"the weights do not fit their model: {told}") from None
    names = {*wanted, *weights}
    for name in sorted(each for each in names if not each.endswith("_extra_state")):
        theirs, ours = (
            list(each[name].shape) if name in each else None for each in (weights, wanted)
        )
        if theirs != ours:
            raise UserError(
                f"the weights do not fit their model: {name} is {theirs}, wanted {ours}"
            )


def save_estimator(estimator: Any, folder: str | Path) -> None:
    """Write a fitted estimator to a folder."""
    target = estimator.target_
    data = module_bytes(estimator.module_, estimator.reference_)
    plain = {
        "format": FORMAT,
        "version": VERSION,
        "estimator": type(estimator).__name__,
        "params": _params_to_json(estimator.get_params(deep=False)),
        "config": estimator.module_.config.model_dump(),
        "encoder": estimator.encoder_.to_plain(),
        "target": target.to_json() if isinstance(target, NumberTarget) else None,
        "classes": _classes_to_json(getattr(estimator, "classes_", None)),
        "temperature": getattr(estimator, "temperature_", None),
        "history": estimator.history_,
        "importances": estimator.feature_importances_.tolist(),
        "names": _feature_names(estimator),
        "features": estimator.n_features_in_,
        "weights": sha256(data).hexdigest(),
    }
    folder = Path(folder)
    try:
        with atomic_write(folder / FILE) as file, atomic_write(folder / WEIGHTS) as weights:
            file.write_text(json.dumps(plain, indent=1) + "\n", encoding="ascii")
            weights.write_bytes(data)
    except OSError as problem:
        raise UserError(
            f"cannot write into {folder} ({problem.strerror or problem}); choose another folder"
        ) from None


def load_estimator(folder: str | Path, known: dict[str, type]) -> Any:
    """Read an estimator from a folder; what it does not know is refused."""
    path = Path(folder) / FILE
    if not path.is_file():
        raise UserError(f"no estimator at {folder}: wanted a folder with {FILE}, as save() makes")
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path} is not JSON ({problem})") from None
    saved = SavedEstimator.from_json(plain, path, known)
    made = known[saved.estimator]()
    if isinstance(made, ClassifierMixin) != (saved.classes is not None):
        raise UserError(f"{path} is damaged: {saved.estimator} with the target of another")
    for name in saved.params:
        if name not in made.get_params(deep=False):
            raise UserError(
                f"{path}: {unknown_name_message('parameter', name, made.get_params(deep=False))}"
            )
    made.set_params(**{name: _pairs_to_dict(name, value) for name, value in saved.params.items()})
    with _error_context(path):
        config = TableConfig.from_kwargs(**_lists_to_tuples(saved.config))
    made.encoder_ = TableEncoder.from_json(plain["encoder"])
    if saved.classes is not None and saved.temperature is not None:
        made.classes_ = np.array(saved.classes.values, saved.classes.dtype)
        made.target_ = ClassTarget(len(made.classes_))
        made.temperature_ = saved.temperature
    else:
        made.target_ = NumberTarget.from_json(plain["target"])
    layout = made.encoder_.layout | {"outputs": made.target_.outputs}
    if any(getattr(config, name) != value for name, value in layout.items()):
        raise UserError(f"{path} is damaged: the model is not one of these columns and this target")
    with _error_context(path):
        _check_params(made, layout)
    made.feature_importances_ = np.array(saved.importances, float)
    made.history_, made.n_features_in_ = plain["history"], saved.features
    if saved.names is not None:
        made.feature_names_in_ = np.array(saved.names, dtype=object)
    weights = Path(folder) / WEIGHTS
    if not weights.is_file():
        raise UserError(f"no weights at {weights}")
    data = weights.read_bytes()
    if sha256(data).hexdigest() != saved.weights:
        raise UserError(f"{weights} is damaged, or belongs to another {FILE}: the checksum differs")
    with _error_context(weights):
        made.module_, made.reference_ = module_from_bytes(data, config)
    made._n_features_out = made.module_.width
    return made


@contextmanager
def _error_context(path: Path) -> Iterator[None]:
    """Mistakes are told with the file they stand in."""
    try:
        yield
    except UserError as problem:
        raise UserError(f"{path}: {problem}") from None


def _check_params(estimator: Any, layout: dict[str, Any]) -> None:
    """Refuse parameters with which nothing could be fitted."""
    config = model_config(estimator, estimator.encoder_, layout["outputs"])
    training_config(estimator, 1, wiring=config.wiring, seed=0)
    resolve_threads(estimator)
    with torch.device("meta"):
        build_table_model(config.model_copy(update={"depth": min(config.depth, MAX_CHECKED_DEPTH)}))


def _to_float32(value: Tensor) -> Tensor:
    return value.float() if value.dtype == torch.float64 else value


def _feature_names(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _params_to_json(params: dict[str, Any]) -> dict[str, Any]:
    plain = {}
    for name, value in params.items():
        if name in DICT_PARAMS and isinstance(value, dict):
            value = [[plain_value(key), plain_value(each)] for key, each in value.items()]
        plain[name] = plain_value(value)
        try:
            json.dumps(plain[name])
        except TypeError:
            raise UserError(
                f"{name}={value!r} cannot be saved; wanted a number, a text or None: "
                f"set_params({name}=None) before save()"
            ) from None
    return plain


def _pairs_to_dict(name: str, value: Any) -> Any:
    try:
        return dict(value) if name in DICT_PARAMS and type(value) is list else value
    except (TypeError, ValueError):
        raise UserError(f"{name} cannot be {value!r}; wanted pairs") from None


def _classes_to_json(classes: np.ndarray | None) -> dict[str, Any] | None:
    if classes is None:
        return None
    if classes.dtype.kind not in CLASS_DTYPE_KINDS or not all(
        isinstance(each, str | int | float | bool) for each in classes.tolist()
    ):
        raise UserError(f"classes of type {classes.dtype} cannot be saved; wanted text or numbers")
    return {"dtype": str(classes.dtype), "values": classes.tolist()}


def _lists_to_tuples(config: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(each) if type(each) is list else each for name, each in config.items()}
