"""The result of a comparison as plain data, for programs: `result.json`."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from addnorm.comparison.outcomes import format_rules
from addnorm.core.files import replace_nonfinite

if TYPE_CHECKING:
    from addnorm.comparison.analysis.study import Study


def study_to_dict(study: "Study") -> dict[str, Any]:
    """Everything that the page tells, but the curves."""
    lines = [
        asdict(line) | {"arm": line.arm.name, "arrangement": asdict(line.arm)}
        for line in study.summary
    ]
    for line in lines:
        line["losses"] = {str(seed): loss for seed, loss in line["losses"].items()}
    cells = [
        {
            "name": each.cell.name,
            "arm": each.cell.arm.name,
            **asdict(each.cell.arm),
            "depth": each.cell.depth,
            "warmup": each.cell.warmup,
            "lr": each.cell.lr,
            "seed": each.cell.seed,
            "state": each.state,
            **(each.end.to_dict() if each.end is not None else {}),
        }
        for each in study.cells
    ]
    ground = asdict(study.shared_data) if study.shared_data is not None else None
    told = {
        "verdict": study.verdict,
        "complete": study.complete,
        "score": study.score,
        "rules": format_rules(study.task.baseline_description),
        "spec": study.spec.model_dump(mode="json"),
        "digest": study.spec.digest,
        "ground": ground,
        "summary": lines,
        "cells": cells,
    }
    result: dict[str, Any] = replace_nonfinite(told)
    return result
