"""Published results on tables: Adult, California housing, and three with an official split.

    OMP_NUM_THREADS=1 python benchmarks/reproductions/tabular.py run FOLDER -o rows.jsonl \
        --tables cpu_act --arms mlp_default ft_default ft_published
    python benchmarks/reproductions/tabular.py table rows.jsonl

FOLDER contains adult/, california-housing/, cpu-act/, bank/ and mfeat-factors/, or those that are
asked for; talent_to_csv.py writes the last three. The arms are the settings of tabular.yaml
beside this file, `hist_gradient_boosting` and `lightgbm` (defaults). A row that is already in the
output (same table, arm and seed) is skipped, so the same command resumes.

Splits: all tables but California have published test rows; of California, a fifth is the test set
(the seed of the split is 0). A fifth of the other rows chooses the epoch.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import accuracy_score, root_mean_squared_error
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OrdinalEncoder

from addnorm.tabular import TabularTransformerClassifier, TabularTransformerRegressor

SETTINGS = yaml.safe_load((Path(__file__).parent / "tabular.yaml").read_text())
OFFICIAL_SPLITS = {
    "cpu_act": "cpu-act/cpu_act.csv.gz",
    "bank": "bank/bank.csv.gz",
    "mfeat_factors": "mfeat-factors/mfeat_factors.csv.gz",
}
TABLES = ("adult", "california", *OFFICIAL_SPLITS)
REGRESSION_TABLES = ("california", "cpu_act")
BOOSTING = ("hist_gradient_boosting", "lightgbm")


def load_split(folder, name):
    """Return (X_train, y_train, X_test, y_test)."""
    if name == "adult":
        train, test = (
            pd.read_csv(folder / "adult" / f"{part}.csv.gz") for part in ("train", "test")
        )
        target = "income"
    elif name in OFFICIAL_SPLITS:
        table = pd.read_csv(folder / OFFICIAL_SPLITS[name])
        is_test = table.pop("split") == "test"
        train, test, target = table[~is_test], table[is_test], "target"
    else:
        train, test = train_test_split(load_california(folder), test_size=0.2, random_state=0)
        target = "MedHouseVal"
    train, test = train.reset_index(drop=True), test.reset_index(drop=True)
    return train.drop(columns=target), train[target], test.drop(columns=target), test[target]


def load_california(folder):
    """Return the eight columns of scikit-learn's copy, derived from the raw counts.

    207 numbers of bedrooms are missing in this copy.
    """
    raw = pd.read_csv(folder / "california-housing" / "housing.csv.gz")
    return pd.DataFrame(
        {
            "MedInc": raw.median_income,
            "HouseAge": raw.housing_median_age,
            "AveRooms": raw.total_rooms / raw.households,
            "AveBedrms": raw.total_bedrooms / raw.households,
            "Population": raw.population,
            "AveOccup": raw.population / raw.households,
            "Latitude": raw.latitude,
            "Longitude": raw.longitude,
            "MedHouseVal": raw.median_house_value / 100_000,
        }
    )


def fit_predict(arm, seed, X, y, X_test, *, regression, options):
    """Return predictions for the test rows, and the number of epochs (None for trees)."""
    if arm in BOOSTING:
        texts = [name for name in X if not pd.api.types.is_numeric_dtype(X[name])]
        if texts:
            encoder = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan)
            X, X_test = X.copy(), X_test.copy()
            X[texts], X_test[texts] = (
                encoder.fit_transform(X[texts]),
                encoder.transform(X_test[texts]),
            )
        categorical = [X.columns.get_loc(name) for name in texts]
        if arm == "lightgbm":
            import lightgbm

            model_class = lightgbm.LGBMRegressor if regression else lightgbm.LGBMClassifier
            model = model_class(random_state=seed, n_jobs=1, verbose=-1)
            return model.fit(X, y, categorical_feature=categorical or "auto").predict(X_test), None
        model_class = (
            HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier
        )
        model = model_class(categorical_features=categorical or None, random_state=seed)
        return model.fit(X, y).predict(X_test), None
    model_class = TabularTransformerRegressor if regression else TabularTransformerClassifier
    scaling = {"target_scaling": "standard"} if regression else {}
    model = model_class(
        random_state=seed, device=SETTINGS["device"], n_jobs=1, **scaling, **options
    )
    return model.fit(X, y).predict(X_test), len(model.history_)


def run(arguments):
    done = set()
    if arguments.out.exists():
        rows = map(json.loads, arguments.out.read_text().splitlines())
        done = {(row["table"], row["arm"], row["seed"]) for row in rows}
    changes = yaml.safe_load("{" + ", ".join(arguments.set) + "}") if arguments.set else {}
    for table in arguments.tables:
        X, y, X_test, y_test = load_split(arguments.folder, table)
        regression = table in REGRESSION_TABLES
        for arm in arguments.arms:
            label = " ".join([arm, *arguments.set])
            for seed in arguments.seeds or SETTINGS["seeds"]:
                if (table, label, seed) in done:
                    continue
                start = time.process_time()
                options = SETTINGS.get(arm, {}) | changes
                predictions, epochs = fit_predict(
                    arm, seed, X, y, X_test, regression=regression, options=options
                )
                score = (root_mean_squared_error if regression else accuracy_score)(
                    y_test, predictions
                )
                row = {
                    "table": table,
                    "arm": label,
                    "seed": seed,
                    "score": round(float(score), 5),
                    "epochs": epochs,
                    "cpu_seconds": round(time.process_time() - start),
                }
                with arguments.out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


def table(arguments):
    groups = defaultdict(list)
    for row in map(json.loads, arguments.rows.read_text().splitlines()):
        groups[row["table"], row["arm"]].append(row)
    print("| table | arm | seeds | score | epochs | CPU s |\n|---|---|---|---|---|---|")
    for (name, arm), rows in groups.items():
        scores = [row["score"] for row in rows]
        deviation = f" ± {np.std(scores, ddof=1):.4f}" if len(scores) > 1 else ""
        epochs = ", ".join(str(row["epochs"]) for row in rows if row["epochs"]) or "-"
        seconds = round(np.mean([row["cpu_seconds"] for row in rows]))
        print(
            f"| {name} | {arm} | {len(rows)} | {np.mean(scores):.4f}{deviation} | {epochs} | "
            f"{seconds} |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run")
    command.add_argument("folder", type=Path)
    command.add_argument("-o", "--out", type=Path, required=True)
    command.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    arms = [name for name, value in SETTINGS.items() if isinstance(value, dict)]
    command.add_argument("--arms", nargs="+", choices=[*arms, *BOOSTING], default=["ft_published"])
    command.add_argument("--seeds", nargs="+", type=int)
    command.add_argument("--set", nargs="+", default=[], help="departures, such as 'patience: 4'")
    command.set_defaults(function=run)
    command = commands.add_parser("table")
    command.add_argument("rows", type=Path)
    command.set_defaults(function=table)
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
