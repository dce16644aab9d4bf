"""Compare untuned estimators with gradient boosting and rtdl's FT-Transformer on real tables.

    OMP_NUM_THREADS=1 python benchmarks/tabular.py run FOLDER -o rows.jsonl --seeds 0 1 2
    python benchmarks/tabular.py table rows.jsonl

FOLDER holds adult/, california-housing/, diamonds/, higgs-small/ and titanic/. A seed decides the
split (a fifth is tested; Adult has a test set of its own), what is made absent with --missing, and
the estimator. rtdl gets the processor seconds of our fit, its own defaults, quantiles for
numbers, the mean for absent ones and a category for absent categories. Rows already in the output
(same table, share of absent cells, seed, training rows, options and arm) are not computed again.
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
NUMBERS = ("california", "diamonds")


def parts(folder, name, seed):
    """Return (train, test), each as (X, y)."""
    path, target = TABLES[name]
    table = pd.read_csv(folder / path)
    if name == "adult":
        train, test = table, pd.read_csv(folder / "adult/test.csv.gz")
    else:
        train, test = train_test_split(table, test_size=0.2, random_state=seed)
    split = [(part.drop(columns=target), part[target]) for part in (train, test)]
    return [(X.reset_index(drop=True), y.reset_index(drop=True)) for X, y in split]


def with_holes(X, share, seed):
    """Return the table with a fraction of all cells removed at random."""
    holes = np.random.default_rng(seed).random(X.shape) < share
    return X.astype(object).mask(holes).infer_objects() if share else X


def texts_of(X):
    return [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]


def boosted(kind, X, seed, regression):
    """Gradient boosting with default parameters and native categories."""
    texts = [name for name in texts_of(X) if X[name].nunique() < 250]  # scikit-learn's limit
    others = [name for name in X if name not in texts_of(X)]
    encoder = make_column_transformer(
        (OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan), texts),
        ("passthrough", others),
    )
    marks = list(range(len(texts)))
    if kind == "hist_gradient_boosting":
        maker = HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
        return encoder, maker(categorical_features=marks, random_state=seed), {}
    import lightgbm

    maker = lightgbm.LGBMRegressor if regression else lightgbm.LGBMClassifier
    model = maker(random_state=seed, n_jobs=1, verbose=-1)
    return encoder, model, {"categorical_feature": marks}


class Rtdl:
    """rtdl's FT-Transformer with default parameters, early stopping and a time budget."""

    def __init__(self, seconds, regression, seed):
        self.seconds, self.regression, self.seed = seconds, regression, seed

    def fit(self, X, y):
        from rtdl_revisiting_models import FTTransformer

        torch.manual_seed(self.seed)
        self.texts = [name for name in texts_of(X) if X[name].nunique() < 250]
        self.others = [name for name in X if name not in texts_of(X)]
        self.scale = QuantileTransformer(
            output_distribution="normal", n_quantiles=min(1000, len(X)), random_state=self.seed
        ).fit(X[self.others].astype(float))
        self.code = OrdinalEncoder(
            handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1
        ).fit(X[self.texts])
        sizes = [len(each) + 1 for each in self.code.categories_] if self.texts else []
        self.classes = None if self.regression else np.unique(y)
        if self.regression:
            self.mean, self.std = y.mean(), y.std()
            asked = torch.tensor((y.to_numpy() - self.mean) / self.std, dtype=torch.float32)
        else:
            asked = torch.tensor(np.searchsorted(self.classes, y))
        self.model = FTTransformer(
            n_cont_features=len(self.others),
            cat_cardinalities=sizes,
            d_out=1 if self.regression else len(self.classes),
            **FTTransformer.get_default_kwargs(),
        )
        optimizer = self.model.make_default_optimizer()
        numbers, codes = self.read(X)
        order = torch.randperm(len(X))
        held, rows = order[: len(X) // 10], order[len(X) // 10 :]
        best, kept, waited, started = float("inf"), None, 0, time.process_time()
        while time.process_time() - started < self.seconds and waited < 16:
            self.model.train()
            for at in rows[torch.randperm(len(rows))].split(256):
                loss = self.loss(self.model(*self.some(numbers, codes, at)), asked[at])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if time.process_time() - started >= self.seconds:
                    break
            with torch.no_grad():
                said = self.said(numbers[held], None if codes is None else codes[held])
                now = float(self.loss(said, asked[held]))
            if now < best:
                best, waited = now, 0
                kept = {name: value.clone() for name, value in self.model.state_dict().items()}
            else:
                waited += 1
        self.model.load_state_dict(kept)
        return self

    def read(self, X):
        numbers = np.nan_to_num(self.scale.transform(X[self.others].astype(float)))
        codes = torch.tensor(self.code.transform(X[self.texts]) + 1).long() if self.texts else None
        return torch.tensor(numbers, dtype=torch.float32), codes

    def some(self, numbers, codes, at):
        return numbers[at], None if codes is None else codes[at]

    def loss(self, said, asked):
        if self.regression:
            return torch.nn.functional.mse_loss(said[:, 0], asked)
        return torch.nn.functional.cross_entropy(said, asked)

    def said(self, numbers, codes):
        self.model.eval()
        with torch.no_grad():
            every = torch.arange(len(numbers)).split(2048)
            return torch.cat([self.model(*self.some(numbers, codes, at)) for at in every])

    def answers(self, X):
        said = self.said(*self.read(X))
        if self.regression:
            return said[:, 0].numpy() * self.std + self.mean
        return said.softmax(1).numpy()


def scores(y, said, classes):
    if classes is None:
        return {"rmse": float(root_mean_squared_error(y, said))}
    return {
        "accuracy": float(accuracy_score(y, classes[said.argmax(1)])),
        "auc": float(roc_auc_score(y == classes[1], said[:, 1])),
    }


def fit_and_answer(arm, X, y, X_test, *, given, seed, regression, seconds):
    """Return (fit seconds, predictions, classes or None, epochs) of one model."""
    started = time.process_time()
    if arm in ("hist_gradient_boosting", "lightgbm"):
        encoder, model, options = boosted(arm, X, seed, regression)
        model.fit(encoder.fit_transform(X), y, **options)
        X_test, classes = encoder.transform(X_test), None if regression else model.classes_
    elif arm == "rtdl":
        if seconds is None:
            raise SystemExit("rtdl needs a budget: run ft_transformer before it, or say --seconds")
        model = Rtdl(seconds, regression, seed).fit(X, y)
        spent = time.process_time() - started
        return spent, model.answers(X_test), model.classes, None
    else:
        maker = TabularTransformerRegressor if regression else TabularTransformerClassifier
        options = {"model": arm} | json.loads(given.options)
        model = maker(random_state=seed, **options).fit(X, y)
        classes = None if regression else model.classes_
    spent = time.process_time() - started
    said = model.predict(X_test) if regression else model.predict_proba(X_test)
    return spent, said, classes, len(getattr(model, "history_", []))


def run(given):
    lines = given.output.read_text().splitlines() if given.output.exists() else []
    rows = {key_of(row): row for row in map(json.loads, lines)}
    for seed in given.seeds:
        for name in given.tables:
            (X, y), (X_test, y_test) = parts(given.folder, name, seed)
            if given.rows and len(X) > given.rows:
                X, _, y, _ = train_test_split(X, y, train_size=given.rows, random_state=seed)
            X = with_holes(X, given.missing, seed)
            X_test = with_holes(X_test, given.missing, 10**6 + seed)
            regression = name in NUMBERS
            for arm in given.arms:
                row = {
                    "table": name, "missing": given.missing, "seed": seed, "arm": arm,
                    "rows": len(X), "options": given.options,
                }  # fmt: skip
                if key_of(row) in rows:
                    continue
                ours = rows.get(key_of(row | {"arm": "ft_transformer"}), {})
                started = time.process_time(), time.monotonic()
                spent, said, classes, epochs = fit_and_answer(
                    arm, X, y, X_test, given=given, seed=seed, regression=regression,
                    seconds=given.seconds or ours.get("fit"),
                )  # fmt: skip
                row |= scores(y_test, said, classes)
                row |= {
                    "fit": round(spent, 1),
                    "cpu": round(time.process_time() - started[0], 1),
                    "wall": round(time.monotonic() - started[1], 1),
                    "epochs": epochs,
                }
                rows[key_of(row)] = row
                print(json.dumps(row), flush=True)
                with given.output.open("a") as file:
                    file.write(json.dumps(row) + "\n")


def key_of(row):
    """Return the fields that identify a measurement, so that finished ones are skipped."""
    return tuple(row[name] for name in ("table", "missing", "seed", "rows", "options", "arm"))


def table(given):
    met = defaultdict(list)
    for line in given.output.read_text().splitlines():
        row = json.loads(line)
        for measure in ("accuracy", "auc", "rmse"):
            if measure in row:
                what = row["table"], measure, row["missing"], row["rows"], row["options"]
                met[what].append((row["arm"], row[measure]))
    arms = list(dict.fromkeys(arm for each in met.values() for arm, _ in each))
    print("| table | rows | options | measure | missing | " + " | ".join(arms) + " |")
    print("|---" * (5 + len(arms)) + "|")
    for (name, measure, missing, rows, options), each in sorted(met.items()):
        cells = []
        for arm in arms:
            values = [value for other, value in each if other == arm]
            digits = 0 if np.mean(values or [0]) > 100 else 4
            spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{np.mean(values):.{digits}f}{spread}" if values else "-")
        start = f"| {name} | {rows} | {options.strip('{}')} | {measure} | {missing:.0%} | "
        print(start + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(required=True)
    runs = verbs.add_parser("run")
    runs.set_defaults(do=run)
    runs.add_argument("folder", type=Path)
    runs.add_argument("-o", "--output", type=Path, required=True)
    runs.add_argument("--seeds", type=int, nargs="+", default=[0])
    runs.add_argument("--tables", nargs="+", default=list(TABLES))
    runs.add_argument(
        "--arms",
        nargs="+",
        default=["ft_transformer", "rtdl", "mlp", "hist_gradient_boosting", "lightgbm"],
    )
    runs.add_argument("--missing", type=float, default=0.0)
    runs.add_argument("--rows", type=int, help="train on so many rows at most")
    runs.add_argument(
        "--seconds", type=float, help="rtdl's budget, where ours is not run before it"
    )
    runs.add_argument("--options", default="{}", help="of our estimators, as JSON")
    tables = verbs.add_parser("table")
    tables.set_defaults(do=table)
    tables.add_argument("output", type=Path)
    given = parser.parse_args()
    given.run_op(given)


if __name__ == "__main__":
    main()
