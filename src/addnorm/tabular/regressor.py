"""A Transformer that predicts a number for rows of a table."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from addnorm.core.errors import UserError
from addnorm.models.tabular import TableBatch
from addnorm.tabular.estimator import TabularTransformer
from addnorm.tabular.training.loop import rollback_on_error
from addnorm.tabular.training.targets import NumberTarget, reject_missing_targets


class TabularTransformerRegressor(RegressorMixin, TabularTransformer):
    """A Transformer for tables that behaves like any regressor of scikit-learn.

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
        Share of every branch dropped in training; the model's own, else 0.0, if None.
    attention_dropout : float or None, default=None
        Share of attention probabilities dropped in training; the model's own, else 0.1, if None.
    activation_dropout : float or None, default=None
        Share of the feed-forward's hidden features dropped in training; the model's own, else 0.1,
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
        2000 steps, in 12 to 35 passes.
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
    target_scaling : {"auto", "standard", "quantile"}, default="auto"
        How the target is scaled for training; "auto" standardises, and takes quantiles where
        outliers would hide everything else and no value fills more than half of the rows. By
        quantiles, predictions lean to the median of what a row may have: the absolute error falls,
        the squared one may rise; say "standard" where means are wanted.
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
    >>> X = np.linspace(0, 1, 40)[:, None]
    >>> model = TabularTransformerRegressor(dim=8, depth=1, heads=2, max_epochs=40, random_state=0)
    >>> model.fit(X, 3 * X[:, 0]).score(X, 3 * X[:, 0]) > 0.8
    True
    """

    _usual: ClassVar = {"dropout": 0.0, "attention_dropout": 0.1, "activation_dropout": 0.1}
    _most_passes = 35
    target_: NumberTarget

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
        target_scaling: str = "auto",
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
        self.target_scaling = target_scaling
        self.importance = importance
        self.precision = precision
        self.device = device
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.warm_start = warm_start

    @rollback_on_error
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit to a table (pandas, polars, Arrow, numpy) and its numbers."""
        reject_missing_targets(y)
        y = validate_data(self, X="no_validation", y=y, y_numeric=True)
        given = self._check_input(X, y, sample_weight)
        y = np.asarray(y, dtype=np.float64)[given.weights > 0]
        if len(y) > 1 and np.ptp(y) == 0:
            raise UserError(
                f"{type(self).__name__} needs a target that varies, but every row has {y[0]:g}"
            )
        self._fit(given.drop_zero_weights(), y)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The number of each row."""
        said = self._predict_rows(X)[:, 0]
        return self.target_.decode(said)

    def _target(self, y: np.ndarray, weights: np.ndarray) -> NumberTarget:
        return NumberTarget.from_values(y, weights, self.target_scaling)

    def _explain_cells(self, cells: TableBatch) -> tuple[Any, list[str], np.ndarray]:
        def answer(mixed: TableBatch, rows: np.ndarray) -> np.ndarray:
            return self.target_.decode(self._predict_cells(mixed)[:, 0])

        return answer, ["the prediction"] * cells.num_rows, answer(cells, np.arange(cells.num_rows))
