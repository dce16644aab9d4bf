"""Peak memory of one diagnosis compared with one plain forward and backward pass.

    OMP_NUM_THREADS=1 python benchmarks/doctor_memory.py

The model and batch are those of `addnorm bench doctor`, which measures the time: BERT with 110 M
weights and 2 x 128 tokens with a mask. Each candidate runs twice in a new process; the result is
the peak of its resident set.
"""

import resource
import subprocess
import sys

from addnorm.bench.doctor import build_candidates


def measure_peak(name: str) -> float:
    """Return the peak memory in MB of a new process that runs a candidate twice."""
    result = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
    return float(result.stdout.split()[-1])


def main() -> None:
    if len(sys.argv) > 1:
        candidate = build_candidates()[sys.argv[1]]
        for _ in range(2):
            candidate()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    memory = {name: measure_peak(name) for name in build_candidates()}
    print("| BERT, 110 M, 2 x 128 tokens | peak MB |\n|---|---|")
    for name, size in memory.items():
        print(f"| {name} | {size:.0f} |")
    diagnosis, plain = memory.values()
    print(f"| diagnosis / plain | {diagnosis / plain:.2f} |")


if __name__ == "__main__":
    main()
