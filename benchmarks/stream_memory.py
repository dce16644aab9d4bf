"""Peak memory of `addnorm data files` and of one training step on a large corpus.

    OMP_NUM_THREADS=1 python benchmarks/stream_memory.py [MEGABYTES ...]      (10 100 1000)

For each size, a text file is written to a temporary folder, converted to a corpus and trained on.
Each command runs in a new process, whose peak of resident memory is reported. The disk needs about
four times the largest size; all files are deleted at the end. A tokenizer is trained on a bounded
part of the corpus, so the peak of the first step grows up to that bound and then stays constant.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DISK_FACTOR = 4  # times the text: the text, the spool file, the corpus, and a margin
SMALL = ("dim=32", "depth=1", "heads=2", "steps=1", "monitor_every=0", "device=cpu")


def main(sizes: list[int]) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="addnorm-stream-") as name:
        folder = Path(name)
        if shutil.disk_usage(folder).free < DISK_FACTOR * max(sizes) * 10**6:
            needed = DISK_FACTOR * max(sizes)
            sys.exit(f"expected {needed} MB of free disk space at {folder}; set TMPDIR")
        print("| text | `addnorm data files` MB | s | first step of `addnorm train lm` MB | s |")
        print("|---|---|---|---|---|")
        for size in sizes:
            text, corpus, run = folder / "text", folder / f"{size}", folder / f"{size}-run"
            write_text(text, size * 10**6)
            conversion = measure_peak(
                "data", "files", "--lines", "--text", str(text), "-o", str(corpus)
            )
            text.unlink()
            training = measure_peak("train", "lm", f"data={corpus}", *SMALL, "-o", str(run))
            shutil.rmtree(corpus)
            cells = [f"{value:,.0f}" for pair in (conversion, training) for value in pair]
            print(f"| {size:,} MB | {' | '.join(cells)} |", flush=True)


def write_text(path: Path, size: int) -> None:
    """Write lines of thirty words with a long-tailed vocabulary up to a number of bytes."""
    rng = random.Random(0)
    letters = "etaoinshrdlu"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(100_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    written = 0
    with path.open("w", encoding="ascii") as file:
        while written < size:
            sample = rng.choices(words, weights, k=300_000)
            lines = [" ".join(sample[at : at + 30]) for at in range(0, len(sample), 30)]
            written += file.write("\n".join(lines) + "\n")


def measure_peak(*arguments: str) -> tuple[float, float]:
    """Return the peak resident memory in MB and the seconds of one command."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "addnorm", *arguments], stderr=subprocess.PIPE)
    assert child.stderr is not None
    stderr = child.stderr.read().decode(errors="replace")
    # wait4 reports the usage of this child; getrusage that of the largest child so far.
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"addnorm {' '.join(arguments)} ended with {child.returncode}:\n{stderr}")
    # ru_maxrss is in bytes on macOS and in kilobytes on Linux.
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_maxrss * unit / 1e6, time.perf_counter() - start


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [10, 100, 1000])
