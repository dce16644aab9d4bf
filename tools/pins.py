"""Compute every name and value that stored files, hashes or random draws depend on.

python tools/pins.py          write tests/pins.json
python tools/pins.py --bits   print checksums of trained weights, for comparison on one machine

tests/test_pins.py compares tests/pins.json with the code. Rewrite the file only if the change is
meant: files that users have saved depend on these names.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from safetensors import safe_open
from torch import Tensor, nn

import addnorm
from addnorm.claims.claim import BUDGETS
from addnorm.claims.claim import registry as claims
from addnorm.claims.runner import run_claims
from addnorm.claims.tables import TABLES
from addnorm.claims.trained import ComparisonClaim
from addnorm.cli.main import COMMANDS
from addnorm.cli.registries import FAMILIES, get_registry
from addnorm.comparison.cell import run_cell
from addnorm.comparison.demo import build_demo_comparison
from addnorm.comparison.engines.base import Engine, EventHandler
from addnorm.comparison.grid import Arm, Cell, Grid
from addnorm.comparison.job import Job
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks import TASKS
from addnorm.core.interrupts import StopFlag
from addnorm.core.rows import read_rows
from addnorm.core.seeds import derive_seed
from addnorm.data.corpus import Corpus, write_corpus
from addnorm.data.demo.dates import make_dates
from addnorm.data.demo.lm import make as make_lm
from addnorm.data.demo.translate import make as make_translate
from addnorm.doctor.rules import RULES
from addnorm.kernels.add_norm import autograd  # noqa: F401 (importing registers the operators)
from addnorm.kernels.attention import native as attend  # noqa: F401 (importing registers the operators)
from addnorm.measure.spikes import SpikeDetector
from addnorm.models.build import MODELS, build
from addnorm.models.config import Config
from addnorm.models.presets import PRESETS
from addnorm.models.tabular import MODELS as TABLE_MODELS
from addnorm.models.tabular import TableConfig, build_table_model
from addnorm.models.tabular.numeric_embeddings import make_numeric_embedding
from addnorm.models.tabular.numeric_embeddings import registry as numeric_embeddings
from addnorm.norms.base import make_norm
from addnorm.norms.base import registry as norms
from addnorm.stacks import Decoder, Encoder
from addnorm.sublayers.positions import make_positions
from addnorm.sublayers.positions import registry as positions
from addnorm.sublayers.qk_norm import registry as qk_norms
from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor
from addnorm.tabular.fit_run import FitConfig, fit_run
from addnorm.tasks import get_task
from addnorm.tasks import registry as tasks
from addnorm.train.optimizers.base import registry as optimizers
from addnorm.train.recipe import Recipe, recipe_keys
from addnorm.train.schedules.base import recommended_schedule
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train
from addnorm.wirings.base import registry as wirings

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "addnorm"
PINS = ROOT / "tests" / "pins.json"
BIT_STEPS = 20


# Helpers


def hash_json(value: Any) -> str:
    """Return the first 16 hex digits of the sha256 of a value as JSON with sorted keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def list_keys(value: Any, prefix: str = "") -> list[str]:
    """Return the sorted dotted paths of all keys in nested JSON data, numbers replaced by N."""
    found: set[str] = set()
    if isinstance(value, Mapping):
        for key, item in value.items():
            path = f"{prefix}.{key}" if prefix else str(key)
            found |= {path, *list_keys(item, path)}
    elif isinstance(value, list | tuple):
        for item in value:
            found.update(list_keys(item, f"{prefix}[]"))
    return list_patterns(found)


def list_patterns(keys: Iterable[str]) -> list[str]:
    """Return the sorted distinct keys, every path element that is a number replaced by N."""
    return sorted({re.sub(r"(?<![^.|])\d+(?![^.|])", "N", key) for key in keys})


def read_json_keys(path: Path) -> list[str]:
    """Return the key paths of a JSON file."""
    return list_keys(json.loads(path.read_text(encoding="utf-8")))


def list_files(folder: Path) -> list[str]:
    """Return the sorted relative paths of all files in a folder that are not hidden."""
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    )


