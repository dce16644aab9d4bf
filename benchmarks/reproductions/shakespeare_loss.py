"""Validation loss of a character model as nanoGPT estimates it: 20 batches of 12 random blocks.

    python benchmarks/reproductions/shakespeare_loss.py RUN

Prints the first estimate, and mean and standard deviation of `--repeat` estimates. The loss over
the whole held-out text is that of `addnorm evaluate RUN --split valid`.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from addnorm.data.corpus import Corpus
from addnorm.train.trained_run import TrainedRun

EVAL_ITERS, BATCH_SIZE = 20, 12


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1337)
    options = parser.parse_args()
    run = TrainedRun.open(options.run, task="lm", which="last")
    texts = [record["text"] for record in Corpus.open(run.recipe.data).records("valid")]
    stream = torch.tensor(run.tokenizer.encode(["".join(texts)])[0])
    length = run.recipe.max_length
    generator = torch.Generator().manual_seed(options.seed)
    estimates = []
    for _ in range(options.repeat):
        starts = torch.randint(
            len(stream) - length, (EVAL_ITERS, BATCH_SIZE, 1), generator=generator
        )
        blocks = stream[starts + torch.arange(length + 1)]
        with torch.inference_mode():
            losses = [
                torch.nn.functional.cross_entropy(
                    run.model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()
                )
                for batch in blocks
            ]
        estimates.append(float(torch.stack(losses).mean()))
    result = {"first": estimates[0], "mean": np.mean(estimates), "deviation": np.std(estimates)}
    print(json.dumps({name: round(float(value), 4) for name, value in result.items()}))


if __name__ == "__main__":
    main()
