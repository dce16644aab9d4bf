"""Peak memory of predictions, which must not grow with the number of rows.

    OMP_NUM_THREADS=1 python benchmarks/tabular_memory.py 10000 100000 --model saint

For each number of rows, a new process predicts a random table of 14 columns (8 numeric, 6
categorical) with an estimator of default size. It prints the megabytes by which the prediction
raised the peak, and the predicted rows per second of processor time. The table itself and a
prediction of ten rows are not counted.
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
import pandas as pd


def make_table(rows, seed=0):
    rng = np.random.default_rng(seed)
    numbers = {f"n{index}": rng.normal(size=rows) for index in range(8)}
    texts = {f"c{index}": rng.choice(list("abcdefgh"), rows) for index in range(6)}
    return pd.DataFrame(numbers | texts)


def peak_megabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(rows, model):
    from addnorm.tabular import TabularTransformerClassifier

    train = make_table(2000)
    estimator = TabularTransformerClassifier(model=model, max_epochs=1, random_state=0)
    estimator.fit(train, train["n0"] > 0)
    X = make_table(rows, 1)
    estimator.predict(X.head(10))
    before, start = peak_megabytes(), time.process_time()
    estimator.predict(X)
    seconds = time.process_time() - start
    result = f"{peak_megabytes() - before:6.1f} MB more, {rows / seconds:6.0f} rows/s"
    print(f"{model}, {rows:8,} rows: {result}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--model", default="ft_transformer")
    arguments = parser.parse_args()
    if len(arguments.rows) == 1:
        measure(arguments.rows[0], arguments.model)
    else:
        for rows in map(str, arguments.rows):
            command = [sys.executable, __file__, rows, "--model", arguments.model]
            subprocess.run(command, check=True)
