"""A table in parts: what all cells train on, are validated on and answer; and a baseline."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks.base import SAMPLES, Question
from addnorm.core.errors import UserError, unknown
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import read_columns
from addnorm.tabular.columns.table_files import read_table
from addnorm.tabular.params import batch_size
from addnorm.tabular.task_setup import halves, split_target, task_of, types_of
from addnorm.tabular.training.targets import ClassTarget, NumberTarget, Target

FEWEST = 20
HELD_OUT = 0.3
"""Share of the rows that is not trained on; half of it is validated, half scored."""
ABOUT, TRAIN, VALID, TEST = "table.json", "train", "valid", "test"
KINDS = ("classify", "regress")
SHOWN = 8
"""Columns of a row that are told on the page."""


@dataclass(frozen=True)
class Parted:
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
    def of(cls, spec: Comparison) -> "Parted":
        """Read and part a table; by chance, but always the same."""
        target, asked = spec.keys["target"], spec.keys.get("kind", "auto")
        if not Path(spec.data).is_file():
            raise UserError(f"no table at {spec.data}: there is no such file")
        frame, _ = read_table(spec.data)
        X, y = split_target(frame, target)
        if asked not in ("auto", *KINDS):
            raise UserError(unknown("kind", str(asked), ("auto", *KINDS)))
        if len(frame) < FEWEST:
            raise UserError(
                f"{spec.data} has {len(frame)} rows; wanted {FEWEST} or more, to train on some and "
                "compare by others"
            )
        kind = task_of(y) if asked == "auto" else asked
        if kind == "classify":
            y = y.astype(str)
        elif not pd.api.types.is_numeric_dtype(y):
            raise UserError(f"the target {target!r} is no number; leave kind out, or kind=classify")
        if y.nunique() < 2:
            raise UserError(f"the target {target!r} is {y.iloc[0]} in every row; wanted two values")
        frame = X.assign(**{target: y})
        types = types_of(X, spec.keys.get("column_types"))
        classify = kind == "classify"
        train, rest = (frame.iloc[at] for at in halves(y, HELD_OUT, classify=classify))
        valid, test = (rest.iloc[at] for at in halves(rest[target], 0.5, classify=classify))
        asked_for = spec.keys.get("batch_size", "auto")
        batch = batch_size(len(train)) if asked_for == "auto" else asked_for
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
        TableEncoder.of(*read(made.inputs(TRAIN), types))
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

    def inputs(self, part: str) -> pd.DataFrame:
        """The columns to learn from."""
        return self.parts[part].drop(columns=self.target)

    def wanted(self, part: str) -> np.ndarray:
        """The target in numbers: of the class, or itself."""
        y = self.parts[part][self.target]
        if not self.classes:
            return y.to_numpy(np.float64)
        return np.searchsorted(np.array(self.classes), y.to_numpy(str)).astype(np.int64)

    def learnt(self, scaling: str = "auto") -> Target:
        """How the target is learnt."""
        y = self.wanted(TRAIN)
        if self.classes:
            return ClassTarget(len(self.classes))
        return NumberTarget.of(y, np.ones(len(y)), scaling)

    def baseline(self, scaling: str = "auto") -> float:
        """Loss on the valid part without a look at the other columns.

        classify: - mean of log((count(class) + 1) / (all + classes))
        regress: mean of (y - mean of the training rows)^2, on the scale on which it is learnt
        """
        if self.classes:
            counts = np.bincount(self.wanted(TRAIN), minlength=len(self.classes)) + 1.0
            return float(-np.log(counts / counts.sum())[self.wanted(VALID)].mean())
        target = self.learnt(scaling)
        train, valid = (target.asked(self.wanted(part)) for part in (TRAIN, VALID))
        return float((valid - train.mean()).square().mean())

    def save(self, folder: Path, score: Path | None, *, most: int) -> None:
        """Write the parts; and those rows that are scored, at most so many."""
        about: dict[str, Any] = {"target": self.target, "kind": self.kind, "batch": self.batch}
        about |= {"classes": self.classes, "types": self.types}
        told = json.dumps(about, ensure_ascii=False)
        for place, parts in ((folder, (TRAIN, VALID)), (score, (TEST,))):
            if place is not None:
                place.mkdir(parents=True, exist_ok=True)
                for name in parts:
                    part = self.parts[name]
                    part = part.iloc[:most] if name == TEST else part
                    part.to_parquet(place / f"{name}.parquet", index=False)
                (place / ABOUT).write_text(told, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path, score: Path | None) -> "Parted":
        """What `save` wrote."""
        told = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        paths = {name: folder / f"{name}.parquet" for name in (TRAIN, VALID)}
        paths |= {TEST: score / f"{TEST}.parquet"} if score is not None else {}
        parts = {name: pd.read_parquet(path) for name, path in paths.items()}
        return cls(**told | {"classes": tuple(told["classes"]), "parts": parts})


def questions(folder: Path) -> list[Question]:
    """The first rows that are scored, in words."""
    path = folder / f"{TEST}.parquet"
    if not path.is_file():
        return []
    target = json.loads((folder / ABOUT).read_text(encoding="utf-8"))["target"]
    part = pd.read_parquet(path).head(SAMPLES)
    asked = part.drop(columns=target)
    more = asked.shape[1] - SHOWN
    made = []
    for (_, row), wanted in zip(asked.iterrows(), part[target], strict=True):
        told = ", ".join(f"{name} {_short(value)}" for name, value in row.iloc[:SHOWN].items())
        told += f" and {more} more" if more > 0 else ""
        made.append(Question(told, _short(wanted)))
    return made


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read(frame: pd.DataFrame, types: Any) -> tuple[Any, np.ndarray]:
    """Columns, and a weight of 1 for each row: what an encoder learns from."""
    return read_columns(frame, types), np.ones(len(frame))
