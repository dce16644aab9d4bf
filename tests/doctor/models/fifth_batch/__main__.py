"""Print what the doctor says about every model of the fifth batch."""

import sys
import warnings
from functools import partial

import torch

import addnorm

from . import CASES, HEALTHY


def main(names: list[str]) -> None:
    warnings.simplefilter("ignore")
    models = [
        (f"{case.name}/{'fixed' if fixed else 'broken'}", partial(case.build, fixed), case, fixed)
        for case in CASES
        for fixed in (False, True)
    ]
    models += [(f"{healthy.name}/healthy", healthy.build, healthy, True) for healthy in HEALTHY]
    for label, build, case, fixed in models:
        if names and label.split("/")[0] not in names:
            continue
        torch.manual_seed(0)
        options = {}
        if getattr(case, "configure", None):
            options = {"config": case.options, "build": partial(case.configure, fixed)}
        try:
            report = addnorm.doctor(build(), case.inputs(), **options)
        except Exception as error:
            print(f"{label}\n    {type(error).__name__}: {error}", flush=True)
            continue
        print(label, flush=True)
        for finding in report.findings:
            print(f"    {finding.severity} {finding.rule} at {finding.path}: {finding.message}")


if __name__ == "__main__":
    main(sys.argv[1:])
