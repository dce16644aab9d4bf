"""Memory of predictions: the peak must not grow with the rows.

    OMP_NUM_THREADS=1 python benchmarks/tabular_memory.py 10000 100000 --model saint

For each number of rows, in a process of its own: a table of 14 columns (8 numeric, 6 categorical)
is made and predicted by an estimator of default size; printed are the megabytes that prediction
added to the peak, beyond the table itself and ten rows of it, and the rows a second of processor
time.
"""

import argparse
import resource
import subprocess
import sys
import time

import numpy as np
import pandas as pd


def table(rows, seed=0):
    chance = np.random.default_rng(seed)
    numbers = {f"n{place}": chance.normal(size=rows) for place in range(8)}
    texts = {f"c{place}": chance.choice(list("abcdefgh"), rows) for place in range(6)}
    return pd.DataFrame(numbers | texts)


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(rows, model):
    from addnorm.tabular import TabularTransformerClassifier

    train = table(2000)
    made = TabularTransformerClassifier(model=model, max_epochs=1, random_state=0)
    made.fit(train, train["n0"] > 0)
    X = table(rows, 1)
    made.predict(X.head(10))
    before, started = peak(), time.process_time()
    made.predict(X)
    spent = time.process_time() - started
    more = f"{peak() - before:6.1f} MB more, {rows / spent:6.0f} rows/s"
    print(f"{model}, {rows:8,} rows: {more}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--model", default="ft_transformer")
    given = parser.parse_args()
    if len(given.rows) == 1:
        one(given.rows[0], given.model)
    else:
        for rows in map(str, given.rows):
            command = [sys.executable, __file__, rows, "--model", given.model]
            subprocess.run(command, check=True)
