"""Run the doctor on the review collection: found, missed and false alarms.

    python benchmarks/doctor_review/run.py [--only PART] [--json FILE]

Every bug is listed with what a report must say (`expect`, written before the first run) and with the
findings of severity warning or error. Whether a finding is understood as this bug is a judgment: the rule
ids that were accepted stand in `verdicts.json`, one entry per bug, and are checked here.
"""

import argparse
import json
import sys
import time
import warnings
from functools import partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402
from case import CASES, HEALTHY  # noqa: E402

import addnorm  # noqa: E402

PARTS = (
    "doubled_norms",
    "norm_axes",
    "epsilons",
    "padding",
    "causality",
    "attention",
    "residuals",
    "scales",
    "options",
)


def load_collection():
    """Import every part, which registers its cases."""
    for part in (*PARTS, "healthy_libraries", "healthy_designs"):
        if (HERE / f"{part}.py").exists():
            __import__(part)


def examine(build, inputs, options=None, broken=None):
    """Return the findings of one model above the severity of a remark."""
    torch.manual_seed(0)
    example = inputs()
    torch.manual_seed(1)
    if options:
        build = partial(build, broken)
        report = addnorm.doctor(build(**options), example, config=options, build=build)
    else:
        report = addnorm.doctor(build() if broken is None else build(broken), example)
    return [finding for finding in report.findings if finding.severity != "info"]


def attempt(*args):
    try:
        return examine(*args)
    except Exception as error:  # a crash is a result, too
        return f"{type(error).__name__}: {str(error)[:300]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default="", help="run only cases whose name or kind contains this text"
    )
    parser.add_argument("--json", type=Path, help="also write the findings to this file")
    parser.add_argument("--verbose", action="store_true", help="print every message")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    load_collection()
    verdicts = HERE / "verdicts.json"
    accepted = json.loads(verdicts.read_text()) if verdicts.exists() else {}
    rows, found, alarms = {}, [], []
    chosen = [case for case in CASES.values() if args.only in case.name or args.only in case.kind]
    start = time.time()
    for case in chosen:
        findings = attempt(case.build, case.inputs, case.options, True)
        rules = [] if isinstance(findings, str) else [f.rule for f in findings]
        hit = sorted(set(rules) & set(accepted.get(case.name, ())))
        found += [case.name] if hit else []
        print(
            f"{'found ' if hit else 'MISSED'} {case.name} [{case.kind}]: {findings if isinstance(findings, str) else ', '.join(rules) or 'nothing'}",
            flush=True,
        )
        if args.verbose and not isinstance(findings, str):
            print(f"    expected: {case.expect}")
            for f in findings:
                print(f"    {f.severity} {f.rule} at {f.path}: {f.message}")
        fixed = attempt(case.build, case.inputs, case.options, False)
        rows[case.name] = {
            "rules": rules,
            "fixed": fixed if isinstance(fixed, str) else [f.rule for f in fixed],
        }
        alarms += report_healthy(f"{case.name} (fixed)", fixed)
    others = [
        model for model in HEALTHY.values() if args.only in model.name or args.only == "healthy"
    ]
    for model in others:
        findings = attempt(model.build, model.inputs)
        rows[f"healthy:{model.name}"] = (
            findings if isinstance(findings, str) else [f.rule for f in findings]
        )
        alarms += report_healthy(model.name, findings)
    print(
        f"\n{len(found)} of {len(chosen)} bugs found; {len(alarms)} false alarms on {len(chosen) + len(others)} healthy models; {time.time() - start:.0f} s"
    )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def report_healthy(name, findings):
    """Print the findings on a healthy model; return its name if there are any."""
    if not findings:
        return []
    text = (
        findings
        if isinstance(findings, str)
        else "; ".join(f"{f.severity} {f.rule} at {f.path}: {f.message}" for f in findings)
    )
    print(f"FALSE ALARM {name}: {text}", flush=True)
    return [name]


if __name__ == "__main__":
    main()
