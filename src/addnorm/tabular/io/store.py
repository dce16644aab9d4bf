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

from addnorm.core.errors import UserError, unknown
from addnorm.core.files import replacing
from addnorm.models.tabular import Cells, TableConfig, TableModel, build_table_model
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.io.schema import FORMAT, LABELS, VERSION, Saved
from addnorm.tabular.params import config_of, threads_of, training_of
from addnorm.tabular.params import plain as plain_value
from addnorm.tabular.training.targets import ClassTarget, NumberTarget

FILE, WEIGHTS = "estimator.json", "model.safetensors"
PAIRS = ("class_weight", "column_types")
"""Parameters that may be dicts; JSON would turn their keys into text."""
DEEP = 64
"""Layers of a model at most that is only tried."""


def module_bytes(module: TableModel, reference: Cells) -> bytes:
    """Weights and reference rows as safetensors; weights in float32, as they were trained."""
    tensors = {f"module.{name}": _single(value) for name, value in module.state_dict().items()}
    tensors |= {
        f"reference.{name}": value for name, value in zip(Cells._fields, reference, strict=True)
    }
    return save({name: value.cpu().contiguous() for name, value in tensors.items()})


def module_from(data: bytes, config: TableConfig) -> tuple[TableModel, Cells]:
    """What `module_bytes` wrote."""
    try:
        tensors = load(data)
    except SafetensorError as problem:
        raise UserError(f"the weights are damaged ({problem})") from None
    reference = [tensors.pop(f"reference.{name}", None) for name in Cells._fields]
    strange = [name for name in tensors if not name.startswith("module.")]
    if strange or any(part is None for part in reference):
        raise UserError(f"the weights are not those of an estimator: {strange or 'no reference'}")
    weights = {name.removeprefix("module."): value for name, value in tensors.items()}
    kept = Cells(*(part for part in reference if part is not None))
    _same_shapes(weights, kept, config)
    with torch.random.fork_rng(devices=[]):  # drawn in vain, then overwritten
        module = build_table_model(config)
    try:
        module.load_state_dict(weights)
    except RuntimeError as problem:
        told = " ".join(str(problem).split())
        raise UserError(f"the weights do not fit their model: {told}") from None
    return module.double().eval(), kept


def _same_shapes(weights: dict[str, Tensor], kept: Cells, config: TableConfig) -> None:
    """Refuse weights of another model before any model is built whose size somebody else chose."""
    if config.depth > len(weights):
        raise UserError(f"the weights do not fit their model: they have no {config.depth} layers")
    columns = config.numbers, config.numbers, len(config.categories)
    shapes = [tuple(part.shape[:2]) for part in kept]
    rows = kept.height if kept.numbers.ndim else 0
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
        "params": _plain_params(estimator.get_params(deep=False)),
        "config": estimator.module_.config.model_dump(),
        "encoder": estimator.encoder_.to_plain(),
        "target": target.to_plain() if isinstance(target, NumberTarget) else None,
        "classes": _plain_classes(getattr(estimator, "classes_", None)),
        "temperature": getattr(estimator, "temperature_", None),
        "history": estimator.history_,
        "importances": estimator.feature_importances_.tolist(),
        "names": _names(estimator),
        "features": estimator.n_features_in_,
        "weights": sha256(data).hexdigest(),
    }
    folder = Path(folder)
    try:
        with replacing(folder / FILE) as file, replacing(folder / WEIGHTS) as weights:
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
    saved = Saved.of(plain, path, known)
    made = known[saved.estimator]()
    if isinstance(made, ClassifierMixin) != (saved.classes is not None):
        raise UserError(f"{path} is damaged: {saved.estimator} with the target of another")
    for name in saved.params:
        if name not in made.get_params(deep=False):
            raise UserError(f"{path}: {unknown('parameter', name, made.get_params(deep=False))}")
    made.set_params(**{name: _dict(name, value) for name, value in saved.params.items()})
    with _at(path):
        config = TableConfig.of(**_tuples(saved.config))
    made.encoder_ = TableEncoder.from_plain(plain["encoder"])
    if saved.classes is not None and saved.temperature is not None:
        made.classes_ = np.array(saved.classes.values, saved.classes.dtype)
        made.target_ = ClassTarget(len(made.classes_))
        made.temperature_ = saved.temperature
    else:
        made.target_ = NumberTarget.from_plain(plain["target"])
    layout = made.encoder_.layout | {"outputs": made.target_.outputs}
    if any(getattr(config, name) != value for name, value in layout.items()):
        raise UserError(f"{path} is damaged: the model is not one of these columns and this target")
    with _at(path):
        _sensible(made, layout)
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
    with _at(weights):
        made.module_, made.reference_ = module_from(data, config)
    made._n_features_out = made.module_.width
    return made


@contextmanager
def _at(path: Path) -> Iterator[None]:
    """Mistakes are told with the file they stand in."""
    try:
        yield
    except UserError as problem:
        raise UserError(f"{path}: {problem}") from None


def _sensible(made: Any, layout: dict[str, Any]) -> None:
    """Refuse parameters with which nothing could be fitted."""
    config = config_of(made, made.encoder_, layout["outputs"])
    training_of(made, 1, wiring=config.wiring, seed=0)
    threads_of(made)
    with torch.device("meta"):
        build_table_model(config.model_copy(update={"depth": min(config.depth, DEEP)}))


def _single(value: Tensor) -> Tensor:
    return value.float() if value.dtype == torch.float64 else value


def _names(estimator: Any) -> list[str] | None:
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def _plain_params(params: dict[str, Any]) -> dict[str, Any]:
    plain = {}
    for name, value in params.items():
        if name in PAIRS and isinstance(value, dict):
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


def _dict(name: str, value: Any) -> Any:
    try:
        return dict(value) if name in PAIRS and type(value) is list else value
    except (TypeError, ValueError):
        raise UserError(f"{name} cannot be {value!r}; wanted pairs") from None


def _plain_classes(classes: np.ndarray | None) -> dict[str, Any] | None:
    if classes is None:
        return None
    if classes.dtype.kind not in LABELS or not all(
        isinstance(each, str | int | float | bool) for each in classes.tolist()
    ):
        raise UserError(f"classes of type {classes.dtype} cannot be saved; wanted text or numbers")
    return {"dtype": str(classes.dtype), "values": classes.tolist()}


def _tuples(config: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(each) if type(each) is list else each for name, each in config.items()}
