"""Training throughput of our FT-Transformer beside rtdl_revisiting_models, interleaved; rows a
second of processor time.

    OMP_NUM_THREADS=1 python benchmarks/tabular_throughput.py --rounds 9
"""

import argparse
import statistics
import time

import torch
import torch.nn.functional as F

from addnorm.bench.tabular import CATEGORIES, NUMBERS, rivals
from addnorm.models.tabular import Cells
from addnorm.train.optim import make_optimizer

ROWS = 8192


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--plain", action="store_true", help="without dropout")
    parser.add_argument("--bf16", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    numbers = torch.randn(ROWS, NUMBERS)
    codes = torch.stack([torch.randint(size, (ROWS,)) for size in CATEGORIES], 1)
    asked = torch.randint(2, (ROWS,)).float()
    cells = Cells(numbers, torch.zeros(ROWS, NUMBERS, dtype=bool), codes + 2, codes[:, :0, None])
    theirs, ours = rivals(given.depth, plain=given.plain)
    adam = theirs.make_default_optimizer()
    own = make_optimizer("adamw(beta2=0.999)", ours, lr=1e-4, weight_decay=1e-5)
    takes = {
        "rtdl": (lambda at: theirs(numbers[at], codes[at]), adam),
        "addnorm": (lambda at: ours(cells.rows(at)), own),
    }
    seconds = {name: [] for name in takes}
    for number in range(given.rounds + 1):
        for name, (answer, optimizer) in takes.items():
            at = torch.randint(ROWS, (given.batch,))
            started = time.process_time()
            with torch.autocast("cpu", torch.bfloat16, enabled=given.bf16):
                logits = answer(at)[:, 0]
            F.binary_cross_entropy_with_logits(logits.float(), asked[at]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number:
                seconds[name].append(time.process_time() - started)
    medians = {name: statistics.median(each) for name, each in seconds.items()}
    for name, median in medians.items():
        print(f"{name:8} {given.batch / median:8.0f} rows/s  x{medians['rtdl'] / median:.2f}")


if __name__ == "__main__":
    main()
