"""Recall and false alarms of the doctor on the historic bugs of tests/doctor/models/historic.

Run from the root of the repository; with PYTHONPATH at another checkout's `src`, that doctor is
measured:

    PYTHONPATH=src:. python benchmarks/historic_bugs.py
"""

from collections import Counter

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


if __name__ == "__main__":
    for title, cases in (
        ("development", iter_cases(held_out=False)),
        ("held out", iter_cases(held_out=True)),
        ("later", (("later", case) for case in later.CASES)),
    ):
        print(f"\n{title}")
        measure(cases)