def list_tensor_names(path: Path) -> list[str]:
    """Return the patterns of the tensor names in a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return list_patterns(file.keys())


def summarize_state_dict(module: nn.Module) -> str:
    """Return the number of keys of a state_dict and the hash of its names, shapes and dtypes."""
    entries = [
        [name, list(value.shape), str(value.dtype)]
        for name, value in sorted(module.state_dict().items())
    ]
    return f"{len(entries)} keys, sha256 {hash_json(entries)}"


def default_values(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the name and the default value of every field of a pydantic model."""
    return {
        name: "required" if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in fields.items()
    }


def parse_sources() -> Iterable[ast.AST]:
    """Yield every node of the syntax trees of the package."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield from ast.walk(ast.parse(path.read_text(encoding="utf-8")))


# Names that are hashed or seed random draws


def pin_comparison_digests() -> Any:
    """Return the digest of the demo and, by claim, budget and study, of every comparison."""
    digests = {}
    for name in claims:
        claim = claims.member(name)()
        if isinstance(claim, ComparisonClaim):
            digests[name] = {
                budget: {
                    study: comparison.digest
                    for study, comparison in claim.comparisons(budget).items()
                }
                for budget in BUDGETS
            }
    return {"demo": build_demo_comparison().digest, "claims": digests}


def pin_claim_settings() -> Any:
    """Return the hash of the settings of every claim at each budget."""
    return {
        name: {budget: hash_json(claims.member(name)().settings(budget)) for budget in BUDGETS}
        for name in claims
    }


def pin_cell_names() -> Any:
    """Return the folder names of cells with usual and unusual settings."""
    long_call = "drop_path(inner=layer_drop(inner=mix_ln(post=0.25), rate=0.125), rate=0.0625)"
    cells = [
        Cell(Arm("pre_ln"), 6, 0, 1e-3, 0),
        Cell(Arm("pre_ln"), 12, 100, 3e-4, 200),
        Cell(Arm("post_ln", "rms"), 6, 0, 1e-5, 1),
        Cell(Arm("post_ln", own=True), 6, None, 1e-3, 0),
        Cell(Arm("b2t", "rms", own=True), 6, None, 1e-3, 0),
        Cell(Arm("mix_ln(post=0.25)"), 6, 100, 1e-3, 0),
        Cell(Arm("drop_path(inner=b2t, rate=0.2)", "layer(eps=1e-06)"), 3, 7, 1e-3, 5),
        Cell(Arm(long_call, "group(groups=4)"), 24, 4000, 1e-2, 12),
        Cell(Arm("pre_ln"), 6, 0, 0.00012345678, 0),
        Cell(Arm("pre_ln"), 6, 0, 1 / 3, 0),
        Cell(Arm("pre_ln"), 6, 0, 1.0, 0),
        Cell(Arm("pre_ln"), 6, 0, 1e20, 0),
    ]
    grid = Grid(wiring="post_ln, drop_path(b2t, rate=0.2)", norm="layer, rms", warmup="0,own")
    return {
        "cells": [cell.name for cell in cells],
        "grid": [cell.name for cell in grid.cells([0, 1])],
    }


def pin_derived_seeds() -> Any:
    """Return the seeds of the paths that the library uses."""
    paths: list[tuple[int, tuple[object, ...]]] = [
        (0, ()), (0, ("step", 7, 0)), (3, ("data",)), (3, ("init",)), (3, ("fit",)),
        (3, ("order", 2)), (3, ("rows",)), (3, ("rows", 1, 4)), (3, ("training",)),
        (3, ("pretrain",)), (3, ("start",)), (200, ("claim",)), (0, ("table", "waves")),
        (0, ("table", "gaps", "views")), (0, ("demo", "order")), (0, ("demo", "dates")),
        (0, ("demo", "lm")), (0, ("demo", "classify", "json")),
        (0, ("demo", "classify", "order", "train")), (0, ("demo", "translate", "currency")),
        (5, ("draw", 1, 2)), (5, ("pools", 0)), (5, ("columns",)), (5, ("missing", "0.25")),
        (5, ("noise", "0.5")),
    ]  # fmt: skip
    return {" ".join(map(str, (seed, *path))): derive_seed(seed, *path) for seed, path in paths}


def pin_seed_path_literals() -> Any:
    """Return how often each path is passed to derive_seed in the source, variables as *."""
    calls = Counter(
        " ".join(
            str(argument.value) if isinstance(argument, ast.Constant) else "*"
            for argument in node.args[1:]
        )
        for node in parse_sources()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == derive_seed.__name__
    )
    return dict(sorted(calls.items()))


SMALL_SIZES = {"train": 1500, "valid": 50, "test": 50}


def pin_demo_corpora() -> Any:
    """Return digests of the demo corpora that do not depend on the version of Python."""
    translate, about = get_task("translate").make_demo()
    made = {
        "translate": (translate, about | {"python": ""}),
        "translate en fr, small": make_translate(1, ("en", "fr"), sizes=SMALL_SIZES),
        "dates": make_dates(),
    }
    pins: dict[str, Any] = {}
    for name, (splits, about) in made.items():
        with tempfile.TemporaryDirectory() as folder:
            write_corpus(folder, "translate", splits=splits, about=about)
            pins[name] = {
                "about": {key: about[key] for key in about if key != "phrases"},
                "phrase kinds": sorted(about.get("phrases", ())),
                "counts": {split: len(records) for split, records in splits.items()},
                "records": hash_json(splits),
                "digest": Corpus.open(folder).digest[:16],
            }
    facts = make_lm(0)[1]
    pins["lm"] = {"keys": sorted(facts), "note": facts["note"]}
    pins["sources"] = {name: get_task(name).demo_source for name in tasks}
    return pins


def pin_claim_tables() -> Any:
    """Return hashes of the tables of claims, rounded: the last digits depend on the machine."""
    return {name: hash_json(make().round(6).to_csv(index=False)) for name, make in TABLES.items()}


def pin_call_strings() -> Any:
    """Return canonical call strings and the schedule that is recommended for each wiring."""
    samples = {
        "wirings": ["drop_path(b2t, rate=0.2)", "mix_ln(post=0.5)", "pre_ln( first_norm = False )"],
        "norms": ["layer", "rms(eps=0.00001)", "group(groups=2)"],
        "schedules": ["cosine(warmup=10)", "inverse_sqrt", "wsd"],
        "optimizers": ["adamw(beta2=0.98)", "muon"],
        "positions": ["learned(length=5)", "rotary(share=0.5, layout=interleaved)"],
    }
    return {
        "canonical": {
            family: {call: str(get_registry(family).resolve(call)) for call in calls}
            for family, calls in samples.items()
        },
        "recommended schedules": {name: recommended_schedule(name) for name in wirings},
    }


def pin_signatures() -> Any:
    """Return the hash of each part of the stored signatures of the doctor."""
    path = next(SOURCE.rglob("signatures.json"))
    return {key: hash_json(value) for key, value in json.loads(path.read_text()).items()}


# Names in weights


def pin_stack_weights() -> Any:
    """Return names and shapes of the weights of every wiring's encoders and decoders."""
    stacks: dict[str, tuple[type[Encoder] | type[Decoder], dict[str, int]]] = {
        "encoder alone": (Encoder, {}),
        "encoder of a pair": (Encoder, {"other_depth": 4}),
        "decoder alone": (Decoder, {}),
        "decoder of a pair": (Decoder, {"other_depth": 4}),
    }
    pins: dict[str, Any] = {}
    outside: set[str] = set()
    for wiring in wirings:
        own: set[str] = set()
        pins[wiring] = {}
        for label, (kind, options) in stacks.items():
            stack = kind(dim=8, depth=4, heads=2, wiring=wiring, **options)
            patterns = list_patterns(stack.state_dict())
            own.update(name for name in patterns if name.startswith("wiring."))
            outside.update(name for name in patterns if not name.startswith("wiring."))
            pins[wiring][label] = summarize_state_dict(stack)
            pins[wiring]["extra state"] = bytes(stack.get_extra_state().tolist()).decode()
        pins[wiring]["patterns"] = sorted(own)
    return {"wirings": pins, "patterns outside of wirings": sorted(outside)}


