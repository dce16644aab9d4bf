"""What one visit of the doctor costs beside one plain forward and backward.

    OMP_NUM_THREADS=1 python benchmarks/doctor_cost.py

BERT of 110 M weights, 2 x 128 tokens with their mask. Time: both take turns in one process, the
ratio is the median of the ratios of neighbours. Memory: each in a process of its own, the
peak of its resident set.
"""

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

ROUNDS = 5


def model_and_ids():
    import torch
    import transformers

    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig()).eval()
    return model, torch.randint(5, 30000, (2, 128))


def plain(model, ids) -> None:
    out = model(input_ids=ids, attention_mask=(ids > 0).long())
    out.last_hidden_state.square().mean().backward()
    model.zero_grad(set_to_none=True)


def visit(model, ids) -> None:
    import addnorm

    addnorm.doctor(model, {"input_ids": ids, "attention_mask": (ids > 0).long()})


WAYS: dict[str, Callable[..., None]] = {"plain": plain, "visit": visit}


def seconds(way: Callable[..., None], *given: object) -> float:
    start = time.perf_counter()
    way(*given)
    return time.perf_counter() - start


def peak(name: str) -> float:
    """Peak memory of a process that does it twice, in MB."""
    done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    if len(sys.argv) > 1:
        given = model_and_ids()
        for _ in range(2):
            WAYS[sys.argv[1]](*given)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        return
    given = model_and_ids()
    for way in WAYS.values():
        way(*given)
    rounds = [{n: seconds(way, *given) for n, way in WAYS.items()} for _ in range(ROUNDS)]
    ratios = sorted(r["visit"] / r["plain"] for r in rounds)
    memory = {name: peak(name) for name in WAYS}
    print("| BERT, 110 M, 2 x 128 tokens | median s | peak MB |\n|---|---|---|")
    for name in WAYS:
        middle = statistics.median(r[name] for r in rounds)
        print(f"| {name} | {middle:.2f} | {memory[name]:.0f} |")
    share = memory["visit"] / memory["plain"]
    print(
        f"| visit / plain | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        f" {share:.2f} |"
    )


if __name__ == "__main__":
    main()
