"""What classifier and regressor have in common: everything but the target."""

from abc import abstractmethod
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, Self

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

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import TableBatch, TableConfig, TableModel
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
    model_config,
    resolve_device,
    resolve_seed,
    resolve_threads,
    training_config,
)
from addnorm.tabular.training.loop import (
    WeightedBatch,
    build_model,
    fit_model,
    predict,
    rollback_on_error,
    torch_context,
    train_epochs,
)
from addnorm.tabular.training.pretraining import OBJECTIVES, PretextModel, Pretrained
from addnorm.tabular.training.row_groups import row_multiplicity, unique_rows
from addnorm.tabular.training.targets import Target

ROWS_PER_CHUNK = 8192
"""Rows of a table that are read at once at prediction."""


class TabularTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """The work of both estimators."""

    # What the estimators fill in.
    encoder_: TableEncoder
    module_: TableModel
    n_features_in_: int
    target_: Target

    _usual: ClassVar[dict[str, float]]
    """Dropout where nothing is said."""
    _most_passes: int
    """Epochs of `max_epochs="auto"` at most: the rate must fall before a model over-fits."""

    def _fit(self, inputs: CheckedInput, y: np.ndarray) -> None:
        """Fit to checked columns and a target in numbers, all weights above 0."""
        seed = resolve_seed(self)
        again = self.warm_start and hasattr(self, "module_")
        before = getattr(self, "pretrained_", None)
        encoder = self.encoder_ if again else None if before is None else before.encoder
        if encoder is not None:
            _check_column_names(encoder, inputs.X, "last fit" if again else "pre-training")
        lesson = build_fit_data(
            self, inputs, y, encoder=encoder, target=self.target_ if again else None, seed=seed
        )
        target, taught, judged = lesson.target, lesson.train, lesson.valid
        config = model_config(self, lesson.encoder, target.outputs)
        device = resolve_device(self)
        with (
            torch_context(
                threads=resolve_threads(self), seed=derive_seed(seed, "fit"), device=device
            ),
            closing(make_fit_callback(verbose=self.verbose)) as callback,
        ):
            if again:
                module = self._warm_start_module(config).float().to(device)
            else:
                module = build_model(
                    config, taught, target=target, seed=seed, device=device, pretrained=before
                )
            self.history_ = fit_model(
                module,
                taught.to(device),
                None if judged is None else judged.to(device),
                target=target,
                config=training_config(self, len(taught.weights), wiring=config.wiring, seed=seed),
                reference=lesson.reference.to(device),
                callback=callback,
            )
        # Sums in double precision: an answer does not depend on the rows it is made with.
        double = device.type != "mps"
        self.module_ = module.double() if double else module
        self.encoder_, self.target_, self.reference_ = lesson.encoder, target, lesson.reference
        self._n_features_out = module.width
        with torch_context(threads=resolve_threads(self)):
            self._after_fit(judged or taught, judged is not None)

    def _warm_start_module(self, config: TableConfig) -> TableModel:
        if self.module_.config != config:
            raise UserError(
                "warm_start goes on with the model of the last fit, and the settings are others now"
            )
        return deepcopy(self.module_)

    @abstractmethod
    def _target(self, y: np.ndarray, weights: np.ndarray) -> Target:
        """How the target is learned."""

    @abstractmethod
    def _explain_cells(self, cells: TableBatch) -> tuple[Any, list[str], np.ndarray]:
        """What `effects_of` asks, what the answers are about, and the answers."""

    def _after_fit(self, sample: WeightedBatch, is_held_out: bool) -> None:
        """What is computed from the rows held out, or from all where none are."""
        self.feature_importances_ = compute_importances(
            self.importance,
            self.module_,
            sample,
            reference=self.reference_,
            target=self.target_,
            sources=self.encoder_.sources,
            columns=self.n_features_in_,
        )

    # Rows in, numbers out.

    def transform(self, X: Any) -> np.ndarray:
        """Row embeddings: what the head reads, (rows, width)."""
        return self._predict_rows(X, embeddings=True)

    def _predict_rows(self, X: Any, *, embeddings: bool = False) -> np.ndarray:
        """What the model says of each row, in float64, a few thousand rows at a time."""
        check_is_fitted(self, "module_")
        X = self._check_table(X, reset=False)
        said = []
        with torch_context(threads=resolve_threads(self)):
            for start in range(0, len(X), ROWS_PER_CHUNK):
                part = select_rows(X, slice(start, start + ROWS_PER_CHUNK))
                cells = self.encoder_.encode(part)
                said.append(self._predict_cells(cells, embeddings=embeddings))
        return np.concatenate(said)

    def _predict_cells(self, cells: TableBatch, *, embeddings: bool = False) -> np.ndarray:
        made = predict(self.module_, cells, self.reference_, embeddings=embeddings)
        return made.double().cpu().numpy()

    def explain(self, X: Any) -> Explanation:
        """What each cell contributes to the answers of a few rows; `.save("why.svg")` draws it.

        It takes as many answers a row as there are columns times reference rows.
        """
        check_is_fitted(self, "module_")
        X = self._check_table(X, reset=False)
        columns = self.encoder_.read(X)
        cells = self.encoder_.to_table_batch(*self.encoder_.raw_features(columns))
        with torch_context(threads=resolve_threads(self)):
            said, of, told = self._explain_cells(cells)
            effects = column_effects(said, cells, self.reference_, self.encoder_.sources)
        effects = np.pad(effects, ((0, 0), (0, len(columns) - effects.shape[1])))
        texts = [[format_cell(column, row) for column in columns] for row in range(cells.num_rows)]
        return Explanation(effects, told, list(self.encoder_.names), texts, of)

    # Before and after.

    @rollback_on_error
    def pretrain(self, X: Any, *, objective: str = "auto", epochs: int | None = None) -> Self:
        """Pre-train on rows without a target; every `fit` from now on starts from there.

        objective: "masked" hides cells, "replaced" puts other rows' in their place, "contrastive"
            tells mixed rows apart (SAINT); "auto" takes the model's own. epochs: `max_epochs` if
            None.
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
        device, config = resolve_device(self), model_config(self, encoder, 1)
        how = training_config(self, len(weights), wiring=config.wiring, seed=seed, epochs=epochs)
        with (
            torch_context(
                threads=resolve_threads(self), seed=derive_seed(seed, "pretrain"), device=device
            ),
            closing(make_fit_callback(verbose=self.verbose)) as callback,
        ):
            model = build_model(config, sample, target=None, seed=seed, device=device)
            pretext = PretextModel(model, objective).to(device)

            def loss_of(part: WeightedBatch) -> tuple[Tensor, Tensor]:
                return pretext.loss(part.cells) * part.weights.sum(), part.weights.sum()

            self.pretraining_ = train_epochs(
                pretext,
                sample.to(device),
                compute_loss=loss_of,
                validate=None,
                config=how,
                callback=callback,
            )
        kept = {
            name: value.cpu().contiguous()
            for name, value in model.state_dict().items()
            if not name.startswith("head.")
        }
        self.pretrained_ = Pretrained(encoder, config, safetensors.torch.save(kept))
        self.__dict__.pop("module_", None)  # a warm start goes on from here, not from an older fit
        return self

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to a folder: safetensors and JSON, no pickle."""
        check_is_fitted(self, "module_")
        save_estimator(self, path)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote; what it does not know is refused."""
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
            self.module_, self.reference_ = module_from_bytes(
                data, TableConfig.from_kwargs(**config)
            )

    # What was given.

    def _check_input(self, X: Any, y: Any, weights: Any) -> CheckedInput:
        """The table and the rows' weights, checked."""
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
                twice = X.columns[X.columns.duplicated()][0]
                raise UserError(f"several columns are called {twice!r}; give each a name")
            for axis, what in enumerate(("sample", "feature")):
                if not X.shape[axis]:
                    raise UserError(
                        f"Found array with 0 {what}(s) (shape={X.shape}) while a minimum of 1 is "
                        "required."
                    )
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        reject_records(X)
        made = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False)
        if made.dtype.kind == "c":
            raise UserError("Complex data not supported")
        # numpy turns the numbers of a list into texts where there is a text among them.
        mixed = made.dtype.kind in "US" and not isinstance(X, np.ndarray)
        return np.array(X, dtype=object) if mixed else made

    def _groups(self, y: np.ndarray) -> np.ndarray:
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
            f"the columns are not those of the {origin}: got {', '.join(names)}; wanted "
            f"{', '.join(encoder.names)}"
        )