def pin_layer_weights() -> Any:
    """Return names and shapes of the weights of norms, positions and the options of layers."""
    modules: dict[str, nn.Module] = {}
    modules |= {f"norm {name}": make_norm(name, 8) for name in norms}
    modules |= {f"position {name}": make_positions(name, dim=8, heads=2) for name in positions}
    modules |= {
        f"numeric {name}": make_numeric_embedding(name, 3, 8) for name in numeric_embeddings
    }
    options: dict[str, dict[str, Any]] = {f"qk_norm {name}": {"qk_norm": name} for name in qk_norms}
    options |= {f"activation {name}": {"activation": name} for name in ("relu", "gelu", "swiglu")}
    options |= {
        "no bias": {"bias": False},
        "kv_heads": {"kv_heads": 1},
        "embed_norm": {"embed_norm": "layer"},
    }
    modules |= {name: Decoder(dim=8, depth=1, heads=2, **each) for name, each in options.items()}
    return {
        name: {
            "summary": summarize_state_dict(module),
            "patterns": [key for key in list_patterns(module.state_dict()) if "_proj." not in key],
        }
        for name, module in modules.items()
    }


def pin_model_weights() -> Any:
    """Return names and shapes of the weights of each kind of model and each preset, made small."""
    sizes: dict[str, Any] = {"vocab": 16, "dim": 8, "depth": 2, "heads": 2}
    models = {
        f"kind {kind}": build(
            kind=kind, **sizes, **({"classes": 3} if kind == "classifier" else {}), device="meta"
        )
        for kind in MODELS
    }
    models |= {f"preset {name}": build(PRESETS[name].tiny, device="meta") for name in PRESETS}
    keys = (key for model in models.values() for key in model.state_dict())
    return {
        "models": {name: summarize_state_dict(model) for name, model in models.items()},
        "patterns": list_patterns(keys),
    }


