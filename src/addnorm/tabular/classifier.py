"""A Transformer that classifies rows of a table."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d, validate_data

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.models.tabular import TableBatch
from addnorm.tabular.estimator import TabularTransformer
from addnorm.tabular.inspection.calibration import (
    MIN_CALIBRATION_ROWS,
    Reliability,
    fit_temperature,
)
from addnorm.tabular.training.loop import WeightedBatch, rollback_on_error
from addnorm.tabular.training.targets import ClassTarget, comparable_type, reject_missing_targets

CALIBRATIONS = ("temperature", "none")


class TabularTransformerClassifier(ClassifierMixin, TabularTransformer):
    """A Transformer for tables that behaves like any classifier of scikit-learn.

    Parameters
    ----------
    model : {"ft_transformer", "tab_transformer", "saint", "mlp"}, default="ft_transformer"
        Which network.
    wiring : str or None, default=None
        How sub-layers are joined, a call string such as "post_ln" or "deepnorm"; the one of the
        model's paper if None.
    norm : str or None, default=None
        The norm, a call string such as "rms"; "layer" if None.
    numeric : str or None, default=None
        How a number becomes a vector: "linear", "piecewise(bins=48)", "periodic(waves=24)" or
        "mlp(hidden=100)"; the model's own if None, "piecewise" for "ft_transformer" and "mlp".
    dim : int or None, default=None
        Features of the stream; the model's own if None, 96 for "ft_transformer" and "mlp".
    depth : int or None, default=None
        Layers; the model's own if None, 2 for "ft_transformer" and "mlp".
    heads : int or None, default=None
        Attention heads; the model's own if None, 8 for "ft_transformer".
    ffn_dim : int or None, default=None
        Hidden features of the feed-forward; the model's own share of `dim` if None.
    activation : str or None, default=None
        Activation of the feed-forward; the model's own if None, "reglu" for "ft_transformer".
    dropout : float or None, default=None
        Share of every branch dropped in training; the model's own, else 0.1, if None.
    attention_dropout : float or None, default=None
        Share of attention probabilities dropped in training; the model's own, else 0.2, if None.
    activation_dropout : float or None, default=None
        Share of the feed-forward's hidden features dropped in training; the model's own, else 0.2,
        if None.
    optimizer : str, default="adamw(beta2=0.999)"
        A call string; see `addnorm list optimizers`.
    lr : float, default=1e-3
        Peak learning rate.
    weight_decay : float, default=1e-5
        Of matrices; tokens, norms and biases have none.
    schedule : str or None, default=None
        A call string; the wiring's own if None.
    average : float, default=0.99
        Decay of the running average of the weights, which is what answers.
    batch_size : int or "auto", default="auto"
        Rows of a step; "auto" is 32 to 256, by the size of the table.
    max_epochs : int or "auto", default="auto"
        Passes over the training rows; the learning rate is planned for all of them. "auto" is about
        2000 steps, in 12 to 20 passes.
    patience : int, default=8
        Epochs without a better loss on the rows held out after which training ends.
    early_stopping : bool or "auto", default="auto"
        Whether rows are held out to find the best epoch; "auto" does it from 300 different rows on.
    validation_fraction : float, default=0.1
        Share of the rows held out.
    max_seconds : float or None, default=None
        Time for training; the learning rate falls to its end within it.
    column_types : dict or None, default=None
        Types of columns that are not as they look: by name or position, "numeric", "boolean",
        "categorical", "string" or "datetime".
    class_weight : dict, "balanced" or None, default=None
        Weights of the classes, beside those of the rows.
    calibration : {"temperature", "none"}, default="temperature"
        Whether probabilities are calibrated with one temperature on the rows held out, where there
        are at least 100.
    importance : {"auto", "rollout", "permutation"}, default="auto"
        How `feature_importances_` are computed; "auto" takes attention rollout where there is
        attention between all columns.
    precision : {"float32", "bfloat16"}, default="float32"
        Of training.
    device : str, default="auto"
        Where to train; "auto" takes CUDA, then MPS, then the CPU.
    n_jobs : int or None, default=None
        Threads; -1 for all, None for as many as torch uses anyway.
    random_state : int, RandomState or None, default=None
        The same number gives the same bits.
    verbose : bool, default=False
        Whether to show progress.
    warm_start : bool, default=False
        Whether `fit` goes on from the last fit.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes.
    temperature_ : float
        What logits are divided by.
    feature_importances_ : ndarray of shape (n_features_in_,)
        How much each column matters; the sum is 1.
    history_ : list of dict
        Loss, held-out loss, learning rate and seconds of every epoch.
    encoder_ : TableEncoder
        Columns, their types, and how they are read.
    module_ : TableModel
        The network.
    n_features_in_ : int
        Columns seen at fit.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, where the table had any.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.array([[0.0], [0.1], [0.9], [1.0]] * 10)
    >>> y = np.array(["low", "low", "high", "high"] * 10)
    >>> model = TabularTransformerClassifier(dim=8, depth=1, heads=2, max_epochs=20, random_state=0)
    >>> model.fit(X, y).predict([[0.05]])
    array(['low'], dtype='<U4')
    """

    _usual: ClassVar = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.2}
    _most_passes = 20
    classes_: np.ndarray
    temperature_: float

    def __init__(
        self,
        *,
        model: str = "ft_transformer",
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
        optimizer: str = "adamw(beta2=0.999)",
        lr: float = 1e-3,
        weight_decay: float = 1e-5,
        schedule: str | None = None,
        average: float = 0.99,
        batch_size: int | str = "auto",
        max_epochs: int | str = "auto",
        patience: int = 8,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        max_seconds: float | None = None,
        column_types: Mapping[Any, str] | None = None,
        class_weight: Any = None,
        calibration: str = "temperature",
        importance: str = "auto",
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
        self.max_seconds = max_seconds
        self.column_types = column_types
        self.class_weight = class_weight
        self.calibration = calibration
        self.importance = importance
        self.precision = precision
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start

    @rollback_on_error
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to a table (pandas, polars, Arrow, numpy) and its classes."""
        if self.calibration not in CALIBRATIONS:
            raise UserError(
                unknown_name_message("calibration", str(self.calibration), CALIBRATIONS)
            )
        reject_missing_targets(y)
        y = validate_data(self, X="no_validation", y=y)
        if y.dtype.kind == "O" and len({comparable_type(each) for each in y}) > 1:
            raise UserError(
                "Input y has classes of several types, such as numbers beside texts; wanted one"
            )
        check_classification_targets(y)
        given = self._check_input(X, y, sample_weight)
        given = given._replace(weights=given.weights * self._class_weights(y, given.weights))
        classes, codes = np.unique(y[given.weights > 0], return_inverse=True)
        if len(classes) < 2:
            raise UserError(
                f"{type(self).__name__} needs samples of at least 2 classes in the data, but the "
                f"data contains only one class: {classes.tolist()[0]!r}"
            )
        if self.warm_start and hasattr(self, "module_") and list(self.classes_) != list(classes):
            raise UserError("warm_start goes on with the classes of the last fit, got others")
        self.classes_ = classes
        self.temperature_ = 1.0
        self._fit(given.drop_zero_weights(), codes)
        return self

    def _class_weights(self, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """The weight of every row's class; rows of weight 0 are not counted."""
        made, real = np.ones(len(y)), weights > 0
        told = self.class_weight
        if not (told is None or isinstance(told, Mapping) or str(told) == "balanced"):
            raise UserError(
                f"class_weight is a dict from classes to weights, 'balanced' or None, got {told!r}"
            )
        if self.class_weight is not None:
            made[real] = compute_sample_weight(self.class_weight, y[real])
        if (made < 0).any() or not made[real].any():
            raise UserError(
                f"class_weight has weights from 0, one of them above, got {self.class_weight!r}"
            )
        return made

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities, (rows, classes), in the order of `classes_`."""
        logits = self._predict_rows(X)
        return self._probabilities(logits)

    def predict(self, X: Any) -> np.ndarray:
        """The likeliest class of each row."""
        likeliest = self._predict_rows(X).argmax(1)
        return self.classes_[likeliest]

    def reliability(self, X: Any, y: Any, *, bins: int = 10) -> Reliability:
        """How often the classifier was right, by how sure it was; `.save("plot.svg")` draws it.

        With two classes, how often the second came true, by its probability.
        """
        said, y = self.predict_proba(X), column_or_1d(y)
        if not any(each in self.classes_.tolist() for each in y.tolist()):
            raise UserError(
                f"y holds none of the classes {self.classes_.tolist()}; is it of another type?"
            )
        if len(self.classes_) == 2:
            return Reliability.from_predictions(said[:, 1], y == self.classes_[1], bins=bins)
        return Reliability.from_predictions(
            said.max(1), self.classes_[said.argmax(1)] == y, bins=bins
        )

    def _target(self, y: np.ndarray, weights: np.ndarray) -> ClassTarget:
        return ClassTarget(len(self.classes_))

    def _groups(self, y: np.ndarray) -> np.ndarray:
        return y

    def _after_fit(self, sample: WeightedBatch, is_held_out: bool) -> None:
        if (
            is_held_out
            and self.calibration == "temperature"
            and len(sample.weights) >= MIN_CALIBRATION_ROWS
        ):
            logits = self._predict_cells(sample.cells)
            asked, weights = sample.targets.numpy(), sample.weights.numpy()
            self.temperature_ = fit_temperature(logits, asked, weights)
        super()._after_fit(sample, is_held_out)

    def _probabilities(self, logits: np.ndarray) -> np.ndarray:
        return softmax(logits / self.temperature_, axis=1)

    def _explain_cells(self, cells: TableBatch) -> tuple[Any, list[str], np.ndarray]:
        said = self._probabilities(self._predict_cells(cells))
        likeliest = said.argmax(1)

        def answer(mixed: TableBatch, rows: np.ndarray) -> np.ndarray:
            found = self._probabilities(self._predict_cells(mixed))
            return found[np.arange(len(found)), likeliest[rows]]

        return answer, [str(self.classes_[each]) for each in likeliest], said.max(1)
