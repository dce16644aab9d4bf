"""Memory of predictions: the peak must not grow with the rows.

    OMP_NUM_THREADS=1 python benchmarks/tabular_memory.py 10000 100000

For each number of rows, in a process of its own: a table of 14 columns (8 numeric, 6 categorical)
is made and predicted by an estimator of default size; printed are the megabytes that prediction
added to the peak, beyond the table itself, and the rows a second of processor time.
"""

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


def one(rows):
    from addnorm.tabular import TabularTransformerClassifier

    train = table(2000)
    model = TabularTransformerClassifier(max_epochs=1, random_state=0)
    model.fit(train, train["n0"] > 0)
    X = table(rows, 1)
    model.predict(X.head(10_000))
    before, started = peak(), time.process_time()
    model.predict(X)
    spent = time.process_time() - started
    print(f"{rows:8,} rows: {peak() - before:6.1f} MB more, {rows / spent:6.0f} rows/s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        one(int(sys.argv[1]))
    for rows in sys.argv[1:] if len(sys.argv) > 2 else ():
        subprocess.run([sys.executable, __file__, rows], check=True)
