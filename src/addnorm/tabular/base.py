"""What classifier and regressor have in common: everything but the target."""

import math
import numbers
import os
from abc import abstractmethod
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    validate_data,
)

from addnorm.core.errors import UserError, unknown
from addnorm.core.seeds import derive_seed
from addnorm.models.tabular import MODELS, Cells, TableConfig, TableModel, build_table_model
from addnorm.tabular.columns import Column, as_pandas, is_frame, read_columns, shown
from addnorm.tabular.encoder import TableEncoder
from addnorm.tabular.explain import Explanation, effects_of
from addnorm.tabular.fitting import Sample, Training, answers, fit_model, settled
from addnorm.tabular.importance import importances
from addnorm.tabular.progress import watcher
from addnorm.tabular.rows import row_set, split
from addnorm.tabular.targets import Target
from addnorm.train.schedule import recommended

PUBLISHED = {
    "ft_transformer": "pre_ln(first_norm=False)",
    "tab_transformer": "post_ln",
    "saint": "res_post",
    "mlp": "pre_ln",
}
"""The wiring of each model's paper."""
PRECISIONS = ("float32", "bfloat16")
REFERENCES = 64
"""Training rows that are kept: what SAINT's rows see at prediction, and what `explain` compares
with."""
ENOUGH = 300
"""Different rows from which on a part is held out by itself."""
STEPS = 1500
"""Steps that a small table gets at least; its epochs are as many as it takes."""
CHUNK = 8192
"""Rows of a table that are read at once at prediction."""


class TabularTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """The work of both estimators."""

    # What the estimators fill in.
    encoder_: TableEncoder
    module_: TableModel
    n_features_in_: int
    target_: Target

    def _fit(self, X: Any, weights: np.ndarray, columns: list[Column], y: np.ndarray) -> None:
        """Fit to checked columns and a target in numbers, all weights above 0."""
        seed = self._seed()
        again = self.warm_start and hasattr(self, "module_")
        before = getattr(self, "pretrained_", None)
        if again:
            encoder = self.encoder_
        elif before is not None:
            encoder = before.encoder
        else:
            encoder = TableEncoder.of(columns, weights)
        columns = columns if encoder.kinds == _kinds(columns) else encoder.read(self._frame(X))
        raw = encoder.raw(columns)
        rows = row_set([*raw, y], weights, seed=derive_seed(seed, "rows"))
        cells = encoder.cells(*(part[rows.chosen] for part in raw))
        y, weights = y[rows.chosen], rows.weights
        target = self._target(y, weights)
        config = self._config(encoder, target)
        held = self._held_out(y, weights)
        whole = Sample(cells, target.asked(y), torch.from_numpy(weights))
        train, valid = (whole.rows(torch.from_numpy(at)) for at in (~held, held))
        keep = _references(train)
        device = self._device()
        with settled(threads=self._threads(), seed=derive_seed(seed, "fit")):
            if again:
                module = self._went_on(config).float().to(device)
            else:
                module = build_table_model(config, seed=derive_seed(seed, "start")).to(device)
                module.tokens.learn(train.cells, train.weights)
                with torch.no_grad():
                    module.head.bias.copy_(target.start(train.asked, train.weights))
                if before is not None:
                    before.give(module)
                module.start_from(train.cells.rows(slice(0, 256)).to(device))
            self.history_ = fit_model(
                module,
                train.to(device),
                valid.to(device) if held.any() else None,
                target=target,
                how=self._training(len(train.weights), seed),
                reference=keep.to(device),
                watch=watcher(self.verbose),
            )
        # Sums in double precision: an answer does not depend on the rows it is made with.
        double = device.type != "mps"
        self.module_ = module.double() if double else module
        self.encoder_, self.target_, self.reference_ = encoder, target, keep
        self._n_features_out = module.width
        self._after_fit(valid if held.any() else train, bool(held.any()))

    def _went_on(self, config: TableConfig) -> TableModel:
        if self.module_.config != config:
            raise UserError(
                "warm_start goes on with the model of the last fit, and the settings are others now"
            )
        return self.module_

    @abstractmethod
    def _target(self, y: np.ndarray, weights: np.ndarray) -> Target:
        """How the target is learned."""

    @abstractmethod
    def _explained(self, cells: Cells) -> tuple[Any, list[str], np.ndarray]:
        """What `effects_of` asks, what the answers are about, and the answers."""

    def _after_fit(self, judged: Sample, held: bool) -> None:
        """What is computed from the rows held out, or from all where none are."""
        self.feature_importances_ = importances(
            self.importance,
            self.module_,
            judged,
            reference=self.reference_,
            target=self.target_,
            sources=self.encoder_.sources,
            columns=self.n_features_in_,
        )

    # Rows in, numbers out.

    def transform(self, X: Any) -> np.ndarray:
        """Row embeddings: what the head reads, (rows, width)."""
        return self._said(X, embeddings=True)

    def _said(self, X: Any, *, embeddings: bool = False) -> np.ndarray:
        """What the model says of each row, in float64, a few thousand rows at a time."""
        check_is_fitted(self, "module_")
        X = self._checked(X, reset=False)
        said = []
        with settled(threads=self._threads()):
            for start in range(0, len(X), CHUNK):
                part = rows_of(X, slice(start, start + CHUNK))
                cells = self.encoder_.encode(part)
                said.append(self._answers(cells, embeddings=embeddings))
        return np.concatenate(said)

    def _answers(self, cells: Cells, *, embeddings: bool = False) -> np.ndarray:
        made = answers(self.module_, cells, self.reference_, embeddings=embeddings)
        return made.double().cpu().numpy()

    def explain(self, X: Any) -> Explanation:
        """What each cell contributes to the answers of a few rows; `.save("why.svg")` draws it.

        It takes as many answers a row as there are columns times reference rows.
        """
        check_is_fitted(self, "module_")
        X = self._checked(X, reset=False)
        columns = self.encoder_.read(X)
        cells = self.encoder_.cells(*self.encoder_.raw(columns))
        with settled(threads=self._threads()):
            said, of, told = self._explained(cells)
            effects = effects_of(said, cells, self.reference_, self.encoder_.sources)
        effects = np.pad(effects, ((0, 0), (0, len(columns) - effects.shape[1])))
        texts = [[shown(column, row) for column in columns] for row in range(cells.height)]
        return Explanation(effects, told, list(self.encoder_.names), texts, of)

    # What was given.

    def _read(self, X: Any, y: Any, weights: Any) -> tuple[Any, np.ndarray, list[Column]]:
        """The table, the rows' weights and the columns, checked."""
        X = self._checked(X, reset=True)
        check_consistent_length(X, y)
        weights = _check_sample_weight(
            weights, np.empty((len(X), 1)), dtype=np.float64, ensure_non_negative=True
        )
        if not weights.any():
            raise UserError("sample_weight is zero for every row; wanted at least one above")
        return X, weights, read_columns(X, self.column_types)

    @staticmethod
    def _real(
        X: Any, weights: np.ndarray, columns: list[Column]
    ) -> tuple[Any, np.ndarray, list[Column]]:
        """Without rows of weight 0, which do not exist."""
        real = weights > 0
        if real.all():
            return X, weights, columns
        kept = [replace(column, values=column.values[real]) for column in columns]
        return rows_of(X, np.flatnonzero(real)), weights[real], kept

    def _checked(self, X: Any, *, reset: bool) -> Any:
        if is_frame(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return self._frame(X)
        X = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite=False)
        if X.dtype.kind == "c":
            raise UserError("Complex data not supported")
        return X

    def _frame(self, X: Any) -> Any:
        if not is_frame(X):
            return X
        X = as_pandas(X)
        if not X.shape[1]:
            raise UserError("Found array with 0 feature(s) while a minimum of 1 is required")
        if not len(X):
            raise UserError("Found array with 0 sample(s) while a minimum of 1 is required")
        return X

    # What was chosen.

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _threads(self) -> int | None:
        if self.n_jobs is None:
            return None
        if not isinstance(self.n_jobs, int | np.integer) or self.n_jobs == 0:
            raise UserError(f"n_jobs is a number of threads, or -1 for all, got {self.n_jobs!r}")
        return int(self.n_jobs) if self.n_jobs > 0 else len(os.sched_getaffinity(0))

    def _device(self) -> torch.device:
        if self.device != "auto":
            try:
                return torch.device(self.device)
            except RuntimeError as problem:
                raise UserError(f"device {self.device!r}: {problem}") from None
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")

    def _config(self, encoder: TableEncoder, target: Target) -> TableConfig:
        if self.model not in MODELS:
            raise UserError(unknown("model", str(self.model), MODELS))
        return TableConfig.of(
            model=self.model,
            wiring=self.wiring or PUBLISHED[self.model],
            outputs=target.outputs,
            **{name: getattr(self, name) for name in OWN if name in TableConfig.model_fields},
            **encoder.layout,
        )

    def _held_out(self, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        if self.early_stopping not in (True, False, "auto"):
            raise UserError(f"early_stopping is True, False or 'auto', got {self.early_stopping!r}")
        if not 0 < self.validation_fraction < 1:
            raise UserError(
                f"validation_fraction is a share between 0 and 1, got {self.validation_fraction!r}"
            )
        wanted = len(y) >= ENOUGH if self.early_stopping == "auto" else self.early_stopping
        if not wanted:
            return np.zeros(len(y), dtype=bool)
        held = split(self._groups(y), weights, self.validation_fraction)
        if self.early_stopping is True and not held.any():
            raise UserError(
                f"{len(y)} different rows are too few to hold out {self.validation_fraction} of "
                "them; say early_stopping=False"
            )
        return held

    def _groups(self, y: np.ndarray) -> np.ndarray:
        return np.zeros(len(y), dtype=np.int64)

    def _training(self, rows: int, seed: int) -> Training:
        for name, least in (("max_epochs", 1), ("patience", 1)):
            value = getattr(self, name)
            if not isinstance(value, numbers.Integral) or value < least:
                raise UserError(f"{name} is a whole number from {least}, got {value!r}")
        if self.precision not in PRECISIONS:
            raise UserError(unknown("precision", str(self.precision), PRECISIONS))
        if self.max_seconds is not None and not self.max_seconds > 0:
            raise UserError(f"max_seconds is a positive number, got {self.max_seconds!r}")
        size = batch_size(rows) if self.batch_size == "auto" else self.batch_size
        if not isinstance(size, int | np.integer) or size < 1:
            raise UserError(f"batch_size is 'auto' or a whole number from 1, got {size!r}")
        return Training(
            optimizer=self.optimizer,
            lr=self.lr,
            weight_decay=self.weight_decay,
            schedule=self.schedule or recommended(self.wiring or PUBLISHED[self.model]),
            batch_size=int(size),
            max_epochs=int(self.max_epochs),
            patience=int(self.patience),
            average=self.average,
            max_seconds=self.max_seconds,
            precision=self.precision,
            seed=derive_seed(seed, "training"),
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        tags.target_tags.required = True
        return tags


OWN = (
    *("norm", "numeric", "dim", "depth", "heads", "ffn_dim", "activation"),
    *("dropout", "attention_dropout", "activation_dropout"),
)
"""Parameters that are fields of a `TableConfig` as they stand."""


def batch_size(rows: int) -> int:
    """Rows of a batch: about thirty batches an epoch, 32 rows at least and 256 at most.

    >>> batch_size(100), batch_size(4000), batch_size(50_000)
    (32, 128, 256)
    """
    return min(256, max(32, 2 ** round(math.log2(max(1, rows) / 30))))


def rows_of(X: Any, index: Any) -> Any:
    """Some rows of a checked table."""
    return X[index] if isinstance(X, np.ndarray) else X.iloc[index]


def _kinds(columns: list[Column]) -> tuple[str, ...]:
    return tuple(column.kind for column in columns)


def _references(train: Sample) -> Cells:
    """Training rows to keep: the rows stand in an order by chance, so the first will do."""
    return train.cells.rows(slice(0, REFERENCES))
