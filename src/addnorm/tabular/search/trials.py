"""Trials of a search, stored as one JSON line each so that a killed search resumes."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from addnorm.core.errors import UserError
from addnorm.core.files import atomic_write, read_json, write_json

SETTINGS_FILE, TRIALS_FILE = "search.json", "trials.jsonl"
COMPLETE, PRUNED, FAILED = "complete", "pruned", "failed"
STATES = (COMPLETE, PRUNED, FAILED)


@dataclass(frozen=True)
class Trial:
    """Parameters that were tried, and their scores."""

    number: int
    params: dict[str, Any]
    """Parameters that differ from those of the estimator; empty for the first trial."""
    state: str
    """How it ended, one of `STATES`."""
    scores: list[float]
    """Score of each split that was finished; greater is better."""
    seconds: list[float]
    """Seconds of the fit of each split that was begun."""
    losses: list[float]
    """Validation loss of each epoch of the first split; empty without validation rows."""
    fraction: float = 1.0
    """Fraction of the training rows that was used."""
    error: str = ""
    """Message of the exception that ended a failed trial."""

    @property
    def score(self) -> float:
        """Mean score over the splits; NaN unless the trial is complete."""
        return float(np.mean(self.scores)) if self.state == COMPLETE else float("nan")

    @classmethod
    def from_json(cls, data: Any) -> "Trial":
        """Rebuild a trial from its JSON object; raise `ValueError` for another one."""
        names = {each.name for each in fields(cls)}
        if not isinstance(data, dict) or set(data) != names or data["state"] not in STATES:
            raise ValueError(f"expected the keys {', '.join(sorted(names))}")
        return cls(**data)


def best_trial(trials: Iterable[Trial]) -> Trial | None:
    """Return the complete trial with the greatest score among those with the most rows."""
    complete = [each for each in trials if each.state == COMPLETE]
    if not complete:
        return None
    most = max(each.fraction for each in complete)
    return max((each for each in complete if each.fraction == most), key=lambda each: each.score)


class TrialLog:
    """Trials of a search in a folder, or in memory only."""

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        """Read the trials of an earlier run with the same settings.

        Args:
            folder: folder of the search; None keeps the trials in memory
            settings: everything that the trials depend on, as JSON data

        Raises:
            UserError: if the folder contains a search with other settings, or a damaged file
        """
        self.folder, self.trials = folder, list[Trial]()
        if folder is None:
            return
        stored = read_json(folder / SETTINGS_FILE, hint="start a new search in another folder")
        if stored is None:
            write_json(folder / SETTINGS_FILE, settings)
            return
        current = json.loads(json.dumps(settings))
        for name in {**stored, **current}:
            if name != "file_format" and stored.get(name) != current.get(name):
                raise UserError(
                    f"{folder}: expected the {name} of the search that it contains, "
                    f"{_shorten(stored.get(name))}, got {_shorten(current.get(name))}; choose "
                    "another folder for another search"
                )
        self.trials = list(_read_trials(folder / TRIALS_FILE))

    def append(self, trial: Trial) -> None:
        """Add a trial; the file is replaced atomically, so that it never ends within a line."""
        self.trials.append(trial)
        if self.folder is not None:
            lines = [json.dumps(asdict(each), ensure_ascii=False) + "\n" for each in self.trials]
            with atomic_write(self.folder / TRIALS_FILE) as temporary:
                temporary.write_text("".join(lines), encoding="utf-8")


def _read_trials(path: Path) -> Iterable[Trial]:
    if not path.is_file():
        return
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        try:
            trial = Trial.from_json(json.loads(line))
            if trial.number != number:
                raise ValueError(f"expected trial {number}, got {trial.number}")
        except (TypeError, ValueError) as error:
            raise UserError(
                f"{path}, line {number + 1}: expected a trial ({error}); delete this line and all "
                "after it to repeat them"
            ) from None
        yield trial


def make_cv_results(trials: Sequence[Trial], splits: int) -> dict[str, Any]:
    """Return trials in the form of `cv_results_` of scikit-learn's searches.

    Splits that a pruned or failed trial did not finish have a score of NaN, and its mean is NaN.
    """
    names = sorted({name for each in trials for name in each.params})
    results: dict[str, Any] = {
        "params": [dict(each.params) for each in trials],
        "state": np.array([each.state for each in trials]),
        "mean_fit_time": np.array([np.mean(each.seconds or [0.0]) for each in trials]),
        "std_fit_time": np.array([np.std(each.seconds or [0.0]) for each in trials]),
        "fraction_of_rows": np.array([each.fraction for each in trials]),
    }
    for name in names:
        values = np.empty(len(trials), dtype=object)
        values[:] = [each.params.get(name) for each in trials]
        mask = [name not in each.params for each in trials]
        results[f"param_{name}"] = np.ma.masked_array(values, mask=mask)
    table = np.full((len(trials), splits), np.nan)
    for row, each in zip(table, trials, strict=True):
        row[: len(each.scores)] = each.scores
    for split in range(splits):
        results[f"split{split}_test_score"] = table[:, split]
    results["mean_test_score"] = np.array([each.score for each in trials])
    is_complete = np.array([each.state == COMPLETE for each in trials])
    results["std_test_score"] = np.where(is_complete, table.std(1), np.nan)
    results["rank_test_score"] = _ranks(trials)
    return results


def _ranks(trials: Sequence[Trial]) -> np.ndarray:
    """Return ranks from 1: complete trials with the most rows first, then by score."""

    def key(trial: Trial) -> tuple[float, float]:
        return (trial.fraction, trial.score) if trial.state == COMPLETE else (-1.0, 0.0)

    keys = [key(each) for each in trials]
    return np.array([1 + sum(other > each for other in keys) for each in keys], dtype=np.int32)


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."