def pin_table_model_weights() -> Any:
    """Return names and shapes of the weights of every table model."""
    columns: dict[str, Any] = {"numbers": 3, "categories": (4, 5), "texts": (6,), "outputs": 2}
    sizes: dict[str, Any] = {"dim": 8, "depth": 2, "heads": 2}
    pins = {}
    for name, kind in TABLE_MODELS.items():
        config = TableConfig.from_kwargs(model=name, **kind.defaults | sizes | columns)
        model = build_table_model(config, seed=0)
        pins[name] = {
            "defaults": kind.defaults,
            "summary": summarize_state_dict(model),
            "patterns": list_patterns(model.state_dict()),
        }
    return pins


def pin_operators() -> Any:
    """Return the names of the torch operators of this package."""
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name for name in names if name.startswith("addnorm::"))


# Keys of files


TINY_RUN: dict[str, Any] = {
    "dim": 8, "depth": 1, "heads": 2, "tokenizer": "char", "max_length": 16, "batch_tokens": 64,
    "steps": 4, "log_every": 1, "monitor_every": 2, "valid_every": 2, "save_every": 2,
}  # fmt: skip


def write_tiny_corpus(folder: Path, task: str = "translate") -> Path:
    """Write a corpus of a few numbers."""
    numbers = [str(137 * number) for number in range(1, 40)]
    records = {
        "translate": [{"source": text, "target": text[::-1]} for text in numbers],
        "lm": [{"text": text} for text in numbers],
        "classify": [{"text": text, "label": ["even", "odd"][int(text) % 2]} for text in numbers],
        "mlm": [{"text": text} for text in numbers],
    }[task]
    splits = {"train": records[:24], "valid": records[24:32], "test": records[32:]}
    return write_corpus(folder, task, splits=splits, about={"source": "numbers"}).folder


TEXT_TASKS = ("translate", "lm", "classify", "mlm")
SPIKE_POLICIES = ("log", "skip", "rewind")


@contextmanager
def every_loss_is_a_spike() -> Iterator[None]:
    """Make the spike detector report a spike at every step."""
    original = SpikeDetector.update
    SpikeDetector.update = lambda self, loss: "spike"  # type: ignore[method-assign]
    try:
        yield
    finally:
        SpikeDetector.update = original  # type: ignore[method-assign]


