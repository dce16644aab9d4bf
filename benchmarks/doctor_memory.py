"""Measure the peak memory of one diagnosis against one plain forward and backward pass.

    OMP_NUM_THREADS=1 python benchmarks/doctor_memory.py

BERT of 110 M weights, 2 x 128 tokens with their mask, as in `addnorm bench doctor`, which measures
the time. Each in a process of its own that does it twice: the peak of its resident set.
"""

import resource
import subprocess
import sys

from addnorm.bench.doctor import build_candidates


def peak(name: str) -> float:
    """Return the peak memory in MB of a process that runs the code twice."""
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    if len(sys.argv) > 1:
        way = build_candidates()[sys.argv[1]]
        for _ in range(2):
            way()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    memory = {name: peak(name) for name in build_candidates()}
    print("| BERT, 110 M, 2 x 128 tokens | peak MB |\n|---|---|")
    for name, size in memory.items():
        print(f"| {name} | {size:.0f} |")
    visit, plain = memory.values()
    print(f"| visit / plain | {visit / plain:.2f} |")


if __name__ == "__main__":
    main()
