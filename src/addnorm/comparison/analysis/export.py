"""The result of a comparison as plain data: the content of `result.json`."""

from dataclasses import asdict
from typing import Any

from addnorm.comparison.analysis.study import Study
from addnorm.comparison.grid import Arm
from addnorm.comparison.outcomes import format_rules
from addnorm.core.files import replace_nonfinite


def study_to_dict(study: Study) -> dict[str, Any]:
    """Return everything the report shows, except the curves."""
    summary = [
        asdict(line) | {"arm": line.arm.name, "arrangement": _arm_to_dict(line.arm)}
        for line in study.summary
    ]
    for line in summary:
        line["losses"] = {str(seed): loss for seed, loss in line["losses"].items()}
    cells = [
        {
            "name": each.cell.name,
            "arm": each.cell.arm.name,
            **_arm_to_dict(each.cell.arm),
            "depth": each.cell.depth,
            "warmup": each.cell.warmup,
            "lr": each.cell.lr,
            "seed": each.cell.seed,
            "state": each.state,
            **(each.end.to_dict() if each.end is not None else {}),
        }
        for each in study.cells
    ]
    data = {
        "verdict": study.verdict,
        "complete": study.complete,
        "score": study.score.name,
        "rules": format_rules(study.task.baseline_description, study.task.objective),
        "spec": study.spec.model_dump(mode="json"),
        "digest": study.spec.digest,
        "ground": asdict(study.shared_data) if study.shared_data is not None else None,
        "summary": summary,
        "cells": cells,
    }
    result: dict[str, Any] = replace_nonfinite(data)
    return result


def _arm_to_dict(arm: Arm) -> dict[str, Any]:
    axes = {"axes": dict(arm.extras)} if arm.extras else {}
    return {"wiring": arm.wiring, "norm": arm.norm, "own": arm.own, **axes}
