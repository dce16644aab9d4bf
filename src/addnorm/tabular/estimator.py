"""Base class of the tabular estimators: everything that does not depend on the kind of target.

`fit` runs in this order:

1. `_check_input` validates the table and the sample weights;
2. `build_fit_data` infers column types, splits off validation rows and encodes the cells;
3. `build_model` creates the network, or `_warm_start_module` copies the one of the previous fit;
4. `fit_model` trains it and keeps the best epoch;
5. `_after_fit` computes out-of-fold predictions and, for classifiers, the temperature; on small
   tables `cross_fit_temperature` does.

Feature importances are computed when they are read.
"""

import time
from abc import abstractmethod
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import issparse
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    clone,
    is_classifier,
)
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from typing_extensions import Self

from addnorm.core.errors import UserError
from addnorm.models.tabular import TableBatch, TableConfig, TableModel
from addnorm.models.tabular.members import MemberAverage
from addnorm.tabular.bagged_model import join_networks, list_networks
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import format_cell, is_frame, reject_records, to_pandas
from addnorm.tabular.columns.sparse import check_sparse
from addnorm.tabular.dataset import (
    CheckedInput,
    FitData,
    build_fit_data,
    check_column_names,
    select_rows,
)
from addnorm.tabular.fitting import (
    best_epoch,
    check_fit_params,
    out_of_fold_outputs,
    part_of_time,
    time_limit,
    train_networks,
)
from addnorm.tabular.inspection.explanations import Explanation, column_effects
from addnorm.tabular.inspection.importance import (
    MAX_ROWS,
    ImportancePart,
    Importances,
    compute_importances,
)
from addnorm.tabular.inspection.mixin import InspectionMixin
from addnorm.tabular.io.store import load_estimator, module_bytes, module_from_bytes, save_estimator
from addnorm.tabular.params import make_model_config, resolve_seed, resolve_threads
from addnorm.tabular.pretrain import pretrain_network
from addnorm.tabular.streaming.partial_fit import PartialFitMixin
from addnorm.tabular.temperature import COST, cross_fit_temperature
from addnorm.tabular.training.loop import WeightedBatch
from addnorm.tabular.training.prediction import predict
from addnorm.tabular.training.row_groups import row_multiplicity
from addnorm.tabular.training.targets import Target
from addnorm.tabular.training.torch_context import rollback_on_error, torch_context
from addnorm.tabular.validation import UNUSED, ValidationRows, assign_parts

ROWS_PER_CHUNK = 8192
"""Rows per chunk at prediction time."""


