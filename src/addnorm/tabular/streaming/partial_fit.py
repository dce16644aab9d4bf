"""`partial_fit`: training on one part of a stream after another.

The first part fixes everything that a fit derives from its rows: the types of the columns, their
categories and quantiles, the bins of the numeric embedding, the scale of the target and the
classes. Later parts only train the network, each with one pass in random order.
"""

import time
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import is_classifier
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_y
from typing_extensions import Self

from addnorm.core.errors import UserError
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import TableBatch
from addnorm.tabular.bagged_model import list_networks
from addnorm.tabular.class_weights import class_weights
from addnorm.tabular.columns.cell_warnings import warn_about_cells
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import read_columns
from addnorm.tabular.dataset import (
    MAX_REFERENCE_ROWS,
    CheckedInput,
    FitData,
    reject_empty_columns,
    rescale_weights,
)
from addnorm.tabular.inspection.importance import MAX_ROWS, ImportancePart
from addnorm.tabular.params import (
    make_model_config,
    make_training_config,
    resolve_device,
    resolve_seed,
    resolve_threads,
)
from addnorm.tabular.streaming.network_stream import NetworkStream, shuffled_batches
from addnorm.tabular.training.loop import WeightedBatch, build_model
from addnorm.tabular.training.prediction import predict
from addnorm.tabular.training.targets import (
    ordered_categories,
    rank_classes,
    reject_missing_targets,
    reject_mixed_labels,
)
from addnorm.tabular.training.torch_context import rollback_on_error, torch_context

WARMUP_STEPS = 100
"""Steps over which the learning rate rises; then it is constant, and the weights are averaged."""


class _Stream(NamedTuple):
    """State of a sequence of calls, which pickles and `save` leave out."""

    network: NetworkStream
    module: Any
    """Network that the last call left as `module_`."""
    seed: int


