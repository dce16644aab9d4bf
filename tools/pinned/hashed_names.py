"""Names and values that are hashed or that seed random draws."""

import ast
import json
import tempfile
from collections import Counter
from typing import Any

from addnorm.claims.claim import BUDGETS
from addnorm.claims.claim import registry as claims
from addnorm.claims.table_datasets import TABLES
from addnorm.claims.training_claims import ComparisonClaim
from addnorm.cli.registries import get_registry
from addnorm.comparison.demo import DEMO_SPEC
from addnorm.comparison.grid import Arm, Cell, Grid
from addnorm.comparison.parse import parse_comparison
from addnorm.core.seeds import derive_seed
from addnorm.data.corpus import Corpus, write_corpus
from addnorm.data.demo.dates import make_dates
from addnorm.data.demo.lm import make as make_lm
from addnorm.data.demo.translate import make as make_translate
from addnorm.tasks import get_task
from addnorm.tasks import registry as tasks
from addnorm.train.schedules.base import recommended_schedule
from addnorm.wirings.base import registry as wirings
from tools.pinned.digests import SOURCE, hash_json, walk_sources


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
    return {"demo": parse_comparison(DEMO_SPEC).digest, "claims": digests}


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
        for node in walk_sources()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == derive_seed.__name__
    )
    return dict(sorted(calls.items()))


SMALL_SIZES = {"train": 1500, "valid": 50, "test": 50}


def pin_demo_corpora() -> Any:
    """Return digests of the demo corpora that do not depend on the version of Python."""
    translate, about = get_task("translate").make_demo()
    corpora = {
        "translate": (translate, about | {"python": ""}),
        "translate en fr, small": make_translate(1, ("en", "fr"), sizes=SMALL_SIZES),
        "dates": make_dates(),
    }
    pins: dict[str, Any] = {}
    for name, (splits, about) in corpora.items():
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
