"""Commands on the folder of a monitor: page, CSV and diagnosis, also while it is running."""

import csv
import json
import math

import pytest
import torch

import addnorm
from addnorm.cli.main import main
from addnorm.core.rows import read_rows
from tests.monitor.models import Handmade, build, compute_loss, make_batch, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a run whose loss becomes NaN at step 5; its job has not ended."""
    path = tmp_path_factory.mktemp("job") / "watch"
    model = build(Handmade)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = addnorm.Monitor(model, optimizer, every=2, folder=path)
    train(model, optimizer, monitor, steps=4)
    with torch.no_grad():
        model.down[1][0, 0] = math.nan
    loss = compute_loss(model, make_batch(5))
    loss.backward()
    optimizer.step()
    assert monitor.step(loss)
    return path


def test_report_draws_the_page_without_a_config(folder, capsys):
    assert main(["report", str(folder), "--csv"]) == 0
    assert capsys.readouterr().out.split() == [
        str(folder / "report.html"),
        str(folder / "rows.csv"),
    ]
    page = (folder / "report.html").read_text(encoding="utf-8")
    for text in (
        *("Handmade, monitored", "Gradient norm by site and step, stream 0", "Smallest gain"),
        *("Stream RMS over depth", "first non-finite value", "the first NaN came from"),
    ):
        assert text in page
    rows = list(read_rows(folder / "rows.jsonl"))
    with (folder / "rows.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(rows)
    assert [
        float(r["value"] or "nan") for r in table if r["name"] == "dependency"
    ] == pytest.approx([r["value"] for r in rows if r["name"] == "dependency"], nan_ok=True)


def test_doctor_diagnoses_the_rows_of_a_running_job(folder, capsys):
    assert main(["doctor", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "error fact: Step 5: the first NaN came from `matmul`" in out and "down.1" in out
    assert main(["doctor", str(folder / "rows.jsonl"), "--json", "--fail-on", "never"]) == 0
    sentences = json.loads(capsys.readouterr().out)["sentences"]
    assert sentences[0]["step"] == 5 and sentences[0]["link"].startswith("docs/")


def test_options_of_a_model_are_rejected(folder, capsys):
    assert main(["doctor", str(folder), "--depth", "3"]) == 2
    assert "got the rows of a monitor" in capsys.readouterr().err


def test_folder_without_rows_is_rejected(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "no comparison, run, monitor or claims" in capsys.readouterr().err
