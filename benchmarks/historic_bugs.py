"""Recall and false alarms of the doctor on the bugs of tests/doctor/models/{historic,review}.

Run from the root of the repository; with PYTHONPATH at another checkout's `src`, that doctor is
measured:

    PYTHONPATH=src:. python benchmarks/historic_bugs.py
    PYTHONPATH=src:. python benchmarks/historic_bugs.py --review padding  # one kind
"""

import argparse
from collections import Counter

from tests.doctor.models import review
from tests.doctor.models.historic import iter_cases, later


def measure(cases):
    """Print found, alarming (found above info), and cases by kind, and the false alarms."""
    found, alarming, total, false = Counter(), Counter(), Counter(), 0
    for kind, case in cases:
        named = [f for f in case.findings(bug=True) if f.rule in case.rules]
        total[kind] += 1
        found[kind] += bool(named)
        alarming[kind] += any(f.severity != "info" for f in named)
        false += any(f.severity != "info" for f in case.findings(bug=False))
    for kind in total:
        print(f"{kind:16} {found[kind]:3} ({alarming[kind]} above info) of {total[kind]}")
    print(f"{'all':16} {found.total():3} of {total.total()}, false alarms {false}")


def measure_review(text, *, batch, verbose):
    """Print each bug of a batch whose name or kind contains a text, and the totals."""
    cases = [c for c in review.CASES.values() if c.batch == batch and text in f"{c.name} {c.kind}"]
    models = [m for m in review.HEALTHY.values() if m.batch == batch and text in m.name]
    found, alarms = 0, 0
    for case in cases:
        findings = review.examine_case(case, broken=True)
        is_found = review.is_found(case, findings)
        found += is_found
        rules = ", ".join(dict.fromkeys(f.rule for f in findings)) or "nothing"
        print(
            f"{'found ' if is_found else 'MISSED'} {case.name} [{case.kind}]: {rules}", flush=True
        )
        if verbose:
            print(f"    expected {case.expect}", *findings, sep="\n    ")
        alarms += report_alarms(case.name, review.examine_case(case, broken=False))
    alarms += sum(report_alarms(m.name, review.examine_healthy(m)) for m in models)
    first = sum(review.VERDICTS.get(case.name, {}).get("first_run", False) for case in cases)
    print(f"{found} of {len(cases)} found (first run: {first})")
    print(f"{alarms} false alarms on {len(cases) + len(models)} fixed and healthy models")


def report_alarms(name, findings):
    """Print the findings on a healthy model; return whether there are any."""
    for finding in findings:
        print(f"FALSE ALARM on {name}: {finding}", flush=True)
    return bool(findings)


def main():
    """Measure the historic bugs and the review, or a part of the review."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--review", metavar="TEXT", help="only bugs of the review with this text")
    parser.add_argument("--batch", type=int, action="append", help="only this batch of the review")
    args = parser.parse_args()
    text = args.review
    for title, cases in (
        ("development", iter_cases(held_out=False)),
        ("held out", iter_cases(held_out=True)),
        ("later", (("later", case) for case in later.CASES)),
    ):
        if text is None and not args.batch:
            print(f"\n{title}")
            measure(cases)
    for batch in args.batch or (1, 2, 3):
        print(f"\nreview, batch {batch}")
        measure_review(text or "", batch=batch, verbose=text is not None)


if __name__ == "__main__":
    main()
