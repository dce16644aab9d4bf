"""Untuned estimators against a hand-set LightGBM: quality, fit time, prediction speed.

    OMP_NUM_THREADS=1 python benchmarks/tabular_boosting.py run FOLDER -o rows.jsonl --seeds 0 1 2
    python benchmarks/tabular_boosting.py table rows.jsonl
    python benchmarks/tabular_boosting.py summary rows.jsonl --arm auto

FOLDER contains the tables of benchmarks/tabular.py, and cpu-act/, bank/ and mfeat-factors/ as
benchmarks/reproductions/talent_to_csv.py writes them, and telco/telco.csv (IBM's
Telco-Customer-Churn.csv); tables whose file is absent are skipped. Tables of scikit-learn and
synthetic ones need no file.

The seed determines the split (a fifth is the test set; Adult and TALENT's tables have published
test rows), the subsample of --rows, and the random state of the model. LightGBM has a learning rate
of 0.03, 63 leaves at most, and stops after 100 rounds without progress on a tenth of the training
rows. An arm is a name below, or JSON options of our estimator. A row that is in the output is
skipped, so the same command resumes.
"""

import argparse
import json
import time
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss, root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor

FILES = {
    "adult": ("adult/train.csv.gz", "income"),
    "california": ("california-housing/housing.csv.gz", "median_house_value"),
    "diamonds": ("diamonds/diamonds.csv.xz", "price"),
    "higgs": ("higgs-small/higgs.csv.xz", "label"),
    "titanic": ("titanic/titanic.csv.gz", "Survived"),
    "telco": ("telco/telco.csv", "Churn"),
    "cpu_act": ("cpu-act/cpu_act.csv.gz", "target"),
    "bank": ("bank/bank.csv.gz", "target"),
    "mfeat": ("mfeat-factors/mfeat_factors.csv.gz", "target"),
}
SKLEARN = ("iris", "wine", "breast_cancer", "digits", "diabetes")
SYNTHETIC = ("wide", "many_classes", "imbalance")
TABLES = (*FILES, *SKLEARN, *SYNTHETIC)
REGRESSION = ("california", "diamonds", "cpu_act", "diabetes")
DROPPED = {"telco": ["customerID"], "titanic": ["PassengerId", "Name", "Ticket"]}
SPEED_ROWS = 20_000
ARMS = ("auto", "lightgbm", "logistic")


def make_synthetic(name):
    """Return a table with 300 columns, 100 classes, or one positive row in 50."""
    sizes = {
        "wide": {"n_samples": 3000, "n_features": 300, "n_informative": 20},
        "many_classes": {
            "n_samples": 10_000, "n_features": 30, "n_informative": 20, "n_classes": 100,
            "n_clusters_per_class": 1, "class_sep": 2.0,
        },
        "imbalance": {"n_samples": 8000, "n_features": 20, "n_informative": 8, "weights": [0.98]},
    }  # fmt: skip
    X, y = datasets.make_classification(**sizes[name], random_state=0)
    return pd.DataFrame(X).add_prefix("x"), pd.Series(y, name="target")


def load_split(folder, name, seed):
    """Return X, y of the training rows and of the test rows."""
    if name in FILES:
        path, target = FILES[name]
        table = pd.read_csv(folder / path).drop(columns=DROPPED.get(name, []))
        if name == "telco":
            table["TotalCharges"] = pd.to_numeric(table["TotalCharges"], errors="coerce")
        if name == "adult" or "split" in table:
            if name == "adult":
                train, test = table, pd.read_csv(folder / "adult/test.csv.gz")
            else:
                is_test = table.pop("split") == "test"
                train, test = table[~is_test], table[is_test]
            parts = [part.reset_index(drop=True) for part in (train, test)]
            return [each for part in parts for each in (part.drop(columns=target), part[target])]
        X, y = table.drop(columns=target), table[target]
    elif name in SYNTHETIC:
        X, y = make_synthetic(name)
    else:
        X, y = getattr(datasets, f"load_{name}")(return_X_y=True, as_frame=True)
    strata = None if name in REGRESSION else y
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, random_state=seed, stratify=strata)
    return [each.reset_index(drop=True) for each in (X, y, X_test, y_test)]


class LightGBM:
    """LightGBM with a small learning rate and early stopping."""

    def __init__(self, regression, seed):
        import lightgbm

        model_class = lightgbm.LGBMRegressor if regression else lightgbm.LGBMClassifier
        self.stop = lightgbm.early_stopping(100, verbose=False)
        self.regression, self.seed = regression, seed
        self.model = model_class(
            n_estimators=5000, learning_rate=0.03, num_leaves=63, min_child_samples=20,
            subsample=0.8, subsample_freq=1, colsample_bytree=0.8, random_state=seed, n_jobs=1,
            verbose=-1,
        )  # fmt: skip

    def fit(self, X, y):
        self.texts = [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]
        self.encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
        X = self._encode(X, fit=True)
        strata = None if self.regression else y
        X, X_valid, y, y_valid = train_test_split(
            X, y, test_size=0.1, random_state=self.seed, stratify=strata
        )
        self.model.fit(
            X, y, eval_set=[(X_valid, y_valid)], callbacks=[self.stop],
            categorical_feature=self.texts or "auto",
        )  # fmt: skip
        return self

    def _encode(self, X, fit=False):
        X = X.copy()
        if self.texts:
            codes = (self.encoder.fit_transform if fit else self.encoder.transform)(X[self.texts])
            X[self.texts] = codes
        return X

    def predict(self, X):
        return self.model.predict(self._encode(X))

    def predict_proba(self, X):
        return self.model.predict_proba(self._encode(X))

    @property
    def classes_(self):
        return self.model.classes_


