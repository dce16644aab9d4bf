"""Damage to every file of every folder that addnorm writes: an error in one line, or no effect.

Each case writes a folder once. A trial copies it, damages one file at random and reads it again.
The reader must either raise `UserError` with a one-line message or return what it returned before.
"""

import random
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import addnorm
from addnorm.claims.result import Result
from addnorm.claims.runner import run_claims
from addnorm.comparison.analysis.export import study_to_dict
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.core.errors import UserError
from addnorm.data.corpus import Corpus
from addnorm.report.run_page import write_training_report
from addnorm.tabular import TabularTransformerClassifier, load
from addnorm.tabular.fit_run import FitConfig, fit_run, open_run
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train
from tests.comparison.same_process_engine import SameProcessEngine
from tests.train.cases import SMALL, digest, make_recipe, write_number_corpus

NOT_READ_BACK = {".lock", "report.html"}
QUICK_TRIALS, LONG_TRIALS = 1, 60
"""Trials per file by default and in the long run; the quick ones are the first of the long ones."""


def flip_bit(data, rng):
    """Change one bit, as a failing disk does."""
    position = rng.randrange(len(data))
    return data[:position] + bytes([data[position] ^ 1 << rng.randrange(8)]) + data[position + 1 :]


def change_digit(data, rng):
    """Replace a digit by another, which most formats accept."""
    digits = [index for index, byte in enumerate(data) if 48 <= byte < 58]
    if not digits:
        return flip_bit(data, rng)
    position = rng.choice(digits)
    return data[:position] + bytes([48 + (data[position] - 47) % 10]) + data[position + 1 :]


def truncate(data, rng):
    """Lose the end, as after a full disk."""
    return data[: rng.randrange(len(data))]


def lose_lines(data, rng):
    """Lose the last lines, so that every line that is left is complete."""
    lines = data.splitlines(keepends=True)
    return b"".join(lines[: rng.randrange(len(lines))])


def fill_with_zeros(data, rng):
    """Zero a part, as a file system does after a power failure."""
    start = rng.randrange(len(data))
    end = rng.randrange(start, len(data)) + 1
    return data[:start] + bytes(end - start) + data[end:]


DAMAGES = {
    "flip": flip_bit,
    "digit": change_digit,
    "truncate": truncate,
    "lines": lose_lines,
    "zeros": fill_with_zeros,
    "empty": lambda data, rng: b"",
    "brackets": lambda data, rng: b"[" * 100_000,
    "other": lambda data, rng: rng.choice([b"[]", b"{}", b"null", b"1", b"x: 1\n", b"\xff\xfe"]),
    "delete": lambda data, rng: None,
}


@dataclass
class Case:
    """A folder, and how it is read."""

    folder: Path
    read: Any
    """Function from the folder to a comparable result; None for a noticed loss."""
    files: str = "**/*"


def write_model(root):
    torch.manual_seed(0)
    model = addnorm.build(kind="lm", vocab=20, dim=8, depth=2, heads=2, wiring="b2t")
    model.save(root / "model")
    ids = torch.arange(12).reshape(2, 6)

    def read(folder):
        return addnorm.load(folder).eval()(ids).detach().numpy().tobytes()

    return Case(root / "model", read)


def write_corpus(root):
    write_number_corpus(root / "corpus", "classify")

    def read(folder):
        corpus = Corpus.open(folder)
        corpus.verify()
        return (
            corpus.digest,
            corpus.labels,
            [list(corpus.records(split)) for split in corpus.counts],
        )

    return Case(root / "corpus", read)


def write_run(root):
    corpus = write_number_corpus(root / "numbers", "classify")
    train(make_recipe(corpus.folder, "classify", steps=8), root / "run")
    return root / "run"


def write_run_for_inference(root):
    def read(folder):
        run = TrainedRun.open(folder)
        if not run.is_best:
            return None  # an older checkpoint is used, and commands say so
        weights = {name: value.tolist() for name, value in run.model.state_dict().items()}
        return run.step, run.labels, run.recipe, run.tokenizer.digest, weights

    return Case(write_run(root), read)


def write_run_for_report(root):
    def read(folder):
        return write_training_report(folder).read_bytes()

    return Case(write_run(root), read, files="*")


def write_interrupted_run(root):
    corpus = write_number_corpus(root / "numbers", "lm")
    recipe = make_recipe(corpus.folder, "lm")
    train(recipe, root / "run", until=6)

    def read(folder):
        train(recipe, folder)
        return digest(folder)

    return Case(root / "run", read)


def write_corpus_of_interrupted_run(root):
    corpus = write_number_corpus(root / "numbers", "lm")
    recipe = make_recipe(root / "trial", "lm")
    shutil.copytree(corpus.folder, root / "trial")
    train(recipe, root / "run", until=6)

    def read(folder):
        shutil.rmtree(root / "resumed", ignore_errors=True)
        shutil.copytree(root / "run", root / "resumed")
        train(recipe, root / "resumed")
        return digest(root / "resumed")

    return Case(corpus.folder, read)


def write_comparison(root):
    corpus = write_number_corpus(root / "numbers", "translate")
    keys = {"task": "translate", "data": str(corpus.folder), "wiring": "pre_ln,post_ln", "seeds": 1}
    keys |= {"steps": 4, "lr": 1e-3, "score": 4} | {
        name: SMALL[name] for name in ("dim", "depth", "heads", "tokenizer", "max_length")
    }
    return parse_comparison(keys | {"batch_tokens": 96})


def read_study(folder):
    study = Study.open(folder)
    if not study.complete:
        return None  # a missing result is trained again
    examples = study.task.read_examples(folder)
    return study_to_dict(study), [study.rows(each.cell) for each in study.cells], examples


