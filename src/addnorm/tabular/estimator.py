"""Base class of the tabular estimators: everything that does not depend on the kind of target.

`fit` runs in this order:

1. `_check_input` validates the table and the sample weights;
2. `build_fit_data` infers column types, splits off validation rows and encodes the cells;
3. `build_model` creates the network, or `_warm_start_module` copies the one of the previous fit;
4. `fit_model` trains it and keeps the best epoch;
5. `_after_fit` computes feature importances and, for classifiers, the calibration temperature.
"""

from abc import abstractmethod
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import safetensors.torch
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)
from torch import Tensor
from typing_extensions import Self

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import TableBatch, TableConfig, TableModel
from addnorm.models.tabular.members import MemberAverage
from addnorm.tabular.callbacks import make_fit_callback
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import (
    format_cell,
    is_frame,
    raw_columns,
    read_columns,
    reject_records,
    to_pandas,
)
from addnorm.tabular.dataset import (
    CheckedInput,
    build_fit_data,
    reject_empty_columns,
    select_column_rows,
    select_rows,
)
from addnorm.tabular.inspection.explanations import Explanation, column_effects
from addnorm.tabular.inspection.importance import compute_importances
from addnorm.tabular.io.store import load_estimator, module_bytes, module_from_bytes, save_estimator
from addnorm.tabular.params import (
    make_model_config,
    make_training_config,
    resolve_device,
    resolve_seed,
    resolve_threads,
)
from addnorm.tabular.training.loop import (
    WeightedBatch,
    build_model,
    fit_model,
    train_epochs,
)
from addnorm.tabular.training.prediction import predict
from addnorm.tabular.training.pretraining import OBJECTIVES, PretextModel, Pretrained
from addnorm.tabular.training.row_groups import row_multiplicity, unique_rows
from addnorm.tabular.training.targets import Target
from addnorm.tabular.training.torch_context import rollback_on_error, torch_context

ROWS_PER_CHUNK = 8192
"""Rows per chunk at prediction time."""


class TabularTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Shared implementation of `TabularTransformerClassifier` and `TabularTransformerRegressor`."""

    # Set by fit.
    encoder_: TableEncoder
    module_: TableModel
    n_features_in_: int
    target_: Target

    _default_dropout: ClassVar[dict[str, float]]
    """Dropout rates for models without defaults of their own."""
    _member_average: MemberAverage
    """What is averaged over members."""
    _max_auto_epochs: int
    """Upper limit of `max_epochs="auto"`, so that the learning rate decays before overfitting."""

    def _fit(self, inputs: CheckedInput, y: np.ndarray) -> None:
        """Fit to a checked table with positive weights and a numeric target (class codes)."""
        seed = resolve_seed(self)
        warm = self.warm_start and hasattr(self, "module_")
        pretrained = getattr(self, "pretrained_", None)
        encoder = self.encoder_ if warm else None if pretrained is None else pretrained.encoder
        if encoder is not None:
            _check_column_names(encoder, inputs.X, "previous fit" if warm else "pre-training")
        data = build_fit_data(
            self, inputs, y, encoder=encoder, target=self.target_ if warm else None, seed=seed
        )
        target, train, valid = data.target, data.train, data.valid
        config = make_model_config(self, data.encoder, target.outputs)
        device = resolve_device(self)
        with (
            torch_context(
                threads=resolve_threads(self), seed=derive_seed(seed, "fit"), device=device
            ),
            closing(make_fit_callback(verbose=self.verbose)) as callback,
        ):
            if warm:
                module = self._warm_start_module(config).to(device)
            else:
                module = build_model(
                    config, train, target=target, seed=seed, device=device, pretrained=pretrained
                )
            self.history_ = fit_model(
                module,
                train.to(device),
                None if valid is None else valid.to(device),
                target=target,
                config=make_training_config(
                    self, len(train.weights), wiring=config.wiring, seed=seed
                ),
                reference=data.reference.to(device),
                callback=callback,
            )
        self.module_ = module
        self.encoder_, self.target_, self.reference_ = data.encoder, target, data.reference
        self._n_features_out = module.width
        with torch_context(threads=resolve_threads(self)):
            self._after_fit(valid or train, valid is not None)

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

    def _after_fit(self, sample: WeightedBatch, is_held_out: bool) -> None:
        """Compute attributes from the validation rows, or from the training rows without any."""
        self.feature_importances_ = compute_importances(
            self.importance,
            self.module_,
            sample,
            reference=self.reference_,
            target=self.target_,
            sources=self.encoder_.sources,
            columns=self.n_features_in_,
        )

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
            for start in range(0, len(X), ROWS_PER_CHUNK):
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
        if objective not in OBJECTIVES:
            raise UserError(unknown_name_message("objective", str(objective), OBJECTIVES))
        X = self._check_table(X, reset=True)
        columns, seed = read_columns(X, self.column_types), resolve_seed(self)
        reject_empty_columns(columns, self.column_types)
        ones, values = np.ones(len(X)), [column.values for column in columns]
        rows = unique_rows(
            values, None, weights=ones, multiplicity=ones, seed=derive_seed(seed, "rows")
        )
        columns, weights = select_column_rows(columns, rows.indices), torch.from_numpy(rows.weights)
        encoder = TableEncoder.from_columns(columns, rows.weights)
        sample = WeightedBatch(
            encoder.to_table_batch(*encoder.raw_features(columns)), weights, weights
        )
        device, config = resolve_device(self), make_model_config(self, encoder, 1)
        training = make_training_config(
            self, len(weights), wiring=config.wiring, seed=seed, epochs=epochs
        )
        with (
            torch_context(
                threads=resolve_threads(self), seed=derive_seed(seed, "pretrain"), device=device
            ),
            closing(make_fit_callback(verbose=self.verbose)) as callback,
        ):
            model = build_model(config, sample, target=None, seed=seed, device=device)
            pretext = PretextModel(model, objective).to(device)

            def compute_loss(batch: WeightedBatch) -> tuple[Tensor, Tensor]:
                return pretext.loss(batch.cells) * batch.weights.sum(), batch.weights.sum()

            self.pretraining_ = train_epochs(
                pretext,
                sample.to(device),
                compute_loss=compute_loss,
                validate=None,
                config=training,
                callback=callback,
            )
        weights_without_head = {
            name: value.cpu().contiguous()
            for name, value in model.state_dict().items()
            if not name.startswith("head.")
        }
        self.pretrained_ = Pretrained(encoder, config, safetensors.torch.save(weights_without_head))
        # Drop an earlier fit: a warm start must continue from the pre-trained weights.
        self.__dict__.pop("module_", None)
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
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        config, data = state.pop("_module", (None, b""))
        super().__setstate__(state)
        if config is not None:
            self.module_, self.reference_ = module_from_bytes(data, TableConfig(**config))

    # Input validation

    def _check_input(self, X: Any, y: Any, weights: Any) -> CheckedInput:
        X = self._check_table(X, reset=True)
        check_consistent_length(X, y)
        weights = _check_sample_weight(
            weights, np.empty((len(X), 1)), dtype=np.float64, ensure_non_negative=True
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
        array = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False)
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
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.target_tags.required = True
        return tags


def _check_column_names(encoder: TableEncoder, X: Any, origin: str) -> None:
    names = tuple(name for name, _ in raw_columns(X))
    if encoder.names != names:
        raise UserError(
            f"X: expected the columns of the {origin} ({', '.join(encoder.names)}), got "
            f"{', '.join(names)}"
        )
