"""A valid command line for every command on tiny data; tests change one part of it."""

from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import typer

from tests.tasks.sample_runs import make_run

TASKS = {"translate": "translate", "generate": "lm", "classify": "classify", "fill-mask": "mlm"}
"""Task of the run that a command reads."""


@cache
def shared_folder() -> TemporaryDirectory:
    """Return a folder that is deleted at exit; arguments of tests are made before any fixture."""
    return TemporaryDirectory(prefix="torture")


@cache
def tiny_files() -> Path:
    """Return a folder with a text and a table."""
    folder = Path(shared_folder().name) / "files"
    folder.mkdir()
    (folder / "text.txt").write_text("".join(f"ab cab {n}\n" for n in range(40)))
    rng = np.random.default_rng(0)
    labels = ["=1+1", "plain", "-x"]
    rows = (f"{rng.random():.3f},{'xyz'[n % 3]},{labels[n % 3]}\n" for n in range(60))
    (folder / "table.csv").write_text("a,b,y\n" + "".join(rows))
    return folder


@cache
def tiny_run(task: str):
    """Return an untrained run, as `open_run` would."""
    folder = Path(shared_folder().name) / task
    folder.mkdir()
    return make_run(task, folder)


def valid_lines() -> dict[tuple[str, ...], list[str]]:
    """Return the arguments of each command, without its options."""
    files = tiny_files()
    text, table = str(files / "text.txt"), str(files / "table.csv")
    data = str(tiny_run("lm").folder)
    return {
        ("list",): ["norms"],
        ("show",): ["rms"],
        ("draw",): ["pre_ln", "-o", "blocks.svg"],
        ("compare",): ["--wiring", "pre_ln", "--lr", "1e-3", "dim=16", "--dry-run"],
        ("report",): ["nothing"],
        ("claims", "list"): [],
        ("claims", "run"): ["last_gradient", "-o", "claims"],
        ("doctor",): ["nowhere:model"],
        ("data", "files"): ["--text", text, "-o", "corpus"],
        ("data", "columns"): [table, "--text", "b", "--label", "y", "-o", "corpus"],
        ("data", "demo"): ["-o", "corpus"],
        ("train",): ["lm", f"data={data}", "dim=16", "depth=1", "heads=2", "-o", "run"],
        ("evaluate",): ["RUN"],
        ("translate",): ["RUN"],
        ("generate",): ["RUN"],
        ("classify",): ["RUN"],
        ("fill-mask",): ["RUN"],
        ("fit",): [table, "--target", "y", "-o", "fitted", "max_epochs=1"],
        ("tune",): [table, "--target", "y", "-o", "tuned", "max_epochs=1", "--trials", "1"],
        ("predict",): ["fitted", table],
        ("export",): [data, "--to", "torch", "-o", "exported"],
        ("rewire",): [data, "--norm", "rms", "-o", "rewired"],
        ("coordcheck",): ["--dim", "8,16", "--depth", "1"],
        ("plan",): ["gpt2", "depth=2", "dim=64", "heads=2", "vocab=100", "batch=2x16"],
        ("selftest",): [],
        ("bench",): ["kernels"],
    }


def replace_long_work(monkeypatch, words: tuple[str, ...]) -> None:
    """Let a command use a tiny run, and stop it before it trains or measures."""

    def stop(*_, **__):
        raise typer.Exit(0)

    task = TASKS.get(words[0], "lm")
    monkeypatch.setattr("addnorm.cli.line_io.open_run", lambda folder, device, **_: tiny_run(task))
    monkeypatch.setattr("addnorm.bench.measure_limits", stop)
    monkeypatch.setattr("addnorm.claims.run_claims", stop)
    monkeypatch.setattr("addnorm.exporters.export", stop)
    monkeypatch.setattr("addnorm.selftest.run_checks", stop)
    # By its module, since a function of the same name hides it.
    monkeypatch.setattr(import_module("addnorm.transfer.coordcheck"), "_train", stop)
    monkeypatch.setattr("addnorm.tasks.TextTask.make_demo", stop)
    monkeypatch.setattr("addnorm.train.trainer.Trainer.run", stop)
    monkeypatch.setattr("addnorm.tabular.TabularTransformerClassifier.fit", stop)
    monkeypatch.setattr("addnorm.tabular.TabularSearch.fit", stop)
    monkeypatch.setattr("addnorm.comparison.engines.local._start_server", lambda: None)
