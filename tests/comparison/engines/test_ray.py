"""The Ray engine on a real local cluster of two nodes."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

# Ray 2.59 and later authenticate local clusters by a token, which is read when ray is imported.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
import ray

from addnorm.comparison.cell_job import Job
from addnorm.comparison.engines.local import LocalEngine
from addnorm.comparison.engines.ray import RayEngine, _pack_files, _unpack_job
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import preview_jobs, run_comparison
from addnorm.core.errors import UserError
from addnorm.core.interrupts import StopFlag
from tests.comparison.engines.test_engines import Hook, rows_of, tiny

pytestmark = pytest.mark.filterwarnings("ignore")
START_TIMEOUT_SECONDS = 600


@pytest.fixture(scope="module")
def cluster():
    """Address of a cluster of two nodes with one CPU each, started by `ray` and stopped later."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    files = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # paths of Unix sockets must be short
    head = ["--head", f"--port={port}", f"--temp-dir={files}", "--include-dashboard=false"]
    nodes = []
    try:
        nodes.append(_start_node(*head))
        _wait_for_port(nodes[0], port)
        _wait_for_head(nodes[0], f"127.0.0.1:{port}")
        nodes.append(_start_node(f"--address=127.0.0.1:{port}"))
        yield f"127.0.0.1:{port}"
    finally:
        ray.shutdown()
        for node in reversed(nodes):
            node.terminate()  # with --block the command stops the processes that it started
            node.wait(timeout=600)
        shutil.rmtree(files, ignore_errors=True)


def _start_node(*options):
    ray_command = str(Path(sys.executable).with_name("ray"))
    command = [ray_command, "start", "--block", "--num-cpus=1", "--disable-usage-stats", *options]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _make_engine(address):
    """Return an engine once both nodes have joined."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while (engine := RayEngine(address=address)).workers < 2:
        assert time.monotonic() < deadline, "the second node did not join"
        time.sleep(0.5)
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2
    return engine


def _wait_for_port(head, port):
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert head.poll() is None, "`ray start` failed"
            assert time.monotonic() < deadline, "`ray start` timed out"
            time.sleep(0.1)


def _wait_for_head(head, address):
    """On a busy machine the port is open long before the head takes nodes; they exit before."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while True:
        try:
            RayEngine(address=address)
            return
        except UserError:
            assert head.poll() is None, "`ray start` failed"
            assert time.monotonic() < deadline, "`ray start` timed out"
            time.sleep(0.5)


@pytest.mark.slow  # 40 s on an idle machine: each task imports torch in a new process
def test_cluster_reproduces_local_rows_with_and_without_shared_folder(
    cluster, tmp_path, monkeypatch
):
    spec = tiny(wiring="pre_ln,b2t", steps=6)
    local = run_comparison(spec, tmp_path / "local", engine=LocalEngine(workers=1))
    engine = _make_engine(cluster)
    shared = run_comparison(spec, tmp_path / "shared", engine=engine)
    # Without the marker file a node behaves as if the folder were on another machine.
    monkeypatch.setattr("pathlib.Path.touch", lambda self, *args, **kwargs: None)
    remote = run_comparison(spec, tmp_path / "remote", engine=engine)
    expected = rows_of(tmp_path / "local")
    assert len(expected) == 2
    assert rows_of(tmp_path / "shared") == rows_of(tmp_path / "remote") == expected
    for study in (shared, remote):
        assert study.complete
        assert [each.end.loss for each in study.cells] == [each.end.loss for each in local.cells]
        assert [each.end.samples for each in study.cells] == [e.end.samples for e in local.cells]


TASK_WITH_WIRING = """
import addnorm

@addnorm.register("of_ray")
class OfRay(addnorm.Wiring):
    def read(self, state, site):
        return state[0], state

    def write(self, state, site, branch):
        return (state[0] + branch,)

    def close(self, state):
        return state[0]

@addnorm.task("own")
def train(cell):
    text = "" if cell.data == "demo" else open(cell.data).read()
    addnorm.build(kind="lm", vocab=9, dim=8, depth=1, heads=2, wiring=cell.wiring)
    cell.log(0, valid_loss=3.0)
    return {"valid_loss": 1.0 + len(text)}
"""


