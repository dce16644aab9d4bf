"""Time to build and initialize a model of 12 layers and 768 features.

    OMP_NUM_THREADS=1 python benchmarks/build_time.py

The reference is the same architecture from Hugging Face transformers, built in the same run.
"""

import statistics
import time
from collections.abc import Callable

import transformers

from addnorm.models import build


def measure_seconds(build_model: Callable[[], object]) -> float:
    start = time.perf_counter()
    build_model()
    return time.perf_counter() - start


def main() -> None:
    config = transformers.GPT2Config()
    builders: dict[str, Callable[[], object]] = {
        "addnorm": lambda: build("gpt2"),
        "transformers": lambda: transformers.GPT2LMHeadModel(config),
    }
    first = {name: measure_seconds(builder) for name, builder in builders.items()}
    rounds = [
        {name: measure_seconds(builder) for name, builder in builders.items()} for _ in range(7)
    ]
    print("| GPT-2 small by | first s | median of 7 s | / transformers |\n|---|---|---|---|")
    reference = statistics.median(each["transformers"] for each in rounds)
    for name in builders:
        median = statistics.median(each[name] for each in rounds)
        print(f"| {name} | {first[name]:.2f} | {median:.2f} | {median / reference:.2f} |")


if __name__ == "__main__":
    main()
