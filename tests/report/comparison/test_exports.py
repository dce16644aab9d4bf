"""Exports of a comparison: PNG images and CSV tables."""

import csv
from dataclasses import replace

import pytest

from addnorm.comparison import folder_layout as files
from addnorm.comparison.analysis.study import Study
from addnorm.comparison.parse import parse_comparison
from addnorm.core.errors import UserError
from addnorm.report.comparison.exports import write_csvs, write_figures, write_pngs
from tests.comparison.synthetic_study import write_synthetic_study

SPEC = {"wiring": "post_ln,pre_ln", "depth": 2, "lr": [1e-3, 1e-2], "seeds": 2, "steps": 20}


@pytest.fixture
def study(tmp_path):
    return Study.open(write_synthetic_study(tmp_path / "study", parse_comparison(SPEC)))


def read(path):
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_csvs_contain_cells_summary_and_all_rows(study, tmp_path):
    paths = write_csvs(study, tmp_path / "out")
    assert [path.name for path in paths] == ["cells.csv", "summary.csv", "rows.csv"]
    cells, summary, rows = map(read, paths)
    assert [line["cell"] for line in cells] == [each.cell.name for each in study.cells]
    assert cells[0]["state"] == "stuck" and float(cells[0]["chrf"]) > 0
    assert cells[2]["state"] == "diverged" and cells[2]["loss"] == ""
    assert cells[2]["why"] == "loss nan: first in decoder site 3"
    assert [(line["arm"], line["trained"], line["stuck"]) for line in summary] == [
        ("post_ln", "0", "2"),
        ("pre_ln", "2", "0"),
    ]
    assert float(summary[1]["loss_half"]) > 0 and summary[0]["loss_mean"] == ""
    assert len(rows) == sum(len(study.rows(each.cell)) for each in study.cells)
    dependency = [
        line for line in rows if line["name"] == "dependency" and line["stack"] == "decoder"
    ]
    assert dependency[0]["cell"] == "post_ln-d2-w0-lr0.001-s0" and dependency[0]["value"] == "0.5"


def test_csv_quotes_commas_quotes_and_newlines(study, tmp_path):
    folder = study.folder / files.CELLS / study.cells[0].cell.name
    why = 'a "quoted", broken\nreason'
    replace(study.cells[0].end, ending="crashed", why=why).save(folder)
    path = write_csvs(Study.open(study.folder), tmp_path)[0]
    assert read(path)[0]["why"] == why
    assert b'"a ""quoted"", broken\nreason"' in path.read_bytes()


def test_comparison_without_rows_has_csvs(tmp_path):
    (tmp_path / files.SPEC).write_text(parse_comparison(SPEC).to_yaml())
    cells, summary, rows = map(read, write_csvs(Study.open(tmp_path), tmp_path / "out"))
    assert {line["state"] for line in cells} == {"waiting"}
    assert len(summary) == 2 and rows == []


@pytest.mark.parametrize("write", [write_csvs, write_pngs])
def test_unwritable_folder_is_user_error(study, tmp_path, write):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write '.*file.*': .*; choose another location"):
        write(study, tmp_path / "file" / "out")


@pytest.mark.slow
def test_every_chart_is_exported_as_png(study, tmp_path):
    paths = write_pngs(study, tmp_path / "png")
    names = {path.name for path in paths}
    assert len(names) == len(paths)
    assert {
        "stability-map.png",
        "training-loss-depth-2-lr-0.001-no-warm-up.png",
        "validation-loss-depth-2-each-arm-at-its-best-setting.png",
        "gradient-norm-depth-2-lr-0.001-no-warm-up-step-1-stack-decoder.png",
        "residual-dependency-depth-2-lr-0.001-no-warm-up-step-20-stack-encoder.png",
        "block-post_ln.png",
    } <= names
    for path in paths:
        data = path.read_bytes()
        width = int.from_bytes(data[16:20])
        assert data.startswith(b"\x89PNG") and width >= 400, path.name


def test_texts_that_look_like_formulas_are_escaped_on_request(study, tmp_path):
    cell = study.cells[0]
    bad = replace(cell, end=replace(cell.end, ending="crashed", why="=cmd|x", loss=-1.5))
    study = replace(study, cells=(bad, *study.cells[1:]))
    plain = read(write_csvs(study, tmp_path / "plain")[0])[0]
    safe = read(write_csvs(study, tmp_path / "safe", escape_formulas=True)[0])[0]
    assert (plain["why"], safe["why"]) == ("=cmd|x", "'=cmd|x")
    assert plain["loss"] == safe["loss"] == "-1.5"


@pytest.mark.parametrize(("kind", "start"), [("svg", b"<svg"), ("pdf", b"%PDF-")])
def test_figures_for_a_paper(tmp_path, kind, start):
    spec = parse_comparison(SPEC | {"wiring": "pre_ln", "lr": 1e-3, "seeds": 1})
    folder = write_synthetic_study(tmp_path / "study", spec, site_rows=False)
    paths = write_figures(Study.open(folder), tmp_path / "out", kind=kind)
    names = {path.name for path in paths}
    assert {f"stability-map.{kind}", f"block-pre_ln.{kind}"} <= names
    assert all(path.read_bytes().lstrip().startswith(start) for path in paths)
    assert all(b"var(--" not in path.read_bytes() for path in paths if "block" not in path.name)
