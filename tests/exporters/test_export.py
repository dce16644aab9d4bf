"""`addnorm.export`: prepared, written, reopened, compared, and only then kept."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import addnorm
from addnorm import UserError
from addnorm.core.errors import ExportMismatchError, ExportRefusedError
from addnorm.decode import DecodingOptions, Sentence, decode
from addnorm.exporters import open_engine, open_exported_run
from addnorm.exporters.report import ExportReport
from addnorm.exporters.targets.graph_target import GraphTarget
from addnorm.exporters.targets.torch_program import TorchTarget
from addnorm.tasks import classify_texts, translate_texts
from addnorm.train import TrainedRun
from tests.exporters.models import make_model, make_tokens

LINES = ["ab ba", "a bad cab dad", "", "Öde abc"]


@pytest.fixture(scope="session", name="exported")
def exported_fixture(tmp_path_factory):
    """Return a small classifier, its export to torch, and the report."""
    model, folder = (
        make_model("classifier", wiring="deepnorm", depth=1),
        tmp_path_factory.mktemp("x"),
    )
    return model, folder, addnorm.export(model, to="torch", out=folder)


def test_the_report_says_what_was_proven(exported):
    _, folder, report = exported
    assert (report.target, report.grade, report.form) == ("torch", "exact", "deepnorm")
    assert report.max_error <= report.proof.tolerance and report.proof.sequences == 5
    assert report.proof.labels == (5, 5) and report.proof.greedy is None
    assert ExportReport.read(folder) == report
    stored = json.loads((folder / "export.json").read_text())
    assert stored["proof"]["max_error"] == report.max_error and stored["target"] == "torch"
    assert set(stored["files"]) == {"model.pt2"}
    assert not [each for each in folder.parent.iterdir() if each.name.startswith(f".{folder.name}")]


def test_the_engine_returns_what_the_model_returns(exported):
    model, folder, _ = exported
    engine = open_engine(folder)
    for batch, length in ((1, 1), (4, 12)):
        ids, mask = make_tokens(batch, length)
        with torch.no_grad():
            torch.testing.assert_close(engine(ids, mask=mask), model(ids, mask=mask))
            torch.testing.assert_close(engine(ids), model(ids))


def test_a_changed_file_is_not_opened(exported, tmp_path):
    copied = shutil.copytree(exported[1], tmp_path / "copy")
    with (copied / "model.pt2").open("ab") as file:
        file.write(b"x")
    with pytest.raises(UserError, match="has changed since it was written"):
        open_engine(copied)
    (copied / "model.pt2").unlink()
    with pytest.raises(UserError, match="cannot be read"):
        open_engine(copied)
    (copied / "export.json").write_text("{}")
    with pytest.raises(UserError, match="expected an export of format 1"):
        open_engine(copied)


def test_a_folder_that_is_not_an_export_is_named(tmp_path):
    with pytest.raises(UserError, match="expected a folder written by `addnorm export`"):
        open_engine(tmp_path)


def test_an_export_without_a_tokenizer_runs_no_text(exported):
    with pytest.raises(UserError, match="got that of a model without a tokenizer"):
        open_exported_run(exported[1])


class WrongGraphs(TorchTarget):
    """Target whose engine returns other numbers."""

    error = 0.5

    def open_graph(self, path, spec):
        run = super().open_graph(path, spec)
        return lambda inputs: {name: each + self.error for name, each in run(inputs).items()}


@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_a_wrong_export_is_not_written(monkeypatch, tmp_path, error):
    monkeypatch.setattr(WrongGraphs, "error", error)
    monkeypatch.setitem(addnorm.exporters.TARGETS, "torch", WrongGraphs())
    with pytest.raises(ExportMismatchError, match=r"got a difference of .*; nothing was written"):
        addnorm.export(make_model("classifier", depth=1), to="torch", out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


class FullDisk(GraphTarget):
    """Target that fails while it writes."""

    name, title, extension = "torch", "disk", "pt2"

    def __init__(self, error):
        self.error = error

    def write_graph(self, graph, path):
        raise self.error

    def open_graph(self, path, spec):
        raise AssertionError


@pytest.mark.parametrize(
    "error",
    [RuntimeError("PytorchStreamWriter failed writing file"), OSError(errno.ENOSPC, "no space")],
    ids=["hidden", "without a name"],
)
def test_a_full_disk_is_named(monkeypatch, tmp_path, error):
    monkeypatch.setitem(addnorm.exporters.TARGETS, "torch", FullDisk(error))
    usage = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError) as caught:
        addnorm.export(make_model("classifier", depth=1), to="torch", out=tmp_path / "out")
    assert caught.value.errno == errno.ENOSPC and list(tmp_path.iterdir()) == []
    assert caught.value.filename == str(tmp_path)


def folder_with_a_file(path):
    path.mkdir()
    (path / "keep.txt").touch()


@pytest.mark.parametrize(
    ("prepare", "options", "message"),
    [
        (folder_with_a_file, {}, "expected a new or empty folder, got .*, which contains files"),
        (lambda path: path.touch(), {}, "which is a file"),
        (None, {"to": "onxx"}, "unknown target 'onxx'; did you mean 'onnx'"),
        (None, {"to": "torch", "quantize": "int8"}, "--quantize: expected none for --to torch"),
        (None, {"to": "torch", "family": "llama"}, "--as: expected none for --to torch"),
        (None, {"tolerance": -1.0}, "--tolerance: expected a number from 0, got -1"),
        (None, {"tolerance": float("nan")}, "--tolerance: expected a number from 0, got nan"),
    ],
)
def test_invalid_requests_are_rejected_before_anything_is_written(
    tmp_path, prepare, options, message
):
    out = tmp_path / "out"
    if prepare is not None:
        prepare(out)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=message):
        addnorm.export(make_model("lm"), **{"to": "torch", "out": out} | options)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(type(addnorm.exporters.TARGETS["onnx"]), "packages", ("onnx", "no_such"))
    with pytest.raises(UserError, match=r"expected no_such to be installed; run pip install"):
        addnorm.export(make_model("lm"), to="onnx", out=tmp_path / "out")


def test_a_torch_that_is_too_old_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(type(addnorm.exporters.TARGETS["onnx"]), "min_torch", "99")
    with pytest.raises(UserError, match=r"--to onnx: expected torch 99 or newer, got 2\."):
        addnorm.export(make_model("lm"), to="onnx", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path / "missing", "which is no folder"),
        (lambda path: path, "expected the folder of a run, of a saved model or of a fit"),
        (lambda path: torch.nn.Linear(2, 2), "got Linear; build it with addnorm.build"),
        (lambda path: 3, "got int"),
        (lambda path: addnorm.TabularTransformerClassifier(), "fit it first"),
        (lambda path: make_model("lm").to("meta"), "meta device"),
    ],
)
def test_other_objects_are_rejected(tmp_path, make, message):
    with pytest.raises(UserError, match=message):
        addnorm.export(make(tmp_path), to="torch", out=tmp_path / "out")


def test_admin_must_be_calibrated(tmp_path):
    model = make_model("lm", wiring="drop_path(admin)")
    model.decoder.wiring.inner.calibrated.fill_(False)
    with pytest.raises(ExportRefusedError, match="decoder: expected a calibrated Admin"):
        addnorm.export(model, to="torch", out=tmp_path / "out")


def test_weights_of_a_diverged_training_are_refused(tmp_path):
    model = make_model("lm")
    with torch.no_grad():
        model.embed.table[3, 2] = torch.inf
    with pytest.raises(ExportRefusedError, match=r"embed\.table: expected finite weights"):
        addnorm.export(model, to="torch", out=tmp_path / "out")


def test_a_saved_half_precision_model_in_training_mode(tmp_path):
    model = make_model("classifier", depth=1, dropout=0.3, dtype=torch.bfloat16).train()
    report = addnorm.export(model, to="torch", out=tmp_path / "out")
    assert model.training and next(model.parameters()).dtype == torch.bfloat16
    assert "weights of bfloat16 are written as float32" in report.notes
    assert report.grade == "exact"


@pytest.mark.parametrize(
    "task", ["translate", *(pytest.param(each, marks=pytest.mark.slow) for each in ("lm", "mlm"))]
)
def test_a_run_is_compared_on_its_validation_data(run_folder, tmp_path, task):
    folder = run_folder(task)
    report = addnorm.export(folder, to="torch", out=tmp_path / "out")
    run = TrainedRun.open(folder, device="cpu")
    assert report.proof.inputs == f"valid split of {run.recipe.data}"
    assert (report.task, report.kind) == (task, run.model.config.kind)
    if task == "translate":
        assert report.proof.greedy == report.proof.beam == (5, 5)
        exported = open_exported_run(tmp_path / "out")
        options = DecodingOptions(beam=3, nbest=2, max_new=8)
        ours, theirs = (
            [
                [(each.text, each.ended) for each in texts]
                for texts in translate_texts(r, LINES, options)
            ]
            for r in (run, exported)
        )
        assert ours == theirs


def test_averaged_weights_are_exported(run_folder, tmp_path):
    folder = run_folder("classify", "ema=0.5")
    report = addnorm.export(folder, to="torch", out=tmp_path / "out")
    assert "the weights are the run's moving average (ema)" in report.notes
    run, exported = TrainedRun.open(folder, device="cpu"), open_exported_run(tmp_path / "out")
    ours, theirs = (list(classify_texts(each, LINES)) for each in (run, exported))
    assert [each.label for each in ours] == [each.label for each in theirs]
    np.testing.assert_allclose(ours[0].probabilities, theirs[0].probabilities, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "torch"])
@pytest.mark.parametrize("task", ["translate", "lm", "classify", "mlm"])
def test_every_task_exports(run_folder, tmp_path, task, to):
    report = addnorm.export(run_folder(task), to=to, out=tmp_path / "out")
    assert report.max_error < 1e-4
    assert report.proof.greedy is None or report.proof.greedy[0] == report.proof.greedy[1]


@pytest.mark.slow
def test_a_program_that_cannot_be_written_does_not_abort_the_process(tmp_path):
    """The writer of torch throws from a destructor, which no Python code can catch."""
    code = f"""
