"""Sinks: JSON lines, TensorBoard, W&B, MLflow, functions; none is required."""

import sys

import pytest
import torch

import addnorm
from addnorm.core.errors import MonitorWarning, UserError
from addnorm.monitor.sinks import MetricsSink, MLflow, TensorBoard, WandB, group_metrics, make_sink
from tests.monitor.models import Handmade, build, train


def run(**options):
    model = build(Handmade)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with addnorm.Monitor(model, optimizer, every=2, doctor=False, **options) as monitor:
        train(model, optimizer, monitor, steps=4)
    return monitor


def test_function_gets_all_rows():
    received = []
    monitor = run(sinks=[received.extend])
    assert received == monitor.rows()


def test_summary_has_few_numbers_and_sites_all():
    rows = run().rows()
    summary = group_metrics(rows)
    assert set(summary) == {1, 2, 4}
    assert 8 <= len(summary[2]) <= 12
    logits = [r["value"] for r in rows if r["name"] == "max_logit" and r["step"] == 2]
    assert summary[2]["addnorm/max_logit_max"] == max(logits)
    everything = group_metrics(rows, sites=True)
    assert len(everything[2]) > 40


def test_sink_that_fails_is_dropped_with_one_warning(tmp_path):
    calls = []

    def fail(rows):
        calls.append(rows)
        raise OSError("disk full")

    with pytest.warns(MonitorWarning, match="the sink CallableSink failed .OSError") as seen:
        monitor = run(sinks=[fail], folder=tmp_path)
    assert len(seen) == len(calls) == 1
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == len(monitor.rows())


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_missing_package_is_one_line(name, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"requires {package}, which is not installed; run pip"):
        make_sink(name, None)


def test_numbers_go_to_a_logger():
    logged = {}
    run(sinks=[MetricsSink(lambda values, step: logged.setdefault(step, values))])
    assert set(logged) == {1, 2, 4} and "addnorm/gradient_norm" in logged[4]


@pytest.mark.slow
def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monitor = run(folder=tmp_path, sinks=["tensorboard", TensorBoard(tmp_path / "all", sites=True)])
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    scalars = events.Scalars("addnorm/gradient_norm")
    expected = {
        r["step"]: r["value"]
        for r in monitor.rows()
        if r["name"] == "gradient_norm" and r["site"] is None
    }
    assert {s.step: s.value for s in scalars} == pytest.approx(expected)
    events = EventAccumulator(str(tmp_path / "all"))
    events.Reload()
    assert "addnorm/sites/dependency/stream 0/3" in events.Tags()["scalars"]


@pytest.mark.slow
def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_of_user = wandb.init(dir=str(tmp_path), project="test")
    logged = []
    original = run_of_user.log

    def log(values):
        logged.append(values)
        original(values)

    monkeypatch.setattr(run_of_user, "log", log)
    for step in range(7):
        original({"own": step})  # the user's own step is ahead of the monitor's
    run(sinks=[WandB(run_of_user)])
    run_of_user.finish()
    assert [values["addnorm/step"] for values in logged] == [1, 2, 4]
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.slow
def test_mlflow_in_a_local_store(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(tmp_path.as_uri())  # mlflow-skinny has no database
    mlflow.set_experiment("test")
    with mlflow.start_run() as active:
        run(sinks=[MLflow(sites=True)])
    client = mlflow.MlflowClient()
    history = client.get_metric_history(active.info.run_id, "addnorm/gradient_norm")
    assert [metric.step for metric in history] == [1, 2, 4]
    assert len(client.get_run(active.info.run_id).data.metrics) > 40
