"""Folders that addnorm writes, each with a function that reads it again."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import addnorm
from addnorm.claims.result import Result
from addnorm.claims.runner import run_claims
from addnorm.comparison.analysis.export import study_to_dict
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.data.corpus import Corpus
from addnorm.report.run_page import write_training_report
from addnorm.tabular import TabularTransformerClassifier, load
from addnorm.tabular.fit_run import FitConfig, fit_run, open_run
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train
from tests.comparison.same_process_engine import SameProcessEngine
from tests.train.cases import SMALL, digest, make_recipe, write_number_corpus


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
    estimator = TabularTransformerClassifier(dim=8, depth=1, max_epochs=1, random_state=0)
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
    params = {"dim": 8, "depth": 1, "max_epochs": 1}
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
