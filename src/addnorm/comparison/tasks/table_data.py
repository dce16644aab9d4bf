"""A table in parts: what all cells train on, are validated on and answer; and a baseline."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks.base import NUM_SAMPLES, Example
from addnorm.core.errors import UserError, unknown_name_message
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import read_columns
from addnorm.tabular.columns.table_files import read_table
from addnorm.tabular.params import auto_batch_size
from addnorm.tabular.task_setup import infer_column_types, infer_task, split_rows, split_target
from addnorm.tabular.training.targets import ClassTarget, NumberTarget, Target

MIN_ROWS = 20
HELD_OUT_FRACTION = 0.3
"""Share of the rows that is not trained on; half of it is validated, half scored."""
METADATA_FILE, TRAIN, VALID, TEST = "table.json", "train", "valid", "test"
TARGET_KINDS = ("classify", "regress")
MAX_SHOWN_COLUMNS = 8
"""Columns of a row that are told on the page."""


@dataclass(frozen=True)
class TableSplits:
    """The rows of a table in parts; the same for all cells."""

    target: str
    kind: str
    """classify or regress."""
    batch: int
    """Rows of a step."""
    classes: tuple[str, ...]
    parts: dict[str, pd.DataFrame]
    """The target stands in its column, as text where it is a class."""
    types: dict[str, str] = field(default_factory=dict)
    """Of the columns, as they are in all parts together."""

    @classmethod
    def from_spec(cls, spec: Comparison) -> "TableSplits":
        """Read and part a table; by chance, but always the same."""
        target, asked = spec.keys["target"], spec.keys.get("kind", "auto")
        if not Path(spec.data).is_file():
            raise UserError(f"no table at {spec.data}: there is no such file")
        frame, _ = read_table(spec.data)
        X, y = split_target(frame, target)
        if asked not in ("auto", *TARGET_KINDS):
            raise UserError(unknown_name_message("kind", str(asked), ("auto", *TARGET_KINDS)))
        if len(frame) < MIN_ROWS:
            raise UserError(
                f"{spec.data} has {len(frame)} rows; wanted {MIN_ROWS} or more, to train on some and "
                "compare by others"
            )
        kind = infer_task(y) if asked == "auto" else asked
        if kind == "classify":
            y = y.astype(str)
        elif not pd.api.types.is_numeric_dtype(y):
            raise UserError(f"the target {target!r} is no number; leave kind out, or kind=classify")
        if y.nunique() < 2:
            raise UserError(f"the target {target!r} is {y.iloc[0]} in every row; wanted two values")
        frame = X.assign(**{target: y})
        types = infer_column_types(X, spec.keys.get("column_types"))
        classify = kind == "classify"
        train, rest = (frame.iloc[at] for at in split_rows(y, HELD_OUT_FRACTION, classify=classify))
        valid, test = (rest.iloc[at] for at in split_rows(rest[target], 0.5, classify=classify))
        asked_for = spec.keys.get("batch_size", "auto")
        batch = auto_batch_size(len(train)) if asked_for == "auto" else asked_for
        if not isinstance(batch, int) or batch < 1:
            raise UserError(f"batch_size is 'auto' or a whole number from 1, got {batch!r}")
        train = train.iloc[: spec.steps * batch]  # more are never seen
        made = cls(
            target,
            kind,
            batch,
            tuple(sorted(y.unique())) if kind == "classify" else (),
            {TRAIN: train, VALID: valid, TEST: test},
            types,
        )
        TableEncoder.from_columns(*read_unweighted(made.inputs(TRAIN), types))
        return made

    @property
    def counts(self) -> dict[str, int]:
        """Rows of each part."""
        return {name: len(part) for name, part in self.parts.items()}

    def about(self) -> dict[str, str]:
        """What a reader should know."""
        told = {"target": self.target, "kind": self.kind}
        told |= {
            "columns": f"{self.parts[TRAIN].shape[1] - 1:,}",
            "rows of a step": f"{self.batch}",
        }
        return told | ({"classes": f"{len(self.classes):,}"} if self.classes else {})

    def inputs(self, split: str) -> pd.DataFrame:
        """The columns to learn from."""
        return self.parts[split].drop(columns=self.target)

    def target_values(self, split: str) -> np.ndarray:
        """The target in numbers: of the class, or itself."""
        y = self.parts[split][self.target]
        if not self.classes:
            return y.to_numpy(np.float64)
        return np.searchsorted(np.array(self.classes), y.to_numpy(str)).astype(np.int64)

    def build_target(self, scaling: str = "auto") -> Target:
        """How the target is learnt."""
        y = self.target_values(TRAIN)
        if self.classes:
            return ClassTarget(len(self.classes))
        return NumberTarget.from_values(y, np.ones(len(y)), scaling)

    def baseline(self, scaling: str = "auto") -> float:
        """Loss on the valid part without a look at the other columns.

        classify: - mean of log((count(class) + 1) / (all + classes))
        regress: mean of (y - mean of the training rows)^2, on the scale on which it is learnt
        """
        if self.classes:
            counts = np.bincount(self.target_values(TRAIN), minlength=len(self.classes)) + 1.0
            return float(-np.log(counts / counts.sum())[self.target_values(VALID)].mean())
        target = self.build_target(scaling)
        train, valid = (target.encode(self.target_values(part)) for part in (TRAIN, VALID))
        return float((valid - train.mean()).square().mean())

    def save(self, folder: Path, score: Path | None, *, max_rows: int) -> None:
        """Write the parts; and those rows that are scored, at most so many."""
        about: dict[str, Any] = {"target": self.target, "kind": self.kind, "batch": self.batch}
        about |= {"classes": self.classes, "types": self.types}
        told = json.dumps(about, ensure_ascii=False)
        for place, parts in ((folder, (TRAIN, VALID)), (score, (TEST,))):
            if place is not None:
                place.mkdir(parents=True, exist_ok=True)
                for name in parts:
                    part = self.parts[name]
                    part = part.iloc[:max_rows] if name == TEST else part
                    part.to_parquet(place / f"{name}.parquet", index=False)
                (place / METADATA_FILE).write_text(told, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, score: Path | None) -> "TableSplits":
        """What `save` wrote."""
        told = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))
        paths = {name: folder / f"{name}.parquet" for name in (TRAIN, VALID)}
        paths |= {TEST: score / f"{TEST}.parquet"} if score is not None else {}
        parts = {name: pd.read_parquet(path) for name, path in paths.items()}
        return cls(**told | {"classes": tuple(told["classes"]), "parts": parts})


def read_examples(folder: Path) -> list[Example]:
    """The first rows that are scored, in words."""
    path = folder / f"{TEST}.parquet"
    if not path.is_file():
        return []
    target = json.loads((folder / METADATA_FILE).read_text(encoding="utf-8"))["target"]
    part = pd.read_parquet(path).head(NUM_SAMPLES)
    asked = part.drop(columns=target)
    more = asked.shape[1] - MAX_SHOWN_COLUMNS
    made = []
    for (_, row), wanted in zip(asked.iterrows(), part[target], strict=True):
        told = ", ".join(
            f"{name} {_format_value(value)}" for name, value in row.iloc[:MAX_SHOWN_COLUMNS].items()
        )
        told += f" and {more} more" if more > 0 else ""
        made.append(Example(told, _format_value(wanted)))
    return made


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read_unweighted(frame: pd.DataFrame, types: Any) -> tuple[Any, np.ndarray]:
    """Columns, and a weight of 1 for each row: what an encoder learns from."""
    return read_columns(frame, types), np.ones(len(frame))