@cache
def train_tiny_runs() -> dict[str, Any]:
    """Train each task and each optimizer for a few steps; return names in what was written."""
    jobs: dict[str, dict[str, Any]] = {task: {"task": task, "ema": 0.5} for task in TEXT_TASKS}
    jobs |= {f"optimizer {name}": {"task": "lm", "optimizer": name} for name in optimizers}
    jobs["not finite"] = {"task": "lm", "lr": 1e30, "clip": None, "schedule": "none"}
    jobs |= {f"on_spike {name}": {"task": "lm", "on_spike": name} for name in SPIKE_POLICIES}
    files: dict[str, Any] = {}
    rows: dict[str, Any] = {}
    for name, keys in jobs.items():
        with tempfile.TemporaryDirectory() as temporary:
            data = write_tiny_corpus(Path(temporary) / "data", keys["task"])
            folder = Path(temporary) / "run"
            recipe = Recipe.from_dict(TINY_RUN | {"data": str(data)} | keys)
            if name.startswith("on_spike"):
                with every_loss_is_a_spike():
                    train(recipe, folder)
            else:
                train(recipe, folder)
            checkpoint = folder / "checkpoints" / "step-4"
            if name.startswith("optimizer"):
                tensors = list_tensor_names(checkpoint / "optimizer.safetensors")
                files[name] = sorted({tensor.rpartition("|")[2] for tensor in tensors})
                continue
            names: dict[str, set[str]] = {}
            for row in read_rows(folder / "rows.jsonl"):
                names.setdefault(str(row["name"]), set()).update(row)
            rows[name] = {each: sorted(fields) for each, fields in sorted(names.items())}
            if name not in TEXT_TASKS:
                rows[name] = {each: rows[name][each] for each in names if each not in rows["lm"]}
                continue
            files[name] = {
                "files": list_files(folder),
                "config.yaml": list_keys(yaml.safe_load((folder / "config.yaml").read_text())),
                "arrangement.json": read_json_keys(folder / "arrangement.json"),
                "state.json": read_json_keys(checkpoint / "state.json"),
                "model.safetensors": list_tensor_names(checkpoint / "model.safetensors"),
                "average.safetensors": len(list_tensor_names(checkpoint / "average.safetensors")),
            }
    return {"files": files, "rows": rows}


def pin_run_files() -> Any:
    """Return the files of a training run and their keys."""
    return train_tiny_runs()["files"] | {"spike detector": sorted(SpikeDetector().to_dict())}


def pin_row_names() -> Any:
    """Return the names and fields of the rows of training runs; of failures only what is new."""
    return train_tiny_runs()["rows"]


def pin_model_files() -> Any:
    """Return the files of a saved model, and the fields and defaults of its config."""
    config = Config.from_kwargs(
        kind="lm", vocab=16, dim=8, depth=1, heads=2, wiring="b2t", norm="rms"
    )
    with tempfile.TemporaryDirectory() as folder:
        build(config, seed=0).save(folder)
        pins = {
            "files": list_files(Path(folder)),
            "config.json": read_json_keys(Path(folder) / "config.json"),
        }
    return pins | {
        "config defaults": default_values(Config.model_fields),
        "table config defaults": default_values(TableConfig.model_fields),
    }


def make_tiny_table(rows: int = 40) -> pd.DataFrame:
    """Return a table with a column of every type."""
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "number": generator.normal(size=rows),
            "flag": generator.random(rows) < 0.5,
            "color": generator.choice(["red", "green", "blue"], rows),
            "note": [f"item {row} of box {row % 7}, serial {7919 * row}" for row in range(rows)],
            "day": pd.Timestamp("2026-01-01")
            + pd.to_timedelta(generator.integers(0, 900, rows), "D"),
        }
    )


