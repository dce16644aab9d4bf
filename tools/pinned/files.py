"""Files and keys of saved models, estimators, comparisons and claims."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from addnorm.claims.runner import run_claims
from addnorm.comparison.grid import Grid
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks import get_task, list_tasks
from addnorm.core.rows import read_rows
from addnorm.models.build import build
from addnorm.models.config import Config
from addnorm.models.tabular import TableConfig
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor
from addnorm.tabular.fit_run import FitConfig, fit_run
from addnorm.train.recipe import list_recipe_keys
from tests.comparison.same_process_engine import SameProcessEngine
from tools.pinned.digests import (
    list_defaults,
    list_files,
    list_keys,
    list_tensor_names,
    read_json_keys,
)
from tools.pinned.tiny_data import TINY_RUN, make_tiny_table, write_tiny_corpus


def _comparison_tasks():
    return {name: get_task(name) for name in list_tasks()}


def pin_model_files() -> Any:
    """Return the files of a saved model, and the fields and defaults of its config."""
    config = Config(kind="lm", vocab=16, dim=8, depth=1, heads=2, wiring="b2t", norm="rms")
    with tempfile.TemporaryDirectory() as folder:
        build(config, seed=0).save(folder)
        pins = {
            "files": list_files(Path(folder)),
            "config.json": read_json_keys(Path(folder) / "config.json"),
        }
    return pins | {
        "config defaults": list_defaults(Config.model_fields),
        "table config defaults": list_defaults(TableConfig.model_fields),
    }


def pin_estimator_files() -> Any:
    """Return the files of saved estimators, their keys, and the parameters of the estimators."""
    table = make_tiny_table()
    sizes: dict[str, Any] = {
        "model": "ft_transformer", "dim": 8, "depth": 1, "heads": 2, "max_epochs": 1,
        "random_state": 0, "n_jobs": 1, "column_types": {"note": "string"},
    }  # fmt: skip
    labels, numbers = np.where(table["number"] > 0, "yes", "no"), table["number"] * 2
    pins: dict[str, Any] = {}
    for estimator, target in (
        (TabularTransformerClassifier(**sizes), labels),
        (TabularTransformerRegressor(**sizes), numbers),
    ):
        estimator.fit(table, target)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            estimator.save(folder)
            stored = json.loads((folder / "estimator.json").read_text())
            pins[stored["estimator"]] = {
                "files": list_files(folder),
                "format": [stored["format"], stored["version"]],
                "estimator.json": list_keys(stored),
                "kinds": stored["encoder"]["kinds"],
                "model.safetensors": list_tensor_names(folder / "model.safetensors"),
                "parameters": type(estimator)().get_params(),
            }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = FitConfig(
            table="table.csv", target="flag", task="classify", holdout=0.25, seed=0, params=sizes
        )
        fit_run(table, config, folder)
        rows = list(read_rows(folder / "rows.jsonl"))
        pins["fit"] = {
            "files": list_files(folder),
            "config.yaml": list_keys(yaml.safe_load((folder / "config.yaml").read_text())),
            "rows": sorted({" ".join([str(row["name"]), *sorted(row)]) for row in rows}),
        }
    return pins


def pin_comparison_files() -> Any:
    """Return the files of two short comparisons and their keys."""
    pins: dict[str, Any] = {}
    for task in ("translate", "table"):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "study"
            spec = _parse_tiny_comparison(Path(temporary), task)
            run_comparison(spec, folder, engine=SameProcessEngine())
            cell = next((folder / "cells").glob("*.json"))
            pins[task] = {
                "files": sorted({name.split("/")[0] for name in list_files(folder)}),
                "cells": sorted(path.name for path in (folder / "cells").glob("*.json")),
                "comparison.yaml": list_keys(
                    yaml.safe_load((folder / "comparison.yaml").read_text())
                ),
                "facts.json": read_json_keys(folder / "facts.json"),
                "cells/*.json": read_json_keys(cell),
                "ending": json.loads(cell.read_text())["ending"],
                "result.json": [
                    key
                    for key in read_json_keys(folder / "result.json")
                    if ".states." not in key  # these are values: how a cell ended
                ],
            }
    return pins


def _parse_tiny_comparison(folder: Path, task: str) -> Comparison:
    keys: dict[str, Any] = {"wiring": "pre_ln, rezero", "depth": 1, "lr": 1e-3, "seeds": 1}
    if task == "table":
        table = make_tiny_table()[["number", "color"]]
        table.assign(target=table["number"] * 2).to_csv(folder / "table.csv", index=False)
        keys |= {"data": str(folder / "table.csv"), "target": "target", "steps": 2}
        keys |= {"dim": 8, "heads": 2}
    else:
        keys |= {name: value for name, value in TINY_RUN.items() if name not in ("depth",)}
        keys |= {"data": str(write_tiny_corpus(folder / "data")), "score": 2}
    return parse_comparison({"task": task} | keys)


def pin_comparison_keys() -> Any:
    """Return the fields and defaults of comparisons and grids, and the recipe keys of each task."""
    return {
        "comparison": list_defaults(Comparison.model_fields) | {"grids": "see grid"},
        "grid": list_defaults(Grid.model_fields),
        "recipe keys by task": {
            name: sorted(set(task.list_recipe_keys()) - {key for key, _, _ in list_recipe_keys()})
            for name, task in _comparison_tasks().items()
        },
        "defaults by task": {
            name: dict(task.defaults) for name, task in _comparison_tasks().items()
        },
    }


def pin_claim_files() -> Any:
    """Return the files that running a claim writes, and their keys."""
    name = "layer_norm_length"
    with tempfile.TemporaryDirectory() as temporary:
        run_claims([name], Path(temporary), budget="smoke")
        folder = Path(temporary) / name
        keys = read_json_keys(folder / "result.json")
        row = next(iter(read_rows(folder / "rows.jsonl")))
        return {
            "files": list_files(folder),
            "result.json": [key for key in keys if key != "made.commit"],  # absent outside of git
            "rows.jsonl": sorted(row),
        }