def write_comparison_for_report(root):
    run_comparison(write_comparison(root), root / "study", engine=SameProcessEngine())
    return Case(root / "study", read_study)


def write_comparison_for_resume(root):
    spec = write_comparison(root)
    run_comparison(spec, root / "study", engine=SameProcessEngine())

    def read(folder):
        run_comparison(spec, folder, engine=SameProcessEngine())
        cells = study_to_dict(Study.open(folder))["cells"]
        return [(cell["loss"], cell["scores"], cell["state"]) for cell in cells]

    return Case(root / "study", read)


def write_table_comparison(root):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame.assign(y=frame["a"] > 0).to_csv(root / "table.csv", index=False)
    keys = {"task": "table", "data": str(root / "table.csv"), "target": "y", "depth": 1, "steps": 2}
    spec = parse_comparison(
        keys | {"seeds": 1, "lr": 1e-3, "dim": 8, "heads": 2, "wiring": "pre_ln"}
    )
    run_comparison(spec, root / "study", engine=SameProcessEngine())
    return Case(root / "study", read_study)


def write_claim(root):
    run_claims(["layer_norm_length"], root / "claims", budget="smoke")

    def read(folder):
        return Result.read(folder / "layer_norm_length")

    return Case(root / "claims", read)


def write_estimator(root):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": list("xyz") * 20})
    estimator = TabularTransformerClassifier(dim=8, depth=1, heads=2, max_epochs=1, random_state=0)
    estimator.fit(frame, np.where(frame["a"] > 0, "yes", "no")).save(root / "estimator")

    def read(folder):
        loaded = load(folder)
        probabilities = loaded.predict_proba(frame).tobytes()
        return probabilities, loaded.feature_importances_.tobytes(), loaded.history_

    return Case(root / "estimator", read)


def write_fit(root):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame = frame.assign(y=np.where(frame["a"] > 0, "yes", "no"))
    params = {"dim": 8, "depth": 1, "heads": 2, "max_epochs": 1}
    config = FitConfig(
        table="t.csv", target="y", task="classify", holdout=0.25, seed=0, params=params
    )
    fit_run(frame, config, root / "fit")

    def read(folder):
        stored, estimator = open_run(folder)
        page = write_training_report(folder).read_bytes()
        return stored, estimator.predict_proba(frame[["a", "b"]]).tobytes(), page

    return Case(root / "fit", read)


CASES = {
    "model": write_model,
    "corpus": write_corpus,
    "run for inference": write_run_for_inference,
    "run for report": write_run_for_report,
    "comparison for report": write_comparison_for_report,
    "table comparison": write_table_comparison,
    "claim": write_claim,
    "estimator": write_estimator,
    "fit": write_fit,
    "comparison for resume": write_comparison_for_resume,
    "interrupted run": write_interrupted_run,
    "corpus of an interrupted run": write_corpus_of_interrupted_run,
}
SLOW_CASES = ("comparison for resume", "interrupted run", "corpus of an interrupted run")
"""Cases whose trials train."""
QUICK_CASES = [name for name in CASES if name not in (*SLOW_CASES, "table comparison")]


def damage_and_read(case, trial_folder, trials, noted):
    """Damage every file `trials` times and check each reading; return the counts by outcome."""
    shutil.rmtree(trial_folder, ignore_errors=True)
    shutil.copytree(case.folder, trial_folder)
    expected = case.read(trial_folder)
    assert expected is not None
    names = sorted(
        str(path.relative_to(case.folder))
        for path in case.folder.glob(case.files)
        if path.is_file() and path.name not in NOT_READ_BACK and path.name[0] != "."
    )
    counts = dict.fromkeys(("error", "same", "noticed"), 0)
    for name in names:
        kinds = list(DAMAGES)
        # A fixed seed for each file. Every kind of damage comes before any comes again.
        random.Random(zlib.crc32(name.encode())).shuffle(kinds)
        for trial in range(trials):
            kind, rng = kinds[trial % len(kinds)], random.Random(f"{name} {trial}")
            shutil.rmtree(trial_folder)
            shutil.copytree(case.folder, trial_folder)
            path = trial_folder / name
            before = path.read_bytes()
            after = DAMAGES[kind](before, rng) if before else b"\x00"
            path.unlink() if after is None else path.write_bytes(after)
            label = f"{name}, {kind}, trial {trial}"
            try:
                result = case.read(trial_folder)
            except UserError as error:
                assert "\n" not in str(error), label
                counts["error"] += 1
            except Exception as error:
                raise AssertionError(f"{label}: {type(error).__name__}: {error}") from error
            else:
                assert result is None or result == expected, f"{label}: another answer"
                counts["noticed" if result is None else "same"] += 1
    noted("trials", counts)
    return counts


@pytest.fixture(autouse=True)
def page_without_charts(monkeypatch):
    """Make the page of a run the data that it shows; drawing takes a second."""
    monkeypatch.setattr(
        "addnorm.report.run_page.render_run_page", lambda folder, *content: repr(content)
    )


@pytest.mark.parametrize("name", QUICK_CASES)
def test_damage_is_an_error_or_has_no_effect(name, tmp_path, record_property):
    case = CASES[name](tmp_path)
    counts = damage_and_read(case, tmp_path / "trial", QUICK_TRIALS, record_property)
    assert counts["error"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_long_campaign(name, tmp_path, record_property):
    case = CASES[name](tmp_path)
    trials = len(DAMAGES) if name in SLOW_CASES else LONG_TRIALS
    counts = damage_and_read(case, tmp_path / "trial", trials, record_property)
    print(f"{name}: {counts}")  # for the ledger, with -rP
    assert counts["error"]