def make_linear(regression):
    """Return logistic regression or ridge regression on one-hot categories and scaled numbers."""
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    categories = OneHotEncoder(handle_unknown="ignore", min_frequency=3)
    is_text = make_column_selector(dtype_exclude=np.number)
    encoder = make_column_transformer(
        (numbers, make_column_selector(dtype_include=np.number)), (categories, is_text)
    )
    return make_pipeline(encoder, Ridge() if regression else LogisticRegression(max_iter=2000))


def make_model(arm, regression, seed):
    if arm == "lightgbm":
        return LightGBM(regression, seed)
    if arm == "logistic":
        return make_linear(regression)
    model_class = TabularTransformerRegressor if regression else TabularTransformerClassifier
    options = json.loads(arm) if arm.startswith("{") else {"model": arm}
    return model_class(random_state=seed, n_jobs=1, **options)


def measure(model, X, y, X_test, y_test, *, regression):
    start = time.process_time()
    model.fit(X, y)
    row = {"fit": round(time.process_time() - start, 2)}
    predict = model.predict if regression else model.predict_proba
    outputs = predict(X_test)
    repeats = -(-SPEED_ROWS // len(X_test))
    many = pd.concat([X_test] * repeats, ignore_index=True)[:SPEED_ROWS]
    start = time.process_time()
    predict(many)
    row["rows_per_second"] = round(len(many) / (time.process_time() - start))
    if regression:
        return row | {"loss": float(root_mean_squared_error(y_test, outputs))}
    predicted = np.asarray(model.classes_)[outputs.argmax(1)]
    return row | {
        "loss": float(log_loss(y_test, outputs, labels=model.classes_)),
        "accuracy": float(accuracy_score(y_test, predicted)),
    }


def run(arguments):
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    done = {row_key(json.loads(line)) for line in lines}
    for seed in arguments.seeds:
        for name in arguments.tables:
            if name in FILES and not (arguments.folder / FILES[name][0]).exists():
                continue
            X, y, X_test, y_test = load_split(arguments.folder, name, seed)
            regression = name in REGRESSION
            if arguments.rows and len(X) > arguments.rows:
                X, _, y, _ = train_test_split(
                    X, y, train_size=arguments.rows, random_state=seed,
                    stratify=None if regression else y,
                )  # fmt: skip
            for arm in arguments.arms:
                row = {"table": name, "rows": len(X), "seed": seed, "arm": arm}
                if row_key(row) in done:
                    continue
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    model = make_model(arm, regression, seed)
                    row |= measure(model, X, y, X_test, y_test, regression=regression)
                print(json.dumps(row), flush=True)
                with arguments.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def row_key(row):
    return tuple(row[name] for name in ("table", "rows", "seed", "arm"))


def read_groups(path):
    """Return the rows of a file by table and size, then by arm."""
    groups = defaultdict(lambda: defaultdict(list))
    for row in map(json.loads, path.read_text().splitlines()):
        groups[row["table"], row["rows"]][row["arm"]].append(row)
    return groups


def mean(rows, name):
    return float(np.mean([row[name] for row in rows]))


def table(arguments):
    groups = read_groups(arguments.out)
    arms = list(dict.fromkeys(arm for group in groups.values() for arm in group))
    print("| table | rows | seeds |", " | ".join(f"{arm}: loss (CPU s)" for arm in arms), "|")
    print("|---" * (3 + len(arms)) + "|")
    for (name, rows), group in sorted(groups.items()):
        cells = [
            f"{mean(group[arm], 'loss'):.4g} ({mean(group[arm], 'fit'):.3g})"
            if arm in group
            else "-"
            for arm in arms
        ]
        seeds = max(len(each) for each in group.values())
        print(f"| {name} | {rows} | {seeds} |", " | ".join(cells), "|")


def summary(arguments):
    """Print how an arm compares with LightGBM on each table, and how often it is as good."""
    ratios, times = [], []
    for (name, rows), group in sorted(read_groups(arguments.out).items()):
        if arguments.arm not in group or "lightgbm" not in group:
            continue
        ours, boosted = group[arguments.arm], group["lightgbm"]
        seeds = {row["seed"] for row in ours} & {row["seed"] for row in boosted}
        ours, boosted = ([r for r in each if r["seed"] in seeds] for each in (ours, boosted))
        ratios.append(mean(ours, "loss") / mean(boosted, "loss"))
        times.append(mean(ours, "fit") / mean(boosted, "fit"))
        speed = mean(ours, "rows_per_second")
        print(
            f"{name} {rows}: loss {ratios[-1]:.3f} of LightGBM's, fit {times[-1]:.1f} times its "
            f"time, {speed:,.0f} rows/s, {len(seeds)} seeds"
        )
    print(
        f"as good or better on {np.mean(np.array(ratios) <= 1):.0%} of {len(ratios)} tables; "
        f"worst {max(ratios):.3f}; median time {np.median(times):.1f}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("folder", type=Path)
    command.add_argument("-o", "--out", type=Path, required=True)
    command.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    command.add_argument("--arms", nargs="+", default=ARMS)
    command.add_argument("--seeds", type=int, nargs="+", default=[0])
    command.add_argument("--rows", type=int, help="largest number of training rows")
    command.set_defaults(function=run)
    command = commands.add_parser("table")
    command.add_argument("out", type=Path)
    command.set_defaults(function=table)
    command = commands.add_parser("summary")
    command.add_argument("out", type=Path)
    command.add_argument("--arm", default="auto")
    command.set_defaults(function=summary)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
