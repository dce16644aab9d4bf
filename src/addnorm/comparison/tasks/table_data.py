"""Train, validation and test split of a table, and the baseline loss."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks.base import NUM_SAMPLES
from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.files import (
    atomic_write,
    check_file,
    file_checksum,
    read_json_and_files,
    write_json,
)
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import read_columns
from addnorm.tabular.columns.table_files import read_table
from addnorm.tabular.params import choose_batch_size
from addnorm.tabular.task_setup import infer_column_types, infer_task, split_rows, split_target
from addnorm.tabular.training.regression_targets import make_regression_target
from addnorm.tabular.training.targets import ClassTarget, Target
from addnorm.tasks import Example

MIN_ROWS = 20
HELD_OUT_FRACTION = 0.3
"""Fraction of the rows held out: one half for validation, the other half for testing."""
METADATA_FILE, TRAIN, VALID, TEST = "table.json", "train", "valid", "test"
TARGET_KINDS = ("classify", "regress")
MAX_SHOWN_COLUMNS = 8
"""Columns of an example row that the report shows."""


@dataclass(frozen=True)
class TableSplits:
    """The rows of a table in three splits, equal for all cells."""

    target: str
    kind: str
    """classify or regress."""
    batch: int
    """Rows per optimizer step."""
    classes: tuple[str, ...]
    splits: dict[str, pd.DataFrame]
    """Rows by split, with the target column; class labels are strings."""
    types: dict[str, str] = field(default_factory=dict)
    """Column types, inferred from all rows."""

    @classmethod
    def from_spec(cls, spec: Comparison) -> "TableSplits":
        """Read and split the table of a spec; the random split is the same in every call."""
        target, kind = spec.keys["target"], spec.keys.get("kind", "auto")
        if not Path(spec.data).is_file():
            raise UserError(f"no table at {spec.data}: there is no such file")
        frame, _ = read_table(spec.data)
        X, y = split_target(frame, target)
        if kind not in ("auto", *TARGET_KINDS):
            raise UserError(unknown_name_message("kind", str(kind), ("auto", *TARGET_KINDS)))
        if len(frame) < MIN_ROWS:
            raise UserError(f"{spec.data}: expected at least {MIN_ROWS} rows, got {len(frame)}")
        kind = infer_task(y) if kind == "auto" else kind
        if kind == "classify":
            y = y.astype(str)
        elif not pd.api.types.is_numeric_dtype(y):
            raise UserError(
                f"target {target!r}: expected numbers for kind=regress; use kind=classify"
            )
        if y.nunique() < 2:
            raise UserError(
                f"target {target!r}: expected at least two values, got {y.iloc[0]} in every row"
            )
        frame = X.assign(**{target: y})
        types = infer_column_types(X, spec.keys.get("column_types"))
        classify = kind == "classify"
        train, rest = (frame.iloc[at] for at in split_rows(y, HELD_OUT_FRACTION, classify=classify))
        valid, test = (rest.iloc[at] for at in split_rows(rest[target], 0.5, classify=classify))
        batch = spec.keys.get("batch_size", "auto")
        batch = choose_batch_size(len(train)) if batch == "auto" else batch
        if not isinstance(batch, int) or batch < 1:
            raise UserError(f"batch_size: expected 'auto' or a positive integer, got {batch!r}")
        train = train.iloc[: spec.steps * batch]  # training never reaches further rows
        splits = cls(
            target,
            kind,
            batch,
            tuple(sorted(y.unique())) if kind == "classify" else (),
            {TRAIN: train, VALID: valid, TEST: test},
            types,
        )
        # Fails if the columns cannot be encoded.
        TableEncoder.from_columns(*read_unweighted(splits.inputs(TRAIN), types))
        return splits

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows in each split."""
        return {name: len(part) for name, part in self.splits.items()}

    def about(self) -> dict[str, str]:
        """Return facts for the report, by label."""
        facts = {"target": self.target, "kind": self.kind}
        facts |= {
            "columns": f"{self.splits[TRAIN].shape[1] - 1:,}",
            "rows of a step": f"{self.batch}",
        }
        return facts | ({"classes": f"{len(self.classes):,}"} if self.classes else {})

    def inputs(self, split: str) -> pd.DataFrame:
        """Return the input columns of a split."""
        return self.splits[split].drop(columns=self.target)

    def target_values(self, split: str) -> np.ndarray:
        """Return the targets of a split: class indices or numbers."""
        y = self.splits[split][self.target]
        if not self.classes:
            return y.to_numpy(np.float64)
        return np.searchsorted(np.array(self.classes), y.to_numpy(str)).astype(np.int64)

    def build_target(self, scaling: str = "auto") -> Target:
        """Return the encoding of the target: classes, or numbers on a scale."""
        y = self.target_values(TRAIN)
        if self.classes:
            return ClassTarget(len(self.classes))
        return make_regression_target(y, np.ones(len(y)), scaling=scaling)

    def baseline(self, scaling: str = "auto") -> float:
        """Return the validation loss of a model that ignores the input columns.

        classify: - mean of log((count(class) + 1) / (rows + classes)), counted on the training rows
        regress: mean of (y - mean of the training rows)^2, with y on the scale of the loss
        """
        if self.classes:
            counts = np.bincount(self.target_values(TRAIN), minlength=len(self.classes)) + 1.0
            return float(-np.log(counts / counts.sum())[self.target_values(VALID)].mean())
        target = self.build_target(scaling)
        train, valid = (target.encode(self.target_values(part)) for part in (TRAIN, VALID))
        return float((valid - train.mean()).square().mean())

    def save(self, folder: Path, score: Path | None, *, max_rows: int) -> None:
        """Write the splits as Parquet files.

        Args:
            folder: receives the train and validation rows
            score: receives the test rows; None writes none
            max_rows: maximum number of test rows
        """
        about: dict[str, Any] = {"target": self.target, "kind": self.kind, "batch": self.batch}
        about |= {"classes": self.classes, "types": self.types}
        for output, names in ((folder, (TRAIN, VALID)), (score, (TEST,))):
            if output is not None:
                checksums = {}
                for name in names:
                    rows = self.splits[name]
                    rows = rows.iloc[:max_rows] if name == TEST else rows
                    path = output / f"{name}.parquet"
                    with atomic_write(path) as temporary:
                        rows.to_parquet(temporary, index=False)
                    checksums[path.name] = file_checksum(path)
                write_json(output / METADATA_FILE, about, files=checksums)

    @classmethod
    def read(cls, folder: Path, score: Path | None) -> "TableSplits":
        """Read the files of `save`.

        Raises:
            UserError: a file is missing or has changed
        """
        metadata, splits = _read_splits(folder, TRAIN, VALID)
        if score is not None:
            splits |= _read_splits(score, TEST)[1]
        try:
            return cls(**metadata | {"classes": tuple(metadata["classes"]), "splits": splits})
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{folder / METADATA_FILE}: expected the facts of a table ({error}); start again "
                "in another folder"
            ) from None


