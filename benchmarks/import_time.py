"""Time of `import addnorm` relative to `import torch`, each in a new process.

    python benchmarks/import_time.py [ROUNDS]

The statements alternate, so that load on the machine affects all of them; medians are compared. The
time excludes the start of the interpreter.
"""

import statistics
import subprocess
import sys

STATEMENTS = {
    "import torch": "import torch",
    "import addnorm": "import addnorm",
    "import addnorm.core": "import addnorm.core",
    "addnorm.Stack and its imports": "import addnorm; addnorm.Stack",
}


def measure_seconds(statement: str) -> float:
    """Return the seconds that one statement takes in a new process."""
    code = f"import time; t = time.perf_counter()\n{statement}\nprint(time.perf_counter() - t)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return float(result.stdout)


def main(rounds: int) -> None:
    """Print the table."""
    for statement in STATEMENTS.values():
        measure_seconds(statement)  # warm the disk cache
    times: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(rounds):
        for name, statement in STATEMENTS.items():
            times[name].append(measure_seconds(statement))
    base = statistics.median(times["import torch"])
    print(f"{'statement':32} {'median s':>9} {'min s':>7} {'max s':>7} {'/ torch':>8}   n={rounds}")
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:32} {median:9.3f} {min(values):7.3f} {max(values):7.3f} {median / base:8.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