def pin_estimator_files() -> Any:
    """Return the files of saved estimators, their keys, and the parameters of the estimators."""
    table = make_tiny_table()
    sizes: dict[str, Any] = {
        "dim": 8, "depth": 1, "heads": 2, "max_epochs": 1, "random_state": 0, "n_jobs": 1,
        "column_types": {"note": "string"},
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


class SameProcessEngine(Engine):
    """Runs cells one after the other in this process, which is quicker for a few tiny ones."""

    workers = 1

    def run(self, jobs: Sequence[Job], told: EventHandler, bell: StopFlag) -> None:
        for job in jobs:
            job.folder.parent.mkdir(exist_ok=True)
            run_cell(job, lambda step, loss: None)


def pin_comparison_files() -> Any:
    """Return the files of two short comparisons and their keys."""
    pins: dict[str, Any] = {}
    for task in ("translate", "table"):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) / "study"
            spec = _tiny_comparison(Path(temporary), task)
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


def _tiny_comparison(folder: Path, task: str) -> Comparison:
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
        "comparison": default_values(Comparison.model_fields) | {"grids": "see grid"},
        "grid": default_values(Grid.model_fields),
        "recipe keys by task": {
            name: sorted(set(task.recipe_keys()) - {key for key, _, _ in recipe_keys()})
            for name, task in TASKS.items()
        },
        "defaults by task": {name: dict(task.defaults) for name, task in TASKS.items()},
    }


def pin_recipe_keys() -> Any:
    """Return every key of a recipe with its default."""
    return {name: default for name, default, _ in recipe_keys()}


def pin_claim_files() -> Any:
    """Return the files of a claim that was run and their keys."""
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


# Names that users type


def pin_families() -> Any:
    """Return names, options and hashes of the cards that `addnorm list FAMILY --json` prints."""
    pins: dict[str, Any] = {"families": list(FAMILIES), "card keys": set()}
    for family in FAMILIES:
        cards = [card.to_dict() for card in get_registry(family).cards()]
        pins["card keys"] |= set().union(*cards)
        texts = {
            card["name"]: hash_json([card["title"], card["formula"], card["paper"]])
            for card in cards
        }
        if family == "claims":  # ids are pinned in a section of their own
            pins[family] = sorted(texts.values())
        elif family == "presets":
            pins[family] = {
                card["name"]: f"{texts[card['name']]}, options {hash_json(card['options'])}"
                for card in cards
            }
        else:
            pins[family] = {
                card["name"]: {"text": texts[card["name"]], "options": card["options"]}
                for card in cards
            }
    return pins | {"card keys": sorted(pins["card keys"])}


def pin_claim_ids() -> Any:
    """Return the ids of all claims."""
    return sorted(claims)


def pin_commands() -> Any:
    """Return the verbs of the command line, with the commands of those that are groups."""
    pins = {}
    for verb, command in COMMANDS.items():
        registered = getattr(command, "registered_commands", ())
        pins[verb] = sorted(each.name or each.callback.__name__ for each in registered)
    return pins


def pin_public_names() -> Any:
    """Return the public names of the package; each one must be importable."""
    for name in addnorm.__all__:
        getattr(addnorm, name)
    return sorted(addnorm.__all__)


def pin_doctor_rules() -> Any:
    """Return the ids of the rules of the doctor."""
    return sorted(RULES)


SECTIONS: dict[str, Callable[[], Any]] = {
    "call_strings": pin_call_strings,
    "cell_names": pin_cell_names,
    "claim_files": pin_claim_files,
    "claim_ids": pin_claim_ids,
    "claim_settings": pin_claim_settings,
    "claim_tables": pin_claim_tables,
    "commands": pin_commands,
    "comparison_digests": pin_comparison_digests,
    "comparison_files": pin_comparison_files,
    "comparison_keys": pin_comparison_keys,
    "demo_corpora": pin_demo_corpora,
    "derived_seeds": pin_derived_seeds,
    "doctor_rules": pin_doctor_rules,
    "estimator_files": pin_estimator_files,
    "families": pin_families,
    "layer_weights": pin_layer_weights,
    "model_files": pin_model_files,
    "model_weights": pin_model_weights,
    "operators": pin_operators,
    "public_names": pin_public_names,
    "recipe_keys": pin_recipe_keys,
    "row_names": pin_row_names,
    "run_files": pin_run_files,
    "seed_path_literals": pin_seed_path_literals,
    "signatures": pin_signatures,
    "stack_weights": pin_stack_weights,
    "table_model_weights": pin_table_model_weights,
}