def _read_splits(folder: Path, *names: str) -> tuple[dict[str, Any], dict[str, pd.DataFrame]]:
    """Return the metadata and the rows of splits in a folder."""
    hint = "restore it, or start again in another folder"
    metadata, checksums = read_json_and_files(folder / METADATA_FILE, hint=hint)
    if not isinstance(metadata, dict):
        raise UserError(f"no rows of the comparison at {folder}: it has no {METADATA_FILE}; {hint}")
    splits = {}
    for name in names:
        path = folder / f"{name}.parquet"
        check_file(path, checksums.get(path.name, ""), hint=hint)
        splits[name] = pd.read_parquet(path)
    return metadata, splits


def read_examples(folder: Path) -> list[Example]:
    """Return the first test rows as text, from the `score` folder of `TableSplits.save`."""
    if not folder.exists():  # the comparison does not score
        return []
    metadata, splits = _read_splits(folder, TEST)
    target, rows = metadata["target"], splits[TEST].head(NUM_SAMPLES)
    inputs = rows.drop(columns=target)
    num_hidden = inputs.shape[1] - MAX_SHOWN_COLUMNS
    examples = []
    for (_, row), expected in zip(inputs.iterrows(), rows[target], strict=True):
        text = ", ".join(
            f"{name} {_format_value(value)}" for name, value in row.iloc[:MAX_SHOWN_COLUMNS].items()
        )
        text += f" and {num_hidden} more" if num_hidden > 0 else ""
        examples.append(Example(text, _format_value(expected)))
    return examples


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_unweighted(frame: pd.DataFrame, types: Any) -> tuple[Any, np.ndarray]:
    """Return the columns of a table and a weight of 1 for each row, the input of an encoder."""
    return read_columns(frame, types), np.ones(len(frame))
