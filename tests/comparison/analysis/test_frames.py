"""Results as data frames, in notebooks and in experiment trackers."""

import json
import re

import pytest
import torch

import addnorm
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.analysis.trackers import (
    _iter_finished,
    export_to_mlflow,
    export_to_wandb,
)
from addnorm.comparison.parse import parse_comparison
from addnorm.core.errors import UserError
from addnorm.report.tables.latex import render_latex
from tests.comparison.synthetic_study import write_synthetic_study

SPEC = {"wiring": "pre_ln,b2t", "lr": "1e-3,3e-3", "depth": "2,4", "seeds": 2, "steps": 20}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    spec = parse_comparison(SPEC | {"task": "lm", "axes": {"dropout": "0,0.1"}})
    folder = tmp_path_factory.mktemp("study")

    def outcome(cell):
        return "diverged" if cell.lr == 3e-3 and cell.arm.wiring == "b2t" else "trained"

    return Study.open(write_synthetic_study(folder, spec, outcome, site_rows=False))


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frame_has_a_row_for_each_cell(study, library):
    pytest.importorskip(library)
    frame = study.to_frame(library=library)
    assert len(frame) == len(study.cells) == 32
    columns = {name: list(frame[name]) for name in ("cell", "dropout", "lr", "state", "loss")}
    for index, each in enumerate(study.cells):
        assert columns["cell"][index] == each.cell.name
        assert columns["dropout"][index] == dict(each.cell.arm.extras)["dropout"]
        assert columns["state"][index] == each.state
        if each.state == "trained":
            assert columns["loss"][index] == each.loss
    rows = study.rows_to_frame(library=library)
    assert len(rows) == sum(len(study.rows(each.cell)) for each in study.cells)
    assert {"cell", "step", "name", "value", "split", "dropout"} <= set(rows.columns)
    assert len(study.summary_to_frame(library=library)) == len(study.summary)


def test_mean_of_a_frame_is_that_of_the_summary(study):
    frame = study.to_frame()
    best = study.best(depth=4)
    own = frame[(frame.arm == best.arm.name) & (frame.depth == 4) & (frame.lr == best.best.lr)]
    assert own.loss.mean() == pytest.approx(best.loss.mean) and best.leads
    assert study.best().loss.mean <= best.loss.mean
    assert study.best(depth=77) is None
    with pytest.raises(UserError, match="library: expected pandas or polars, got 'numpy'"):
        study.to_frame(library="numpy")


def test_latex_has_intervals_and_escapes_names(study):
    text = render_latex(study)
    assert text.count(r" \\") == 1 + len(study.summary)
    assert r"pre\_ln dropout=0.1" in text and r"\begin{tabular}" in text
    best = study.best(depth=2)
    assert rf"$\mathbf{{{best.loss.mean:.3f}}} \pm {best.loss.half:.3f}$" in text
    assert not re.search(r"(?<!\\)_", text.split("toprule")[1])


def test_tables_name_open_ends_and_unfinished_cells(tmp_path):
    """The synthetic loss does not depend on the rate, so the best one is at an end."""
    spec = parse_comparison(SPEC | {"task": "lm", "depth": 2})
    folder = write_synthetic_study(
        tmp_path / "study",
        spec,
        lambda cell: "waiting" if cell.arm.wiring == "b2t" else "trained",
        site_rows=False,
    )
    study = Study.open(folder)
    frame, text = study.summary_to_frame(), render_latex(study)
    assert list(frame.edge) == [study.summary[0].edge, ""] and frame.edge[0]
    assert list(frame.waiting) == [0, 4] and list(frame.trained) == [4, 0]
    assert f"({study.summary[0].edge} lr tried)" in text and "& not finished &" in text
    assert "% Preliminary: 4 of 8 cells are not finished." in text


def test_notebooks_show_short_html(study):
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    report = addnorm.doctor(torch.nn.TransformerEncoder(layer, 2), torch.randn(2, 5, 16))
    model = addnorm.build(kind="lm", vocab=9, dim=8, depth=1, heads=2, wiring="b2t")
    result = addnorm.claims.Result(
        claim="x", budget="smoke", digest="d", verdict=None, why="a < b & c"
    )
    expected = [
        (study, study.verdict[0].partition(":")[0]),
        (report, "cloned_layers"),
        (model, "b2t"),
        (result, "a &lt; b &amp; c"),
    ]
    for each, text in expected:
        html = each._repr_html_()
        assert text in html and len(html) < 20_000
        assert "<script" not in html and "http" not in html
        assert html.count("<div>") == html.count("</div>") == 1


def test_trackers_get_finished_cells_only(tmp_path):
    folder = write_synthetic_study(
        tmp_path / "study",
        parse_comparison(SPEC | {"task": "lm", "depth": 2}),
        lambda cell: "waiting" if cell.seed else "trained",
        site_rows=False,
    )
    study = Study.open(folder)
    exported = [each.cell.name for each, _ in _iter_finished(study)]
    assert exported == [each.cell.name for each in study.cells if not each.cell.seed]


@pytest.mark.slow
def test_mlflow_gets_a_run_for_each_cell(study, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the package without a database
    uri = f"file:{tmp_path / 'runs'}"
    ids = export_to_mlflow(study, experiment="arms", tracking_uri=uri)
    client = mlflow.MlflowClient(tracking_uri=uri)
    run = client.get_run(ids[0])
    cell = study.cells[0]
    assert len(ids) == len(study.cells) and run.info.run_name == cell.cell.name
    assert run.data.params["wiring"] == "pre_ln" and run.data.params["dropout"] == "0"
    assert run.data.metrics["final/loss"] == pytest.approx(cell.loss)
    history = client.get_metric_history(ids[0], "train/loss")
    losses = [row for row in study.rows(cell.cell) if row.get("split") == "train"]
    assert [(each.step, each.value) for each in history] == [
        (r["step"], r["value"]) for r in losses
    ]


@pytest.mark.slow
def test_wandb_gets_a_run_for_each_cell(study, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    ids = export_to_wandb(study, project="arms", mode="offline")
    assert len(set(ids)) == len(study.cells)
    assert len(list((study.folder / "wandb").glob("offline-run-*"))) == len(study.cells)


def test_result_json_names_the_axes(study):
    from addnorm.comparison.analysis.export import study_to_dict

    data = json.loads(json.dumps(study_to_dict(study)))
    assert data["cells"][0]["axes"] == {"dropout": 0}
    assert data["summary"][0]["arrangement"]["axes"] == {"dropout": 0}
