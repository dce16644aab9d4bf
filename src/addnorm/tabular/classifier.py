"""Transformer classifier for tables."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data
from typing_extensions import Self

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.models.tabular import TableBatch, TableModel
from addnorm.tabular.class_weights import class_weights
from addnorm.tabular.dataset import FitData
from addnorm.tabular.estimator import TabularTransformer
from addnorm.tabular.inspection.calibration import Reliability
from addnorm.tabular.temperature import (
    has_calibration_rows,
    holdout_temperature,
    needs_cross_fitting,
)
from addnorm.tabular.training.targets import (
    CLASS_LOSSES,
    ClassTarget,
    ordered_categories,
    rank_classes,
    reject_missing_targets,
    reject_mixed_labels,
)
from addnorm.tabular.training.torch_context import rollback_on_error
from addnorm.tabular.validation import ValidationRows, parse_eval_set

CALIBRATIONS = ("temperature", "none")


class TabularTransformerClassifier(ClassifierMixin, TabularTransformer):
    """Transformer classifier for tables with the scikit-learn interface.

    Parameters
    ----------
    model : {"auto", "ft_transformer", "tab_transformer", "saint", "mlp"}, default="auto"
        Architecture. "auto" is "mlp" with 16 members of width 64, which was best on our tables for
        its cost; see docs/guides/tables.md.
    wiring : str or None, default=None
        Wiring of the sub-layers as a call string, such as "post_ln" or "deepnorm"; None selects the
        wiring of the model's paper.
    norm : str or None, default=None
        Norm as a call string, such as "rms"; None selects "layer".
    numeric : str or None, default=None
        Embedding of numbers: "linear", "piecewise(bins=48)", "periodic(waves=24)" or
        "mlp(hidden=100)". None selects the model's default, "piecewise" for "ft_transformer" and
        "mlp".
    dim : int or None, default=None
        Width of the residual stream. None selects the model's default, 96 for "ft_transformer" and
        "mlp".
    depth : int or None, default=None
        Number of layers. None selects the model's default, 2 for "ft_transformer" and "mlp".
    heads : int or None, default=None
        Number of attention heads. None selects the model's default, 8 for "ft_transformer".
    ffn_dim : int or None, default=None
        Hidden width of the feed-forward; None selects the model's multiple of `dim`, and `dim` for
        "auto".
    activation : str or None, default=None
        Activation of the feed-forward. None selects the model's default, "reglu" for
        "ft_transformer".
    dropout : float or None, default=None
        Dropout rate of every residual branch; None selects the model's default, else 0.1.
    attention_dropout : float or None, default=None
        Dropout rate of attention probabilities; None selects the model's default, else 0.2.
    activation_dropout : float or None, default=None
        Dropout rate of the feed-forward's hidden features; None selects the model's default, else
        0.2.
    members : int or None, default=None
        Number of predictions of one network ("mlp" and "ft_transformer"), which are averaged. They
        share all weights but a scale of the cells and the head, and cost as many times the
        computation. None selects the model's default: 16 for "auto", else 1.
    optimizer : str, default="adamw(beta2=0.999)"
        Optimizer as a call string; see `addnorm list optimizers`.
    lr : float or None, default=None
        Peak learning rate; None selects 3e-3 for "mlp" with several members, else 1e-3.
    weight_decay : float, default=1e-5
        Weight decay of matrices; embeddings, norms and biases are not decayed.
    schedule : str or None, default=None
        Learning-rate schedule as a call string; None selects the one recommended for the wiring.
    average : float, default=0.99
        Decay of the exponential moving average of the weights. The averaged weights are used for
        prediction.
    batch_size : int or "auto", default="auto"
        Rows per step; "auto" chooses 32 to 256 by the size of the table.
    max_epochs : int or "auto", default="auto"
        Maximum number of epochs; the learning-rate schedule spans all of them. "auto" chooses 12 to
        20 epochs for about 2000 steps.
    patience : int, default=8
        Epochs without a better validation loss after which training stops.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out validation rows and keep the best epoch; "auto" does so from 300
        distinct rows if at least 6 are held out outside the most frequent class.
    validation_fraction : float, default=0.1
        Fraction of the rows held out for validation.
    validation_split : float, array-like, splitter or None, default=None
        Validation rows: a fraction instead of `validation_fraction`, the indices or a mask of the
        rows, or a splitter of scikit-learn such as `TimeSeriesSplit`, whose first split is used.
        `fit` also takes `X_val` and `y_val`, and `groups` to hold out whole groups.
    refit : bool, default=False
        Whether to train again on all rows, for as many epochs as were best on the validation rows.
    bagging : int, splitter or None, default=None
        Number of folds, or a splitter such as `GroupKFold`. One network is trained for each fold,
        with the fold as its validation rows, and the predictions are averaged. The encoding of the
        columns is computed from all rows.
    max_seconds : float or None, default=None
        Time limit of training in seconds; the learning rate decays fully within it.
    column_types : dict or None, default=None
        Explicit column types by name or position, which override the inferred ones: "numeric",
        "boolean", "categorical", "string" or "datetime".
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, multiplied with the sample weights.
    loss : {"cross_entropy", "ordinal"}, default="cross_entropy"
        Loss to minimize. "ordinal" is for classes with an order, which are numbers or an ordered
        pandas Categorical: a distant class costs more than a neighbor.
    calibration : {"temperature", "none"}, default="temperature"
        Calibration of the probabilities. "temperature" fits one temperature on the validation rows
        if there are at least 100 of them. On tables of 20 to 1000 distinct rows, a network with one
        member gets it from out-of-fold predictions of five more networks instead; the average of
        several members is calibrated without.
    importance : {"permutation", "rollout", "auto"}, default="permutation"
        Method of `feature_importances_`: the increase of the loss on validation rows when a column
        is shuffled, or attention rollout, which shows where "ft_transformer" and "saint" attend but
        not what matters for the target. "auto" is "permutation".
    precision : {"float32", "bfloat16"}, default="float32"
        Precision of training.
    device : str, default="auto"
        Device to train on; "auto" selects CUDA, then MPS, then the CPU.
    n_jobs : int or None, default=None
        Number of threads; -1 uses all cores, None keeps the setting of PyTorch.
    random_state : int, RandomState or None, default=None
        Seed; an integer makes results reproducible bit for bit.
    verbose : bool, default=False
        Whether to show progress.
    warm_start : bool, default=False
        Whether `fit` continues from the previous fit.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels.
    temperature_ : float
        Temperature that divides the logits.
    oof_proba_ : ndarray of shape (n_samples, n_classes)
        Out-of-fold probabilities with bagging; NaN for rows that no network is validated on.
    feature_importances_ : ndarray of shape (n_features_in_,)
        Importance of each column; they sum to 1. Computed when it is first read.
    importances_ : Importances
        Their means and standard deviations before scaling, once they have been computed.
    history_ : list of dict
        Training loss, validation loss, learning rate and elapsed seconds of every epoch.
    encoder_ : TableEncoder
        Names and types of the columns and their encoding.
    module_ : TableModel
        Fitted network.
    n_features_in_ : int
        Number of columns seen during fit.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Column names seen during fit, if the table has any.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0], [0.1], [0.9], [1.0]] * 10)
    >>> y = np.array(["low", "low", "high", "high"] * 10)
    >>> model = TabularTransformerClassifier(dim=8, depth=1, max_epochs=20, random_state=0)
    >>> model.fit(X, y).predict([[0.05]])
    array(['low'], dtype='<U4')
    """

    _default_dropout: ClassVar = {
        "dropout": 0.1,
        "attention_dropout": 0.2,
        "activation_dropout": 0.2,
    }
    _member_average = "probabilities"
    _max_auto_epochs = 20
    classes_: np.ndarray
    temperature_: float
    _class_order: tuple[int, ...] | None
    """Class codes from the lowest class to the highest, for the ordinal loss."""

    def __init__(
        self,
        *,
        model: str = "auto",
        wiring: str | None = None,
        norm: str | None = None,
        numeric: str | None = None,
        dim: int | None = None,
        depth: int | None = None,
        heads: int | None = None,
        ffn_dim: int | None = None,
        activation: str | None = None,
        dropout: float | None = None,
        attention_dropout: float | None = None,
        activation_dropout: float | None = None,
        members: int | None = None,
        optimizer: str = "adamw(beta2=0.999)",
        lr: float | None = None,
        weight_decay: float = 1e-5,
        schedule: str | None = None,
        average: float = 0.99,
        batch_size: int | str = "auto",
        max_epochs: int | str = "auto",
        patience: int = 8,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        validation_split: Any = None,
        refit: bool = False,
        bagging: Any = None,
        max_seconds: float | None = None,
        column_types: Mapping[Any, str] | None = None,
        class_weight: Any = None,
        loss: str = "cross_entropy",
        calibration: str = "temperature",
        importance: str = "permutation",
        precision: str = "float32",
        device: str = "auto",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: bool | int = False,
        warm_start: bool = False,
    ) -> None:
        self.model = model
        self.wiring = wiring
        self.norm = norm
        self.numeric = numeric
        self.dim = dim
        self.depth = depth
        self.heads = heads
        self.ffn_dim = ffn_dim
        self.activation = activation
        self.dropout = dropout
        self.attention_dropout = attention_dropout
        self.activation_dropout = activation_dropout
        self.members = members
        self.optimizer = optimizer
        self.lr = lr
        self.weight_decay = weight_decay
        self.schedule = schedule
        self.average = average
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.validation_split = validation_split
        self.refit = refit
        self.bagging = bagging
        self.max_seconds = max_seconds
        self.column_types = column_types
        self.class_weight = class_weight
        self.loss = loss
        self.calibration = calibration
        self.importance = importance
        self.precision = precision
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start

    @rollback_on_error
    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
        eval_set: Any = None,
        groups: Any = None,
    ) -> Self:
        """Fit the classifier.

        Args:
            X: table as pandas, polars or Arrow frame, or as 2-D array
            y: (rows) class labels
            sample_weight: (rows) non-negative weights; rows of weight 0 are ignored
            X_val: table to choose the best epoch on, instead of rows of X
            y_val: target of X_val
            sample_weight_val: weights of X_val
            eval_set: [(X_val, y_val)], as LightGBM spells it
            groups: (rows) group of each row; validation rows are whole groups
        """
        for name, known in (("calibration", CALIBRATIONS), ("loss", CLASS_LOSSES)):
            if (value := getattr(self, name)) not in known:
                raise UserError(unknown_name_message(name, str(value), known))
        reject_missing_targets(y)
        categories = ordered_categories(y)
        y = validate_data(self, X="no_validation", y=y)
        reject_mixed_labels(y)
        check_classification_targets(y)
        inputs = self._check_input(X, y, sample_weight)
        inputs = inputs._replace(
            weights=inputs.weights * class_weights(self.class_weight, y, inputs.weights)
        )
        classes, codes = np.unique(y[inputs.weights > 0], return_inverse=True)
        if len(classes) < 2:
            raise UserError(
                f"{type(self).__name__} needs samples of at least 2 classes in the data, but the "
                f"data contains only one class: {classes.tolist()[0]!r}"
            )
        if self.warm_start and hasattr(self, "module_") and list(self.classes_) != list(classes):
            raise UserError(
                "warm_start=True requires the classes of the previous fit: expected "
                f"{self.classes_.tolist()}, got {classes.tolist()}"
            )
        self.classes_ = classes
        self.temperature_ = 1.0
        is_ordinal = self.loss == "ordinal"
        self._class_order = rank_classes(classes, categories) if is_ordinal else None
        X_val, y_val = parse_eval_set(eval_set, X_val, y_val, sample_weight_val)
        valid_rows = None if X_val is None else self._check_valid(X_val, y_val, sample_weight_val)
        self._fit(inputs, codes, labels=y, groups=groups, valid_rows=valid_rows)
        return self

    def _check_valid(self, X: Any, y: Any, weights: Any) -> ValidationRows:
        """Return checked validation rows with class codes."""
        reject_missing_targets(y)
        y = column_or_1d(y)
        unknown = sorted({each for each in y.tolist()} - set(self.classes_.tolist()), key=str)
        if unknown:
            raise UserError(
                f"y_val: expected classes of y, {self.classes_.tolist()[:20]}, got {unknown[0]!r}"
            )
        inputs = self._check_input(X, y, weights, reset=False)
        inputs = inputs._replace(
            weights=inputs.weights * class_weights(self.class_weight, y, inputs.weights)
        )
        codes = np.searchsorted(self.classes_, y)
        return ValidationRows(inputs.drop_zero_weights(), codes[inputs.weights > 0])

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return class probabilities, (rows, classes), in the order of `classes_`."""
        logits = self._predict_rows(X)
        return self._probabilities(logits)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the class probabilities, finite for every class."""
        return np.asarray(log_softmax(self._predict_rows(X) / self.temperature_, axis=1))

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each row."""
        most_probable = self._predict_rows(X).argmax(1)
        return self.classes_[most_probable]

    def reliability(self, X: Any, y: Any, *, bins: int = 10) -> Reliability:
        """Compare predicted probabilities with observed frequencies on labeled rows.

        With two classes, the probability is that of the second class; with more, it is that of the
        predicted class. `.save("plot.svg")` of the result draws the reliability diagram.
        """
        return Reliability.from_labels(
            self.predict_proba(X), column_or_1d(y), self.classes_, bins=bins
        )

    def _target(self, y: np.ndarray, weights: np.ndarray) -> ClassTarget:
        return ClassTarget(len(self.classes_), self._class_order)

    def _strata(self, y: np.ndarray) -> np.ndarray:
        return y

    def _after_fit(self, data: FitData, modules: list[TableModel], positive: np.ndarray) -> None:
        if self.calibration == "temperature" and has_calibration_rows(data):
            self.temperature_ = holdout_temperature(modules, data)
        super()._after_fit(data, modules, positive)

    def _cross_fits_temperature(self, data: FitData) -> bool:
        return needs_cross_fitting(self, data)

    def _set_out_of_fold(self, outputs: np.ndarray) -> None:
        self.oof_proba_ = self._probabilities(outputs)

    def _probabilities(self, logits: np.ndarray) -> np.ndarray:
        return softmax(logits / self.temperature_, axis=1)

    def _explain_cells(self, cells: TableBatch) -> tuple[Any, list[str], np.ndarray]:
        probabilities = self._probabilities(self._predict_cells(cells))
        most_probable = probabilities.argmax(1)

        def probability(mixed: TableBatch, rows: np.ndarray) -> np.ndarray:
            """Return the probability of the class that is predicted for the unchanged row."""
            changed = self._probabilities(self._predict_cells(mixed))
            return changed[np.arange(len(changed)), most_probable[rows]]

        labels = [str(self.classes_[each]) for each in most_probable]
        return probability, labels, probabilities.max(1)
