"""Bugs of public repositories and healthy models, collected without knowledge of the rules.

A batch was written and committed with what a report must say (`expect`) before the doctor ran on it
once. `verdicts.json` records for each bug whether that first run found it, and which rules explain
it; a finding with a wrong explanation does not count. The second batch was written after the misses
of the first had been repaired, the third without reading the rules.

    first batch    bugs/, healthy/
    second batch   second_bugs/, healthy/second.py
    third batch    third_bugs/, healthy/third.py, healthy/third_vision.py
"""

import json
import warnings
from functools import partial
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import torch

import addnorm
from tests.doctor.models.review.case import CASES, HEALTHY, Case, Healthy

FOLDER = Path(__file__).parent
for _part in ("bugs", "second_bugs", "third_bugs", "healthy"):
    for _module in iter_modules([str(FOLDER / _part)]):
        import_module(f"{__name__}.{_part}.{_module.name}")

VERDICTS = json.loads((FOLDER / "verdicts.json").read_text(encoding="utf-8"))
KNOWN_MISSES = {name for name, entry in VERDICTS.items() if not entry["accepted"]}
__all__ = [
    "CASES",
    "HEALTHY",
    "KNOWN_MISSES",
    "VERDICTS",
    "Case",
    "Healthy",
    "examine_case",
    "examine_healthy",
    "is_found",
]


def examine_case(case, *, broken):
    """Return the findings above a remark on the broken or the fixed form of a bug."""
    torch.manual_seed(0)
    example = case.inputs()
    torch.manual_seed(1)
    build = partial(case.build, broken)
    options = {"config": case.options, "build": build} if case.options else {}
    return _examine(partial(build, **case.options), example, **options)


def examine_healthy(model):
    """Return the findings above a remark on a healthy model."""
    torch.manual_seed(0)
    example = model.inputs()
    torch.manual_seed(1)
    return _examine(model.build, example)


def _examine(make, example, **options):
    with warnings.catch_warnings():  # libraries warn while they build
        warnings.simplefilter("ignore")
        report = addnorm.doctor(make(), example, **options)
    return [finding for finding in report.findings if finding.severity != "info"]


def is_found(case, findings):
    """Return whether a finding explains the bug."""
    accepted = VERDICTS.get(case.name, {}).get("accepted", ())
    return any(finding.rule in accepted for finding in findings)