class TabularTransformer(
    PartialFitMixin,
    InspectionMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    BaseEstimator,
):
    """Shared implementation of `TabularTransformerClassifier` and `TabularTransformerRegressor`."""

    # Set by fit.
    encoder_: TableEncoder
    importances_: Importances
    module_: TableModel
    n_features_in_: int
    target_: Target
    temperature_: float

    _default_dropout: ClassVar[dict[str, float]]
    """Dropout rates for models without defaults of their own."""
    _member_average: MemberAverage
    """What is averaged over members."""
    _max_auto_epochs: int
    """Upper limit of `max_epochs="auto"`, so that the learning rate decays before overfitting."""

    def _fit(
        self,
        inputs: CheckedInput,
        y: np.ndarray,
        *,
        labels: np.ndarray,
        groups: Any = None,
        valid_rows: ValidationRows | None = None,
    ) -> None:
        """Fit to a checked table.

        Args:
            inputs: checked table; rows of weight 0 are dropped
            y: numeric target (class codes) of the rows of positive weight
            labels: (rows) target of all rows, for splitters
            groups: (rows) groups that are held out as a whole, or None
            valid_rows: rows to validate on instead of rows of the table
        """
        started, seed = time.monotonic(), resolve_seed(self)
        check_fit_params(self, has_validation_rows=valid_rows is not None)
        deadline = started + time_limit(self)
        positive = inputs.weights > 0
        parts = assign_parts(self, labels, groups, seed=seed)
        inputs = inputs.drop_zero_weights()
        if parts is not None:
            parts = parts[positive]
            used = parts != UNUSED
            inputs, y, parts = inputs.select(used), y[used], parts[used]
            positive[np.flatnonzero(positive)[~used]] = False
        warm = self.warm_start and hasattr(self, "module_")
        pretrained = getattr(self, "pretrained_", None)
        encoder = self.encoder_ if warm else None if pretrained is None else pretrained.encoder
        if encoder is not None:
            check_column_names(encoder, inputs.X, "previous fit" if warm else "pre-training")
        data = build_fit_data(
            self,
            inputs,
            y,
            encoder=encoder,
            target=self.target_ if warm and not is_classifier(self) else None,  # scales of y
            seed=seed,
            parts=parts,
            valid_rows=valid_rows,
        )
        previous = None
        if warm:
            config = make_model_config(self, data.encoder, data.target.outputs)
            previous = self._warm_start_module(config)
        is_plain = not warm and parts is None and valid_rows is None
        cross_fits = is_plain and self._cross_fits_temperature(data)
        refits = self.refit and data.folds[0].valid is not None
        later = COST * cross_fits + refits  # in units of the cost of the network
        modules, self.history_ = train_networks(
            self,
            data,
            seed=seed,
            deadline=part_of_time(deadline, 1 / (1 + later)),
            previous=previous,
        )
        self._set_network(data, modules)
        with torch_context(threads=resolve_threads(self)):
            self._after_fit(data, modules, positive)
        if cross_fits:
            end = part_of_time(deadline, COST / later)
            self.temperature_ = cross_fit_temperature(
                self, inputs, y, data, seed=seed, deadline=end
            )
        self._importance_parts = [
            ImportancePart(module, (fold.valid or fold.train).subsample(MAX_ROWS), data)
            for module, fold in zip(modules, data.folds, strict=True)
        ]
        self.__dict__.pop("importances_", None)
        if refits:
            everything = build_fit_data(
                self, inputs, y, encoder=encoder, target=None, seed=seed, hold_out=False
            )
            _ = self.feature_importances_  # of the network that has not seen the validation rows
            limited = clone(self).set_params(max_epochs=best_epoch(self.history_))
            modules, _ = train_networks(
                limited, everything, seed=seed, deadline=deadline, previous=None
            )
            self._set_network(everything, modules)

    def _set_network(self, data: FitData, modules: list[TableModel]) -> None:
        module = join_networks(modules, averages_classes=is_classifier(self))
        self.module_ = module
        self.encoder_, self.target_, self.reference_ = data.encoder, data.target, data.reference
        self._n_features_out = module.width

    def _warm_start_module(self, config: TableConfig) -> TableModel:
        previous = self.module_.config
        changed = [name for name, value in config if value != getattr(previous, name)]
        if changed:
            expected, got = (
                ", ".join(f"{name}={getattr(each, name)!r}" for name in changed)
                for each in (previous, config)
            )
            raise UserError(
                f"warm_start=True requires the settings of the previous fit: expected {expected}, "
                f"got {got}; set warm_start=False to fit a new model"
            )
        return deepcopy(self.module_)

    @abstractmethod
    def _target(self, y: np.ndarray, weights: np.ndarray) -> Target:
        """Build the encoding of the target from training rows."""

    @abstractmethod
    def _explain_cells(self, cells: TableBatch) -> tuple[Any, list[str], np.ndarray]:
        """Return the function to explain, a label for each row, and the value for each row.

        The function maps (cells, row indices) to one value per row; see `column_effects`.
        """

    def _after_fit(self, data: FitData, modules: list[TableModel], positive: np.ndarray) -> None:
        """Compute attributes from the validation rows.

        Args:
            data: encoded rows
            modules: networks, one for each fold
            positive: (rows of the table) whether a row was used
        """
        if len(data.folds) > 1:
            outputs = np.full((len(positive), data.target.outputs), np.nan)
            outputs[positive] = out_of_fold_outputs(modules, data)[data.inverse]
            self._set_out_of_fold(outputs)

    def _cross_fits_temperature(self, data: FitData) -> bool:
        """Return whether the temperature is computed from out-of-fold predictions."""
        return False

    @abstractmethod
    def _set_out_of_fold(self, outputs: np.ndarray) -> None:
        """Set the out-of-fold predictions from outputs, (rows, outputs), NaN for unused rows."""

    @property
    def feature_importances_(self) -> np.ndarray:
        """Importance of each column, (n_features_in_), non-negative with sum 1 (or all 0).

        They are computed when they are read for the first time, which takes some seconds.
        """
        if "importances_" not in self.__dict__:
            check_is_fitted(self, "module_")
            with torch_context(threads=resolve_threads(self)):
                self.importances_ = compute_importances(
                    self.importance, self._importance_parts, self.n_features_in_
                )
        return self.importances_.normalized

    # Prediction

    def transform(self, X: Any) -> np.ndarray:
        """Return row embeddings, the input of the output head, as a (rows, width) array."""
        return self._predict_rows(X, embeddings=True)

    def _predict_rows(self, X: Any, *, embeddings: bool = False) -> np.ndarray:
        """Return the model's outputs for each row of a table, in float64, chunk by chunk."""
        check_is_fitted(self, "module_")
        X = self._check_table(X, reset=False)
        outputs = []
        with torch_context(threads=resolve_threads(self)):
            for start in range(0, X.shape[0], ROWS_PER_CHUNK):
                chunk = select_rows(X, slice(start, start + ROWS_PER_CHUNK))
                cells = self.encoder_.encode(chunk)
                outputs.append(self._predict_cells(cells, embeddings=embeddings))
        return np.concatenate(outputs)

    def _predict_cells(self, cells: TableBatch, *, embeddings: bool = False) -> np.ndarray:
        outputs = predict(self.module_, cells, self.reference_, embeddings=embeddings)
        return outputs.double().cpu().numpy()

    def explain(self, X: Any) -> Explanation:
        """Measure the effect of each cell on the prediction of its row.

        The cost is one prediction per row, column and reference row, so pass only a few rows.
        `.save("why.svg")` of the result draws the effects of one row.
        """
        check_is_fitted(self, "module_")
        X = self._check_table(X, reset=False)
        columns = self.encoder_.read(X)
        cells = self.encoder_.to_table_batch(*self.encoder_.raw_features(columns))
        with torch_context(threads=resolve_threads(self)):
            function, labels, values = self._explain_cells(cells)
            effects = column_effects(function, cells, self.reference_, self.encoder_.sources)
        effects = np.pad(effects, ((0, 0), (0, len(columns) - effects.shape[1])))
        texts = [[format_cell(column, row) for column in columns] for row in range(cells.num_rows)]
        return Explanation(effects, values, list(self.encoder_.names), texts, labels)

    # Pre-training, saving and pickling

    @rollback_on_error
    def pretrain(self, X: Any, *, objective: str = "auto", epochs: int | None = None) -> Self:
        """Pre-train on rows without a target; every later `fit` starts from these weights.

        Args:
            X: table with the columns that `fit` will get
            objective: "masked" reconstructs hidden cells; "replaced" detects cells taken from
                another row; "contrastive" matches each row with its augmented view (SAINT); "auto"
                is the objective of the model's paper
            epochs: number of epochs; `max_epochs` if None
        """
        pretrain_network(self, X, objective=objective, epochs=epochs)
        return self

    def save(self, path: str | Path) -> None:
        """Save the fitted estimator to a folder, as safetensors and JSON without pickle."""
        check_is_fitted(self, "module_")
        save_estimator(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load an estimator that `save` wrote; raise `UserError` for unknown or invalid fields."""
        return load_estimator(path, {cls.__name__: cls})

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "module_" in state:
            module, reference = state.pop("module_"), state.pop("reference_")
            state["_module"] = (module.config.model_dump(), module_bytes(module, reference))
            # The networks are those of the module.
            parts = () if "importances_" in state else state["_importance_parts"]
            state["_importance_parts"] = [part.sample.to_arrays() for part in parts]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        config, data = state.pop("_module", (None, b""))
        rows = state.pop("_importance_parts", ())
        super().__setstate__(state)
        if config is not None:
            self.module_, self.reference_ = module_from_bytes(
                data, TableConfig(**config), averages_classes=is_classifier(self)
            )
            modules = list_networks(self.module_)
            fitted = FitData(self.encoder_, self.target_, (), self.reference_, np.empty(0), 0)
            self._importance_parts = [
                ImportancePart(module, WeightedBatch.from_arrays(arrays), fitted)
                for module, arrays in zip(modules, rows, strict=False)
            ]

    # Input validation

    def _check_input(self, X: Any, y: Any, weights: Any, *, reset: bool = True) -> CheckedInput:
        X = self._check_table(X, reset=reset)
        check_consistent_length(X, y)
        weights = _check_sample_weight(
            weights, np.empty((X.shape[0], 1)), dtype=np.float64, ensure_non_negative=True
        )
        return CheckedInput(X, weights, row_multiplicity(weights))

    def _check_table(self, X: Any, *, reset: bool) -> Any:
        if is_frame(X):
            X = to_pandas(X)
            if not X.columns.is_unique:
                duplicate = X.columns[X.columns.duplicated()][0]
                raise UserError(
                    f"X: expected unique column names, got {duplicate!r} more than once; rename "
                    "the columns"
                )
            for axis, dimension in enumerate(("sample", "feature")):
                if not X.shape[axis]:  # the wording of scikit-learn, which its checks expect
                    raise UserError(
                        f"Found array with 0 {dimension}(s) (shape={X.shape}) while a minimum of 1 "
                        "is required."
                    )
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        reject_records(X)
        array = validate_data(
            self, X, reset=reset, dtype=None, ensure_all_finite=False, accept_sparse="csr"
        )
        if issparse(array):
            return check_sparse(array, rows=array.shape[0] if reset else ROWS_PER_CHUNK)
        if array.dtype.kind == "c":
            raise UserError("Complex data not supported")
        # NumPy converts the numbers of a list to strings if the list contains any string.
        is_mixed = array.dtype.kind in "US" and not isinstance(X, np.ndarray)
        return np.array(X, dtype=object) if is_mixed else array

    def _strata(self, y: np.ndarray) -> np.ndarray:
        """Return the stratum of each row for the validation split; one for all by default."""
        return np.zeros(len(y), dtype=np.int64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.target_tags.required = True
        return tags