class PartialFitMixin:
    """Adds `partial_fit` to the estimators."""

    history_: list[dict[str, float]]

    @rollback_on_error
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Train on one part of a stream, with one pass over its rows.

        The first call fixes column types, categories, quantiles, bins, the scale of the target and
        the classes, so begin with a part that represents the stream. No rows are held out: the loss
        of each part before it is trained on is in `history_`, probabilities are not calibrated, and
        `feature_importances_` are measured on the last part. After `fit` or `load`, training
        continues from that network, with a new optimizer.

        Args:
            X: table as pandas, polars or Arrow frame, as 2-D array or as sparse matrix
            y: (rows) class labels, or numbers
            classes: all class labels, for the first call; those of `y` if None
            sample_weight: (rows) non-negative weights; rows of weight 0 are ignored
        """
        started, is_first = time.monotonic(), not hasattr(self, "module_")
        _check_stream_params(self)
        inputs, values = _check_part(self, X, y, classes, sample_weight, is_first=is_first)
        device, stream = resolve_device(self), self.__dict__.get("_stream")
        if stream is None or stream.module is not self.__dict__.get("module_"):
            stream = None
        seed = resolve_seed(self) if stream is None else stream.seed
        number = 1 if is_first else len(self.history_) + 1
        self.__dict__.pop("_stream", None)  # an interrupted call must not continue it
        with torch_context(
            threads=resolve_threads(self),
            seed=derive_seed(seed, "partial_fit", number),
            device=device,
        ):
            rows = _encode_part(self, inputs, values, is_first=is_first)
            network = _start(self, rows, seed, device) if stream is None else stream.network
            row: dict[str, float] = {"epoch": number}
            if not is_first:
                row["valid"] = _mean_loss(self, rows)
            total = torch.zeros(2, dtype=torch.float64, device=device)
            on_device, size = rows.to(device), network.config.batch_size
            mean_weight = float(rows.weights.mean())
            for batch in shuffled_batches(on_device, size, seed=seed, number=number):
                factor = min(1.0, (network.steps + 1) / WARMUP_STEPS)
                total += network.step(batch, mean_weight=mean_weight, factor=factor)
            row["train"] = float(total[0] / total[1])
            if not np.isfinite(row["train"]):
                raise UserError(
                    f"lr: expected a finite training loss, got {row['train']} at "
                    f"lr={network.config.lr}; try a tenth of it"
                )
            _publish(self, network, rows)
        row |= {"lr": network.lr, "seconds": time.monotonic() - started}
        self.history_ = [*([] if is_first else self.history_), row]
        self._stream = _Stream(network, self.__dict__["module_"], seed)
        return self

    def __getstate__(self) -> dict[str, Any]:
        inherited: Any = super().__getstate__()
        return {name: value for name, value in inherited.items() if name != "_stream"}


def _check_stream_params(estimator: Any) -> None:
    for name in ("bagging", "validation_split"):
        if getattr(estimator, name) is not None:
            raise UserError(f"{name}: expected None for partial_fit, which holds out no rows")
    if getattr(estimator, "class_weight", None) == "balanced":
        raise UserError(
            "class_weight: expected a dict or None for partial_fit, got 'balanced', which needs "
            "the frequencies of the whole stream"
        )
    if hasattr(estimator, "module_") and len(list_networks(estimator.module_)) > 1:
        raise UserError("partial_fit: expected a fit of one network, got one with bagging")


def _check_part(
    estimator: Any, X: Any, y: Any, classes: Any, weights: Any, *, is_first: bool
) -> tuple[CheckedInput, np.ndarray]:
    """Return the checked rows of positive weight and their target as codes or numbers."""
    reject_missing_targets(y)
    if not is_classifier(estimator):
        if classes is not None:
            raise UserError("classes: expected None for a regressor")
        y = _check_y(y, multi_output=True, y_numeric=True, estimator=estimator)
        inputs = estimator._check_input(X, y, weights, reset=is_first)
        values = np.asarray(y, dtype=np.float64)
    else:
        categories = ordered_categories(y)
        y = _check_y(y, estimator=estimator)
        reject_mixed_labels(y)
        check_classification_targets(y)
        inputs = estimator._check_input(X, y, weights, reset=is_first)
        if is_first:
            labels = np.unique(y if classes is None else np.asarray(classes))
            set_classes(estimator, labels, categories)
        elif classes is not None and set(classes) != set(estimator.classes_.tolist()):
            raise UserError(
                f"classes: expected those of the first call, {estimator.classes_.tolist()[:20]}, "
                f"got {list(classes)[:20]}"
            )
        values = encode_labels(estimator, y)
        if estimator.class_weight is not None:
            factors = class_weights(estimator.class_weight, y, inputs.weights)
            inputs = inputs._replace(weights=inputs.weights * factors)
    positive = inputs.weights > 0
    if not positive.any():
        raise UserError("sample_weight: expected a positive weight in every part, got none")
    return inputs.drop_zero_weights(), values[positive]


def set_classes(estimator: Any, classes: np.ndarray, order: list[Any] | None = None) -> None:
    """Set the sorted classes of a classifier.

    Args:
        estimator: the classifier
        classes: sorted labels
        order: labels from the lowest class to the highest, for the ordinal loss of texts
    """
    if len(classes) < 2:
        raise UserError(
            f"{type(estimator).__name__} needs samples of at least 2 classes in the data, but the "
            f"data contains only one class: {classes.tolist()[0]!r}; pass all of them as classes"
        )
    estimator.classes_, estimator.temperature_ = classes, 1.0
    is_ordinal = estimator.loss == "ordinal"
    estimator._class_order = rank_classes(classes, order) if is_ordinal else None


def encode_labels(estimator: Any, y: np.ndarray) -> np.ndarray:
    """Return the codes of class labels; raise `UserError` for a label that is no class."""
    unknown = sorted({*y.tolist()} - {*estimator.classes_.tolist()}, key=str)
    if unknown:
        raise UserError(
            f"y: expected the classes of the first part, {estimator.classes_.tolist()[:20]}, got "
            f"{unknown[0]!r}; pass all of them as classes in the first call"
        )
    return np.searchsorted(estimator.classes_, y)


def _encode_part(
    estimator: Any, inputs: CheckedInput, y: np.ndarray, *, is_first: bool
) -> WeightedBatch:
    """Encode a part; the first one fits the encoder and the target."""
    weights = rescale_weights(inputs.weights)
    if is_first:
        pretrained = getattr(estimator, "pretrained_", None)
        if pretrained is None:
            columns = read_columns(inputs.X, estimator.column_types)
            reject_empty_columns(columns, estimator.column_types)
            warn_about_cells(columns)
            estimator.encoder_ = TableEncoder.from_columns(columns, weights)
        else:
            estimator.encoder_ = pretrained.encoder
        estimator.target_ = estimator._target(y, weights)
    cells = estimator.encoder_.encode(inputs.X)
    return WeightedBatch(cells, estimator.target_.encode(y), torch.from_numpy(weights))


def _start(estimator: Any, rows: WeightedBatch, seed: int, device: torch.device) -> NetworkStream:
    """Build the network of the first part, or continue from that of an earlier fit."""
    config = make_model_config(estimator, estimator.encoder_, estimator.target_.outputs)
    training = make_training_config(estimator, len(rows.weights), model=config, seed=seed)
    if hasattr(estimator, "module_"):
        (module,) = list_networks(estimator.module_)
        with torch.random.fork_rng(devices=[]):
            model = type(module)(module.config)
        model.load_state_dict(module.state_dict())
    else:
        model = build_model(
            config,
            rows,
            target=estimator.target_,
            seed=seed,
            device=device,
            pretrained=getattr(estimator, "pretrained_", None),
        )
        estimator.reference_ = _reference(rows)
        estimator.interval_scores_ = None
    return NetworkStream(model.float().to(device), estimator.target_, training, device)


def _reference(rows: WeightedBatch) -> TableBatch:
    return rows.cells.select_rows(slice(0, MAX_REFERENCE_ROWS))


def _mean_loss(estimator: Any, rows: WeightedBatch) -> float:
    """Return the loss of the network before it is trained on a part."""
    outputs = predict(estimator.module_, rows.cells, estimator.reference_).cpu()
    losses = estimator.target_.loss(outputs, rows.targets)
    return float((losses * rows.weights).sum() / rows.weights.sum())


def _publish(estimator: Any, network: NetworkStream, rows: WeightedBatch) -> None:
    """Set the attributes of a fit from the averaged weights."""
    module = network.averaged()
    data = FitData(estimator.encoder_, estimator.target_, (), estimator.reference_, np.empty(0), 0)
    estimator._set_network(data, [module])
    estimator._importance_parts = [ImportancePart(module, rows.subsample(MAX_ROWS), data)]
    estimator.__dict__.pop("importances_", None)