@pytest.mark.slow
def test_cluster_runs_a_task_and_a_wiring_of_ones_own(cluster, tmp_path, monkeypatch):
    """On nodes that do not see the files of this machine."""
    (tmp_path / "own_study.py").write_text(TASK_WITH_WIRING)
    (tmp_path / "data.txt").write_text("four")
    monkeypatch.setattr("pathlib.Path.touch", lambda self, *args, **kwargs: None)
    spec = parse_comparison(
        {
            "task": f"{tmp_path / 'own_study.py'}:train",
            "wiring": "of_ray",
            "lr": 1e-3,
            "data": str(tmp_path / "data.txt"),
        }
    )
    study = run_comparison(spec, tmp_path / "study", engine=_make_engine(cluster))
    assert [each.end.why for each in study.cells] == ["", ""]
    assert [each.loss for each in study.cells] == [5.0, 5.0]


@pytest.mark.slow
def test_sigterm_pauses_cells_which_resume(cluster, tmp_path):
    spec = tiny(steps=300, save_every=1000, seeds=2)
    run_comparison(spec, tmp_path / "local", engine=LocalEngine(workers=1))
    hook = Hook(lambda event: os.kill(os.getpid(), signal.SIGTERM))
    study = run_comparison(spec, tmp_path / "ray", engine=_make_engine(cluster), callback=hook)
    assert study.interrupted and not any(each.end for each in study.cells)
    assert list(tmp_path.glob("ray/cells/*/checkpoints/*"))
    study = run_comparison(spec, tmp_path / "ray", engine=_make_engine(cluster))
    assert [each.end.ending for each in study.cells] == ["done", "done"]
    resumed = {
        name: [row for row in rows if row.get("ending") != "interrupted"]
        for name, rows in rows_of(tmp_path / "ray").items()
    }
    assert resumed == rows_of(tmp_path / "local")


@pytest.mark.parametrize("kind", ["none", "file", "folder"])
def test_data_of_a_task_of_ones_own_reach_a_node(tmp_path, monkeypatch, kind):
    """A folder `demo` in the working directory, such as that of `make demo`, is not the data."""
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "large.bin").write_text("of something else")
    (tmp_path / "texts").mkdir()
    for name in ("texts/a.txt", "alone.txt"):
        (tmp_path / name).write_text("data")
    (tmp_path / "study.py").write_text("def train(cell):\n    return {'valid_loss': 1.0}\n")
    monkeypatch.chdir(tmp_path)
    keys = {"none": {}, "file": {"data": "alone.txt"}, "folder": {"data": "texts"}}[kind]
    spec = parse_comparison({"task": "study.py:train", "lr": 1e-3, **keys})
    (job, *_) = preview_jobs(spec, tmp_path / "comparison")
    packed = _pack_files(job, tmp_path / "comparison")
    assert len(packed) == (0 if kind == "none" else 1)
    node = tmp_path / "node"
    node.mkdir()
    data = _unpack_job(job, packed, node).recipe.data
    if kind == "none":
        assert data == "demo"
    elif kind == "file":
        assert Path(data).name == "alone.txt" and Path(data).read_text() == "data"
    else:
        assert (Path(data) / "a.txt").read_text() == "data"
    assert kind == "none" or Path(data).is_relative_to(node)


def test_unreachable_cluster_raises_user_error():
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(UserError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        RayEngine(address="127.0.0.1:1")


def test_file_names_of_a_worker_are_checked(tmp_path):
    """A worker cannot write outside its cell; the cell counts as crashed."""
    job = Job("cell", tiny(), tmp_path / "cells" / "cell", None)
    engine, events = object.__new__(RayEngine), []
    engine.ray = SimpleNamespace(get=lambda task: {"../../x": b"bad"}, exceptions=ray.exceptions)
    engine._collect_result(None, job, events.append, StopFlag())
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["cell.json"]
    assert events[0].end.ending == "crashed"
    assert "expected files of cell cell, got '../../x'" in events[0].end.why
