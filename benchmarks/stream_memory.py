"""What memory a large corpus takes: peaks of `addnorm data files` and of one step of training.

    OMP_NUM_THREADS=1 python benchmarks/stream_memory.py [MEGABYTES ...]      (10 100 1000)

A text file of each size is made in a temporary folder, turned into a corpus and trained on, each in
a process of its own whose peak of resident memory the system tells; all files are deleted at the
end. It needs about four times the size of the largest on the disk. A tokenizer is trained on a
bounded part of a corpus, so the peak of the first step rises up to that bound and then stays.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOM = 4  # times the text: the text, the spool of the corpus, the corpus, and some more
SMALL = ("dim=32", "depth=1", "heads=2", "steps=1", "monitor_every=0", "device=cpu")


def main(sizes: list[int]) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="addnorm-stream-") as name:
        folder = Path(name)
        if shutil.disk_usage(folder).free < ROOM * max(sizes) * 10**6:
            sys.exit(f"wanted {ROOM * max(sizes)} MB free at {folder}; set TMPDIR to another disk")
        print("| text | `addnorm data files` MB | s | first step of `addnorm train lm` MB | s |")
        print("|---|---|---|---|---|")
        for size in sizes:
            text, corpus, run = folder / "text", folder / f"{size}", folder / f"{size}-run"
            write_text(text, size * 10**6)
            made = peak("data", "files", "--text", str(text), "-o", str(corpus))
            text.unlink()
            trained = peak("train", "lm", f"data={corpus}", *SMALL, "-o", str(run))
            shutil.rmtree(corpus)
            cells = [f"{value:,.0f}" for pair in (made, trained) for value in pair]
            print(f"| {size:,} MB | {' | '.join(cells)} |", flush=True)


def write_text(path: Path, size: int) -> None:
    """Lines of thirty words, some frequent and most of them rare, to so many bytes."""
    chance = random.Random(0)
    letters = "etaoinshrdlu"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(100_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    written = 0
    with path.open("w", encoding="ascii") as file:
        while written < size:
            drawn = chance.choices(words, weights, k=300_000)
            lines = [" ".join(drawn[at : at + 30]) for at in range(0, len(drawn), 30)]
            written += file.write("\n".join(lines) + "\n")


def peak(*arguments: str) -> tuple[float, float]:
    """Megabytes of resident memory at most, and seconds, of one command."""
    start = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "addnorm", *arguments], stderr=subprocess.PIPE)
    assert child.stderr is not None
    told = child.stderr.read().decode(errors="replace")
    _, status, used = os.wait4(
        child.pid, 0
    )  # of this child alone; getrusage tells of the largest so far
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"addnorm {' '.join(arguments)} ended with {child.returncode}:\n{told}")
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss: bytes there, kilobytes here
    return used.ru_maxrss * unit / 1e6, time.perf_counter() - start


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [10, 100, 1000])
