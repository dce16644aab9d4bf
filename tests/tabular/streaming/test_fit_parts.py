"""Fits to Parquet and Arrow tables that are read in parts."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from addnorm import UserError
from addnorm.tabular import fit_parts
from addnorm.tabular.streaming import table_parts
from addnorm.tabular.streaming.table_parts import TEST, TRAIN, TableParts, is_too_large
from tests.tabular.sample_tables import classifier, regressor


def make_table(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.normal(size=rows), "b": rng.choice(["x", "y", None], rows)})
    return frame.assign(target=np.where((frame.a > 0) ^ (frame.b == "x"), "yes", "no"))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    frame = make_table()
    frame.to_parquet(folder / "table.parquet", row_group_size=700)
    frame.to_feather(folder / "table.arrow", compression="uncompressed")
    (folder / "many").mkdir()
    frame[:1000].to_parquet(folder / "many" / "0.parquet")
    frame[1000:].to_parquet(folder / "many" / "1.parquet")
    frame.to_csv(folder / "table.csv", index=False)
    return folder


@pytest.mark.parametrize("name", ["table.parquet", "table.arrow", "many"])
def test_parts_are_the_rows_of_the_table(files, name, monkeypatch):
    monkeypatch.setattr(table_parts, "PART_ROWS", 300)
    parts = TableParts(files / name, valid=0.2, test=0.1, seed=3)
    assert parts.num_rows == 3000
    frame = pd.concat([part.frame for part in parts], ignore_index=True)
    pd.testing.assert_frame_equal(frame, make_table(), check_dtype=False)
    roles = np.concatenate([part.roles for part in parts])
    assert np.array_equal(roles, parts.roles(np.arange(3000)))  # whatever the parts are
    assert abs((roles == TEST).mean() - 0.1) < 0.02 and abs((roles == TRAIN).mean() - 0.7) < 0.03
    assert max(len(part.frame) for part in parts) <= 300
    backwards = np.concatenate(
        [part.frame["a"] for part in parts.read(np.arange(len(parts.pieces))[::-1])]
    )
    assert np.array_equal(np.sort(backwards), np.sort(frame["a"]))


def test_fit_in_parts_learns_and_leaves_the_test_rows_out(files):
    model = classifier(model="mlp", dim=32, max_epochs=8, lr=5e-3, calibration="temperature")
    test = fit_parts(model, files / "table.parquet", "target", test_size=0.2, sample_rows=500)
    assert 500 < len(test) < 700
    assert model.score(test[["a", "b"]], test["target"]) > 0.9
    assert model.temperature_ != 1.0 and {"train", "valid"} <= set(model.history_[0])
    assert model.feature_importances_.shape == (2,)
    again = classifier(model="mlp", dim=32, max_epochs=8, lr=5e-3, calibration="temperature")
    fit_parts(again, files / "table.parquet", "target", test_size=0.2, sample_rows=500)
    assert np.array_equal(
        again.predict_proba(test[["a", "b"]]), model.predict_proba(test[["a", "b"]])
    )


def test_rare_classes_outside_of_the_sample_are_known(tmp_path):
    frame = make_table(2000)
    frame.loc[1999, "target"] = "rare"
    frame.to_parquet(tmp_path / "table.parquet")
    model = classifier(model="mlp", max_epochs=1)
    fit_parts(model, tmp_path / "table.parquet", "target", sample_rows=50)
    assert model.classes_.tolist() == ["no", "rare", "yes"]


def test_regression_in_parts_has_intervals(files):
    model = regressor(model="mlp", max_epochs=1)
    assert fit_parts(model, files / "table.arrow", "a", drop=["target"]) is None
    assert model.feature_names_in_.tolist() == ["b"]
    assert model.predict_interval(make_table()[["b"]][:3]).shape == (3, 2)


def test_wrong_tables_and_settings_are_refused(files, tmp_path):
    table = files / "table.parquet"
    cases = [
        (files / "table.csv", "target", {}, "expected a .parquet or .arrow file"),
        (tmp_path, "target", {}, "expected a folder with .parquet files, got none"),
        (tmp_path / "none.parquet", "target", {}, "expected a file, got none"),
        (table, "tarjet", {}, "did you mean 'target'"),
        (table, "target", {"drop": ["c"]}, "unknown column 'c'"),
        (table, "target", {"drop": ["a", "b"]}, "expected feature columns beside the target"),
        (table, "b", {}, "target 'b' is missing in some rows"),
        (table, "target", {"sample_rows": 0}, "sample_rows: expected an integer >= 1, got 0"),
    ]
    for path, target, options, message in cases:
        with pytest.raises(UserError, match=message):
            fit_parts(classifier(model="mlp", max_epochs=1), path, target, **options)
    with pytest.raises(UserError, match="bagging: expected its default for a fit in parts"):
        fit_parts(classifier(bagging=3), table, "target")
    (tmp_path / "broken.parquet").write_bytes(b"nothing")
    with pytest.raises(UserError, match="got a file that cannot be read"):
        fit_parts(classifier(), tmp_path / "broken.parquet", "target")


def test_only_large_typed_tables_need_parts(files, monkeypatch):
    assert not is_too_large(files / "table.parquet") and not is_too_large(files / "table.csv")
    monkeypatch.setattr(table_parts, "max_table_bytes", lambda: 1000)
    assert is_too_large(files / "table.parquet") and is_too_large(files / "many")
    assert not is_too_large(files / "table.csv")


MEMORY_SCRIPT = """
import resource, sys
from addnorm.tabular import TabularTransformerRegressor, fit_parts
model = TabularTransformerRegressor(
    model="mlp", dim=8, depth=1, max_epochs=1, batch_size=4096, random_state=0, n_jobs=1
)
fit_parts(model, sys.argv[1], "target", sample_rows=5000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns, peaks = [f"x{index}" for index in range(20)], {}
    for rows in (150_000, 1_500_000):
        path, rng = tmp_path / f"{rows}.parquet", np.random.default_rng(0)
        schema = pa.schema([(name, pa.float64()) for name in (*columns, "target")])
        with pq.ParquetWriter(path, schema) as writer:
            for _ in range(rows // 50_000):
                writer.write_table(
                    pa.table({name: rng.normal(size=50_000) for name in schema.names})
                )
        done = subprocess.run(
            [sys.executable, "-c", MEMORY_SCRIPT, str(path)],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks[rows] = int(done.stdout.split()[-1])
    table_megabytes = 1_500_000 * 21 * 8 >> 20  # 240
    assert peaks[1_500_000] - peaks[150_000] < table_megabytes / 2, peaks
