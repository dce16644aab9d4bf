"""Measure the time to build and initialize a model of 12 layers and 768 features.

    OMP_NUM_THREADS=1 python benchmarks/build_time.py

The peer is the same architecture from Hugging Face transformers, built from its config, in one run.
"""

import statistics
import time
from collections.abc import Callable

import transformers

from addnorm.models import build


def seconds(make: Callable[[], object]) -> float:
    start = time.perf_counter()
    make()
    return time.perf_counter() - start


def main() -> None:
    config = transformers.GPT2Config()
    makers: dict[str, Callable[[], object]] = {
        "addnorm": lambda: build("gpt2"),
        "transformers": lambda: transformers.GPT2LMHeadModel(config),
    }
    first = {name: seconds(make) for name, make in makers.items()}
    rounds = [{name: seconds(make) for name, make in makers.items()} for _ in range(7)]
    print("| GPT-2 small by | first s | median of 7 s | / transformers |\n|---|---|---|---|")
    peer = statistics.median(each["transformers"] for each in rounds)
    for name in makers:
        middle = statistics.median(each[name] for each in rounds)
        print(f"| {name} | {first[name]:.2f} | {middle:.2f} | {middle / peer:.2f} |")


if __name__ == "__main__":
    main()