import resource, signal
import addnorm
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
model = addnorm.build(kind="classifier", vocab=500, classes=2, dim=64, depth=1, heads=2)
try:
    addnorm.export(model, to="torch", out={str(tmp_path / "out")!r})
except OSError as error:
    print("OSError", error.errno)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout.split()) == (0, ["OSError", str(errno.EFBIG)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("to", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
def test_prompts_of_different_lengths_decode_alike(tmp_path, to):
    """Padding on the left sees no key at all, and must not spoil the tokens that see it."""
    model = make_model("lm", wiring="b2t", positions="rotary", head_dim=4, depth=1)
    addnorm.export(model, to=to, out=tmp_path / "out")
    engine = open_engine(tmp_path / "out")
    sentences = [Sentence((1, *range(4, 4 + count)), 9, number=count) for count in (1, 2, 5, 9)]
    for options in (DecodingOptions(), DecodingOptions(beam=3, nbest=3), DecodingOptions(top_k=4)):
        ours, theirs = (decode(each, sentences, options) for each in (model, engine))
        assert [[h.tokens for h in each] for each in ours] == [
            [h.tokens for h in each] for each in theirs
        ]


def test_more_tokens_than_positions_are_rejected(tmp_path):
    model = make_model("classifier", positions="learned(length=12)", depth=1)
    addnorm.export(model, to="torch", out=tmp_path / "out")
    engine = open_engine(tmp_path / "out")
    assert engine.max_source_length == 12
    with pytest.raises(UserError, match=r"ids: expected at most 12 tokens, .* got 13"):
        engine(make_tokens(2, 13)[0])


class DependsOnValues(torch.nn.Module):
    """Feed-forward of a user whose computation depends on the values of its input."""

    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


def test_a_part_that_cannot_be_traced_is_refused(tmp_path):
    model = make_model("classifier", depth=1)
    model.encoder.sublayers[1] = DependsOnValues()
    with pytest.raises(ExportRefusedError, match=r"model: torch.export cannot trace this model \("):
        addnorm.export(model, to="torch", out=tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_engine_cannot_open_is_named(exported, tmp_path):
    copied = shutil.copytree(exported[1], tmp_path / "copy")
    (copied / "model.pt2").write_bytes(b"not a program")
    report = ExportReport.read(exported[1])
    with pytest.raises(UserError, match=r"model\.pt2: torch\.export cannot open it"):
        TorchTarget().open(copied, report)


@pytest.mark.slow
def test_float64_is_written_as_float32_for_onnx(tmp_path):
    model = make_model("classifier", image=8, patch=4, depth=1, dtype=torch.float64)
    report = addnorm.export(model, to="onnx", out=tmp_path / "out")
    assert report.grade == "rounding" and report.max_error < 1e-5
    stored = (tmp_path / "out" / "model.onnx").read_bytes()
    assert b".py" not in stored  # no names of source files


def test_folder_and_files_have_usual_permissions(tmp_path):
    mask = os.umask(0)
    os.umask(mask)
    addnorm.export(make_model("lm", depth=1, head_bias=False), to="hf", out=tmp_path / "out")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~mask
    for path in (tmp_path / "out").iterdir():
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask, path


KILLED = """
import os, signal, sys
from addnorm.exporters.targets.torch_program import TorchTarget
import addnorm

def die(self, graph, path):
    path.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

TorchTarget.write_graph = die
model = addnorm.build(kind="lm", vocab=9, dim=8, depth=1, heads=2)
addnorm.export(model, to="torch", out=sys.argv[1])
"""


@pytest.mark.slow
def test_a_killed_export_leaves_no_folder_and_the_next_one_cleans_up(tmp_path):
    out = tmp_path / "out"
    result = subprocess.run([sys.executable, "-c", KILLED, str(out)], check=False)
    assert result.returncode == -signal.SIGKILL and not out.exists()
    [left] = tmp_path.iterdir()
    assert left.name.startswith(".out.")
    addnorm.export(make_model("lm", depth=1), to="torch", out=out)
    assert list(tmp_path.iterdir()) == [out]


def test_an_export_is_not_exported_again(exported, tmp_path):
    with pytest.raises(UserError, match="got an export; export the original again"):
        addnorm.export(exported[1], to="torch", out=tmp_path / "out")


def test_a_checkpoint_is_exported_with_its_tokenizer(run_folder, tmp_path):
    folder = run_folder("classify")
    step = min((folder / "checkpoints").glob("step-*"))
    report = addnorm.export(step, to="torch", out=tmp_path / "out")
    assert report.task == "classify" and "valid split" in report.proof.inputs
    exported = open_exported_run(tmp_path / "out")
    model = addnorm.load(step)
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(exported.model(ids), model(ids), atol=1e-5, rtol=1e-5)


def test_a_folder_of_transformers_with_our_class_is_exported(tmp_path):
    model = make_model("lm", wiring="b2t", depth=1)
    addnorm.to_hf(model).save_pretrained(tmp_path / "hf")
    report = addnorm.export(tmp_path / "hf", to="torch", out=tmp_path / "out")
    assert report.form == "b2t"
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match=r"got 'bert' of transformers; load it with addnorm\.load"):
        addnorm.export(tmp_path / "hf", to="torch", out=tmp_path / "other")