def compute_section(name: str) -> Any:
    """Return the pins of one section as JSON data."""
    return json.loads(json.dumps(SECTIONS[name](), default=str))


def find_differences(stored: Any, computed: Any, path: str = "") -> Iterable[str]:
    """Yield a line for each place where two values of JSON data differ."""
    if isinstance(stored, dict) and isinstance(computed, dict):
        for key in sorted({*stored, *computed}):
            where = f"{path} / {key}" if path else key
            if key not in computed:
                yield f"{where}: is gone, was {_shorten(stored[key])}"
            elif key not in stored:
                yield f"{where}: is new, {_shorten(computed[key])}"
            else:
                yield from find_differences(stored[key], computed[key], where)
    elif isinstance(stored, list) and isinstance(computed, list) and stored != computed:
        old, new = (list(map(json.dumps, each)) for each in (stored, computed))
        changed = [f"is gone, {each}" for each in old if each not in new]
        changed += [f"is new, {each}" for each in new if each not in old]
        yield from (f"{path}: {each}" for each in changed or ["the order or the count changed"])
    elif stored != computed:
        yield f"{path}: was {_shorten(stored)}, is {_shorten(computed)}"


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else text[:157] + "..."


def write_pins() -> None:
    """Write tests/pins.json."""
    pins = {name: compute_section(name) for name in SECTIONS}
    text = json.dumps(pins, indent=1, sort_keys=True, ensure_ascii=False)
    PINS.write_text(text + "\n", encoding="utf-8")


# Checksums of trained weights


def hash_weights(weights: Mapping[str, Tensor]) -> str:
    """Return the sha256 of the bytes of all tensors in the order of their names."""
    checksum = hashlib.sha256()
    for _, value in sorted(weights.items()):
        checksum.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return checksum.hexdigest()


def print_weight_checksums() -> None:
    """Train on demo data and print a checksum of the weights of each task, in this process."""
    torch.set_num_threads(1)
    label = os.environ.get("ADDNORM_NATIVE") or "on"
    keys: dict[str, Any] = TINY_RUN | {
        "dim": 32, "depth": 2, "heads": 4, "steps": BIT_STEPS, "max_length": 64,
        "batch_tokens": 256, "valid_every": 10, "save_every": 10, "monitor_every": 10,
        "device": "cpu",
    }  # fmt: skip
    for task in ("translate", "lm", "classify"):
        with tempfile.TemporaryDirectory() as temporary:
            splits, about = get_task(task).make_demo()
            short = {split: records[:300] for split, records in splits.items()}
            data = write_corpus(Path(temporary) / "data", task, splits=short, about=about).folder
            folder = Path(temporary) / "run"
            train(
                Recipe.from_dict(keys | {"task": task, "data": str(data), "dropout": 0.1}), folder
            )
            weights = TrainedRun.open(folder, device="cpu", which="last").model.state_dict()
            print(f"{task} native={label} {hash_weights(weights)}", flush=True)
    table = make_tiny_table(rows=320)
    labels = np.where(table["number"] > 0, "yes", "no")
    for model in TABLE_MODELS:
        estimator = TabularTransformerClassifier(
            model=model, dim=64, depth=2, heads=None if model == "mlp" else 8, max_epochs=2,
            batch_size=64, random_state=0, n_jobs=1, device="cpu",
        ).fit(table, labels)  # fmt: skip
        weights = estimator.module_.state_dict()
        print(f"fit {model} native={label} {hash_weights(weights)}", flush=True)


def run_bits() -> None:
    """Print the checksums without and with the native kernels, each in a process of its own."""
    for native in ("off", ""):
        environment = os.environ | {"ADDNORM_NATIVE": native, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--bits-here"]
        subprocess.run(command, env=environment, check=True)


def main() -> None:
    """Write the pins, or print checksums of trained weights."""
    parser = argparse.ArgumentParser(description="Write tests/pins.json.")
    parser.add_argument("--bits", action="store_true", help="print checksums of trained weights")
    parser.add_argument("--bits-here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bits:
        run_bits()
    elif arguments.bits_here:
        print_weight_checksums()
    else:
        write_pins()


if __name__ == "__main__":
    main()
