"""Comparison of untuned estimators with gradient boosting and rtdl's FT-Transformer.

    OMP_NUM_THREADS=1 python benchmarks/tabular.py run FOLDER -o rows.jsonl --seeds 0 1 2
    python benchmarks/tabular.py table rows.jsonl

FOLDER contains adult/, california-housing/, diamonds/, higgs-small/ and titanic/. The seed
determines the split (a fifth is the test set; Adult has its own), the cells removed by --missing,
and the random state of the estimator. rtdl gets the processor seconds of our fit, its own
defaults, quantile-transformed numbers, the mean for missing numbers and a separate code for missing
categories. Rows already in the output (same table, fraction of missing cells, seed, training rows,
options and arm) are skipped.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import accuracy_score, roc_auc_score, root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OrdinalEncoder, QuantileTransformer

from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor

TABLES = {
    "adult": ("adult/train.csv.gz", "income"),
    "california": ("california-housing/housing.csv.gz", "median_house_value"),
    "diamonds": ("diamonds/diamonds.csv.xz", "price"),
    "higgs": ("higgs-small/higgs.csv.xz", "label"),
    "titanic": ("titanic/titanic.csv.gz", "Survived"),
}
REGRESSION_TABLES = ("california", "diamonds")
MAX_CATEGORIES = 250  # scikit-learn's limit
PATIENCE = 16  # epochs of rtdl without a lower validation loss


def load_split(folder, name, seed):
    """Return (train, test), each as (X, y)."""
    path, target = TABLES[name]
    table = pd.read_csv(folder / path)
    if name == "adult":
        train, test = table, pd.read_csv(folder / "adult/test.csv.gz")
    else:
        train, test = train_test_split(table, test_size=0.2, random_state=seed)
    split = [(part.drop(columns=target), part[target]) for part in (train, test)]
    return [(X.reset_index(drop=True), y.reset_index(drop=True)) for X, y in split]


def remove_cells(X, fraction, seed):
    """Return the table with a fraction of all cells removed at random."""
    removed = np.random.default_rng(seed).random(X.shape) < fraction
    return X.astype(object).mask(removed).infer_objects() if fraction else X


def text_columns(X):
    return [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]


def make_boosting(kind, X, seed, regression):
    """Return (encoder, model, fit options) of gradient boosting with default parameters.

    Categories are passed as such; columns with more values than scikit-learn allows are dropped.
    """
    texts = [name for name in text_columns(X) if X[name].nunique() < MAX_CATEGORIES]
    others = [name for name in X if name not in text_columns(X)]
    encoder = make_column_transformer(
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan), texts),
        ("passthrough", others),
    )
    categorical = list(range(len(texts)))
    if kind == "hist_gradient_boosting":
        model_class = (
            HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
        )
        return encoder, model_class(categorical_features=categorical, random_state=seed), {}
    import lightgbm

    model_class = lightgbm.LGBMRegressor if regression else lightgbm.LGBMClassifier
    model = model_class(random_state=seed, n_jobs=1, verbose=-1)
    return encoder, model, {"categorical_feature": categorical}


class RtdlEstimator:
    """rtdl's FT-Transformer with default parameters, early stopping and a time budget."""

    def __init__(self, seconds, regression, seed):
        self.seconds, self.regression, self.seed = seconds, regression, seed

    def fit(self, X, y):
        from rtdl_revisiting_models import FTTransformer

        torch.manual_seed(self.seed)
        self.categorical = [name for name in text_columns(X) if X[name].nunique() < MAX_CATEGORIES]
        self.numeric = [name for name in X if name not in text_columns(X)]
        self.scaler = QuantileTransformer(
            output_distribution="normal", n_quantiles=min(1000, len(X)), random_state=self.seed
        ).fit(X[self.numeric].astype(float))
        self.encoder = OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1
        ).fit(X[self.categorical])
        sizes = [len(each) + 1 for each in self.encoder.categories_] if self.categorical else []
        self.classes = None if self.regression else np.unique(y)
        if self.regression:
            self.mean, self.std = y.mean(), y.std()
            targets = torch.tensor((y.to_numpy() - self.mean) / self.std, dtype=torch.float32)
        else:
            targets = torch.tensor(np.searchsorted(self.classes, y))
        self.model = FTTransformer(
            n_cont_features=len(self.numeric),
            cat_cardinalities=sizes,
            d_out=1 if self.regression else len(self.classes),
            **FTTransformer.get_default_kwargs(),
        )
        optimizer = self.model.make_default_optimizer()
        numbers, codes = self.encode(X)
        order = torch.randperm(len(X))
        valid, rows = order[: len(X) // 10], order[len(X) // 10 :]
        best, best_weights, stale_epochs, start = float("inf"), None, 0, time.process_time()
        while time.process_time() - start < self.seconds and stale_epochs < PATIENCE:
            self.model.train()
            for index in rows[torch.randperm(len(rows))].split(256):
                loss = self.compute_loss(
                    self.model(*self.select(numbers, codes, index)), targets[index]
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if time.process_time() - start >= self.seconds:
                    break
            with torch.no_grad():
                outputs = self.predict_raw(numbers[valid], None if codes is None else codes[valid])
                valid_loss = float(self.compute_loss(outputs, targets[valid]))
            if valid_loss < best:
                best, stale_epochs = valid_loss, 0
                best_weights = {
                    name: value.clone() for name, value in self.model.state_dict().items()
                }
            else:
                stale_epochs += 1
        self.model.load_state_dict(best_weights)
        return self

    def encode(self, X):
        numbers = np.nan_to_num(self.scaler.transform(X[self.numeric].astype(float)))
        codes = (
            torch.tensor(self.encoder.transform(X[self.categorical]) + 1).long()
            if self.categorical
            else None
        )
        return torch.tensor(numbers, dtype=torch.float32), codes

    def select(self, numbers, codes, index):
        return numbers[index], None if codes is None else codes[index]

    def compute_loss(self, outputs, targets):
        if self.regression:
            return torch.nn.functional.mse_loss(outputs[:, 0], targets)
        return torch.nn.functional.cross_entropy(outputs, targets)

    def predict_raw(self, numbers, codes):
        self.model.eval()
        with torch.no_grad():
            batches = torch.arange(len(numbers)).split(2048)
            return torch.cat([self.model(*self.select(numbers, codes, index)) for index in batches])

    def predict(self, X):
        outputs = self.predict_raw(*self.encode(X))
        if self.regression:
            return outputs[:, 0].numpy() * self.std + self.mean
        return outputs.softmax(1).numpy()


def compute_scores(y, outputs, classes):
    if classes is None:
        return {"rmse": float(root_mean_squared_error(y, outputs))}
    return {
        "accuracy": float(accuracy_score(y, classes[outputs.argmax(1)])),
        "auc": float(roc_auc_score(y == classes[1], outputs[:, 1])),
    }


def fit_and_predict(arm, X, y, X_test, *, arguments, seed, regression, seconds):
    """Return (fit seconds, predictions, classes or None, epochs) of one model."""
    start = time.process_time()
    if arm in ("hist_gradient_boosting", "lightgbm"):
        encoder, model, options = make_boosting(arm, X, seed, regression)
        model.fit(encoder.fit_transform(X), y, **options)
        X_test, classes = encoder.transform(X_test), None if regression else model.classes_
    elif arm == "rtdl":
        if seconds is None:
            raise SystemExit("rtdl needs a time budget; run ft_transformer first or pass --seconds")
        model = RtdlEstimator(seconds, regression, seed).fit(X, y)
        seconds_used = time.process_time() - start
        return seconds_used, model.predict(X_test), model.classes, None
    else:
        estimator_class = (
            TabularTransformerRegressor if regression else TabularTransformerClassifier
        )
        options = {"model": arm} | json.loads(arguments.options)
        model = estimator_class(random_state=seed, **options).fit(X, y)
        classes = None if regression else model.classes_
    seconds_used = time.process_time() - start
    outputs = model.predict(X_test) if regression else model.predict_proba(X_test)
    return seconds_used, outputs, classes, len(getattr(model, "history_", []))


def run_benchmark(arguments):
    lines = arguments.output.read_text().splitlines() if arguments.output.exists() else []
    rows = {row_key(row): row for row in map(json.loads, lines)}
    for seed in arguments.seeds:
        for name in arguments.tables:
            (X, y), (X_test, y_test) = load_split(arguments.folder, name, seed)
            if arguments.rows and len(X) > arguments.rows:
                X, _, y, _ = train_test_split(X, y, train_size=arguments.rows, random_state=seed)
            X = remove_cells(X, arguments.missing, seed)
            X_test = remove_cells(X_test, arguments.missing, 10**6 + seed)
            regression = name in REGRESSION_TABLES
            for arm in arguments.arms:
                row = {
                    "table": name, "missing": arguments.missing, "seed": seed, "arm": arm,
                    "rows": len(X), "options": arguments.options,
                }  # fmt: skip
                if row_key(row) in rows:
                    continue
                ours = rows.get(row_key(row | {"arm": "ft_transformer"}), {})
                cpu_start, wall_start = time.process_time(), time.monotonic()
                seconds_used, outputs, classes, epochs = fit_and_predict(
                    arm, X, y, X_test, arguments=arguments, seed=seed, regression=regression,
                    seconds=arguments.seconds or ours.get("fit"),
                )  # fmt: skip
                row |= compute_scores(y_test, outputs, classes)
                row |= {
                    "fit": round(seconds_used, 1),
                    "cpu": round(time.process_time() - cpu_start, 1),
                    "wall": round(time.monotonic() - wall_start, 1),
                    "epochs": epochs,
                }
                rows[row_key(row)] = row
                print(json.dumps(row), flush=True)
                with arguments.output.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def row_key(row):
    """Return the fields that identify a measurement, so that finished ones are skipped."""
    return tuple(row[name] for name in ("table", "missing", "seed", "rows", "options", "arm"))


def print_table(arguments):
    values_by_setting = defaultdict(list)
    for line in arguments.output.read_text().splitlines():
        row = json.loads(line)
        for measure in ("accuracy", "auc", "rmse"):
            if measure in row:
                setting = row["table"], measure, row["missing"], row["rows"], row["options"]
                values_by_setting[setting].append((row["arm"], row[measure]))
    arms = list(dict.fromkeys(arm for each in values_by_setting.values() for arm, _ in each))
    print("| table | rows | options | measure | missing | " + " | ".join(arms) + " |")
    print("|---" * (5 + len(arms)) + "|")
    for (name, measure, missing, rows, options), each in sorted(values_by_setting.items()):
        cells = []
        for arm in arms:
            values = [value for other, value in each if other == arm]
            digits = 0 if np.mean(values or [0]) > 100 else 4
            spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.{digits}f}{spread}" if values else "-")
        prefix = f"| {name} | {rows} | {options.strip('{}')} | {measure} | {missing:.0%} | "
        print(prefix + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    run_parser = commands.add_parser("run")
    run_parser.set_defaults(command=run_benchmark)
    run_parser.add_argument("folder", type=Path)
    run_parser.add_argument("-o", "--output", type=Path, required=True)
    run_parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    run_parser.add_argument("--tables", nargs="+", default=list(TABLES))
    run_parser.add_argument(
        "--arms",
        nargs="+",
        default=["ft_transformer", "rtdl", "mlp", "hist_gradient_boosting", "lightgbm"],
    )
    run_parser.add_argument("--missing", type=float, default=0.0)
    run_parser.add_argument("--rows", type=int, help="maximum number of training rows")
    run_parser.add_argument(
        "--seconds",
        type=float,
        help="processor seconds of rtdl, by default those of ft_transformer",
    )
    run_parser.add_argument("--options", default="{}", help="options of our estimators, as JSON")
    table_parser = commands.add_parser("table")
    table_parser.set_defaults(command=print_table)
    table_parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
