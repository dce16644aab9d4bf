"""Transformer regressor for tables."""

import warnings
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_pinball_score
from sklearn.utils.validation import check_is_fitted, validate_data
from typing_extensions import Self

from addnorm.core.errors import TableWarning, UserError
from addnorm.models.tabular import TableBatch, TableModel
from addnorm.tabular.dataset import FitData
from addnorm.tabular.estimator import TabularTransformer
from addnorm.tabular.inspection.intervals import IntervalScores
from addnorm.tabular.training.regression_targets import (
    QuantileTarget,
    RegressionTarget,
    TargetList,
    check_settings,
    make_regression_target,
)
from addnorm.tabular.training.targets import reject_missing_targets
from addnorm.tabular.training.torch_context import rollback_on_error
from addnorm.tabular.validation import ValidationRows, parse_eval_set


class TabularTransformerRegressor(RegressorMixin, TabularTransformer):
    """Transformer regressor for tables with the scikit-learn interface.

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
        Hidden width of the feed-forward; None selects the model's multiple of `dim`.
    activation : str or None, default=None
        Activation of the feed-forward. None selects the model's default, "reglu" for
        "ft_transformer".
    dropout : float or None, default=None
        Dropout rate of every residual branch; None selects the model's default, else 0.0.
    attention_dropout : float or None, default=None
        Dropout rate of attention probabilities; None selects the model's default, else 0.1.
    activation_dropout : float or None, default=None
        Dropout rate of the feed-forward's hidden features; None selects the model's default, else
        0.1.
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
        35 epochs for about 2000 steps.
    patience : int, default=8
        Epochs without a better validation loss after which training stops.
    early_stopping : bool or "auto", default="auto"
        Whether to hold out validation rows and keep the best epoch; "auto" does so from 300
        distinct rows.
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
    loss : {"squared_error", "absolute_error", "huber", "poisson", "gamma"} or callable, \
            default="squared_error"
        Loss to minimize. "poisson" (counts) and "gamma" (positive amounts) predict the exponential
        of the output. "huber" is quadratic up to one robust standard deviation. A function gets
        predictions and values as tensors of shape (rows) on the scale of y, and returns the loss of
        each row.
    quantiles : list of float or None, default=None
        Quantiles to predict, such as [0.1, 0.5, 0.9], with the pinball loss. `predict` then returns
        one column for each; they never cross.
    target_scaling : {"auto", "standard", "quantile"}, default="auto"
        Scaling of the target for training. "quantile" maps it to a normal distribution, which
        lowers the absolute error but biases predictions towards the median. "auto" standardizes,
        and uses quantiles only if there are strong outliers and no single value makes up more than
        half of the rows. Use "standard" to predict means. Losses that resist outliers are never
        combined with quantiles by "auto"; counts and amounts are divided by their mean.
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
    feature_importances_ : ndarray of shape (n_features_in_,)
        Importance of each column; they sum to 1. Computed when it is first read.
    importances_ : Importances
        Their means and standard deviations before scaling, once they have been computed.
    oof_prediction_ : ndarray of shape (n_samples,) or (n_samples, n_outputs)
        Out-of-fold predictions with bagging; NaN for rows that no network is validated on.
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
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = TabularTransformerRegressor(dim=8, depth=1, max_epochs=40, random_state=0)
    >>> model.fit(X, 3 * X[:, 0]).score(X, 3 * X[:, 0]) > 0.8
    True
    """

    _default_dropout: ClassVar = {
        "dropout": 0.0,
        "attention_dropout": 0.1,
        "activation_dropout": 0.1,
    }
    _member_average = "outputs"
    _max_auto_epochs = 35
    target_: RegressionTarget
    interval_scores_: IntervalScores | None

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
        loss: Any = "squared_error",
        quantiles: Any = None,
        target_scaling: str = "auto",
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
        self.loss = loss
        self.quantiles = quantiles
        self.target_scaling = target_scaling
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
        """Fit the regressor.

        Args:
            X: table as pandas, polars or Arrow frame, or as 2-D array
            y: (rows) numbers, or (rows, targets) to predict several
            sample_weight: (rows) non-negative weights; rows of weight 0 are ignored
            X_val: table to choose the best epoch on, instead of rows of X
            y_val: target of X_val
            sample_weight_val: weights of X_val
            eval_set: [(X_val, y_val)], as LightGBM spells it
            groups: (rows) group of each row; validation rows are whole groups
        """
        check_settings(scaling=self.target_scaling, loss=self.loss, quantiles=self.quantiles)
        reject_missing_targets(y)
        y = validate_data(self, X="no_validation", y=y, y_numeric=True, multi_output=True)
        inputs = self._check_input(X, y, sample_weight)
        y = np.asarray(y, dtype=np.float64)
        used = y[inputs.weights > 0]
        if len(used) > 1 and not np.ptp(used, axis=0).any():
            value = ", ".join(f"{each:g}" for each in np.atleast_1d(used[0]))
            warnings.warn(
                f"y is {value} in every row, and so will be every prediction",
                TableWarning,
                stacklevel=3,
            )
        X_val, y_val = parse_eval_set(eval_set, X_val, y_val, sample_weight_val)
        valid_rows = None if X_val is None else self._check_valid(X_val, y_val, sample_weight_val)
        if valid_rows is not None and valid_rows.y.shape[1:] != y.shape[1:]:
            raise UserError(
                f"y_val: expected a target of shape {['rows', *y.shape[1:]]}, got "
                f"{list(np.shape(y_val))}"
            )
        self._fit(inputs, used, labels=y, groups=groups, valid_rows=valid_rows)
        return self

    def _check_valid(self, X: Any, y: Any, weights: Any) -> ValidationRows:
        """Return checked validation rows."""
        reject_missing_targets(y)
        y = np.asarray(y, dtype=np.float64)
        if not np.isfinite(y).all():
            raise UserError("y_val: expected finite numbers, got NaN or infinity")
        inputs = self._check_input(X, y, weights, reset=False)
        return ValidationRows(inputs.drop_zero_weights(), y[inputs.weights > 0])

    def _set_out_of_fold(self, outputs: np.ndarray) -> None:
        self.oof_prediction_ = self.target_.decode(outputs)

    def _after_fit(self, data: FitData, modules: list[TableModel], positive: np.ndarray) -> None:
        super()._after_fit(data, modules, positive)
        target, self.interval_scores_ = cast(RegressionTarget, data.target), None
        folds = [fold.valid for fold in data.folds if fold.valid is not None]
        if isinstance(target, TargetList) or not folds:
            return
        self.interval_scores_ = IntervalScores.from_networks(modules, folds, data.reference, target)

    def predict(self, X: Any) -> np.ndarray:
        """Return the predictions, (rows); (rows, quantiles) or (rows, targets) if there are
        several."""
        outputs = self._predict_rows(X)  # checks first whether there is a target
        return self.target_.decode(outputs)

    def predict_interval(self, X: Any, *, coverage: float = 0.9) -> np.ndarray:
        """Return bounds that contain the value of a row with a given probability, (rows, 2).

        The bounds come from the errors on the validation rows: all intervals have the same width,
        or with `quantiles` that of the outermost quantiles plus a constant. See `IntervalScores`.

        Args:
            X: table with the columns of the fit
            coverage: probability, such as 0.9
        """
        check_is_fitted(self, "module_")
        if isinstance(self.target_, TargetList):
            raise UserError(
                f"predict_interval: expected one target, got {self.target_.outputs}; fit one "
                "estimator per target"
            )
        if self.interval_scores_ is None:
            raise UserError(
                "predict_interval: expected a fit with validation rows, got none; fit with "
                "early_stopping=True, with X_val and y_val, or with bagging=5"
            )
        return self.interval_scores_.interval(self.predict(X), coverage)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R2; with `quantiles`, the mean of D2, its counterpart for the pinball loss."""
        if self.quantiles is None:
            return float(super().score(X, y, sample_weight))
        predictions = self.predict(X)
        levels = zip(predictions.T, self.quantiles, strict=True)
        scores = [
            d2_pinball_score(y, each, alpha=level, sample_weight=sample_weight)
            for each, level in levels
        ]
        return float(np.mean(scores))

    def _target(self, y: np.ndarray, weights: np.ndarray) -> RegressionTarget:
        return make_regression_target(
            y, weights, scaling=self.target_scaling, loss=self.loss, quantiles=self.quantiles
        )

    def _explain_cells(self, cells: TableBatch) -> tuple[Any, list[str], np.ndarray]:
        if isinstance(self.target_, TargetList):
            raise UserError(
                f"explain: expected one target, got {self.target_.outputs}; fit one estimator per "
                "target"
            )
        middle, label = None, "the prediction"
        if isinstance(self.target_, QuantileTarget):
            levels = np.array(self.target_.quantiles)
            middle = int(np.abs(levels - 0.5).argmin())
            label = f"the {levels[middle]:g} quantile"

        def prediction(mixed: TableBatch, rows: np.ndarray) -> np.ndarray:
            decoded = self.target_.decode(self._predict_cells(mixed))
            return decoded if middle is None else decoded[:, middle]

        rows = np.arange(cells.num_rows)
        return prediction, [label] * len(rows), prediction(cells, rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
