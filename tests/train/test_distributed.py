"""Runs in separate processes: killed, interrupted, distributed."""

import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import pytest
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from addnorm.core.rows import read_rows
from addnorm.data import write_corpus
from addnorm.train.distributed import init_distributed
from addnorm.train.trainer import train
from tests.train.cases import corpus, digest, recipe

TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return corpus(tmp_path_factory.mktemp("corpus"), count=200).folder


def command(made, out, *, processes=1):
    keys = [f"{key}={value}" for key, value in made.to_flat_dict().items() if key != "task"]
    keys = [key for key in keys if not key.endswith("=None")]
    return [
        sys.executable,
        *(TWO if processes == 2 else []),
        "-m",
        "addnorm",
        "train",
        made.task,
        *keys,
        "-o",
        str(out),
    ]


def run(made, out, *, processes=1):
    done = subprocess.run(
        command(made, out, processes=processes),
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def killed(made, out, *, when, processes=1):
    """Start a run, and kill all its processes shortly after a file appears."""
    with subprocess.Popen(
        command(made, out, processes=processes),
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        path, delay = when
        limit = time.monotonic() + 120
        while process.poll() is None and not (out / path).exists():
            assert time.monotonic() < limit, f"{path} never came"
            time.sleep(0.005)
        time.sleep(delay)
        ended = process.poll() is not None
        for pid in [process.pid, *children(process.pid)]:  # torchrun's are in groups of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return not ended


def children(pid):
    """Return the process ids of all descendants."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def losses(folder, split="train"):
    rows = read_rows(folder / "rows.jsonl")
    return [r["value"] for r in rows if r["name"] == "loss" and r.get("split") == split]


def test_killed_run_resumes_with_same_bits(data, tmp_path):
    made = recipe(data, steps=60, save_every=5, valid_every=20, dropout=0.1)
    train(made, tmp_path / "whole")
    assert killed(made, tmp_path / "run", when=("checkpoints/step-10", 0.05))
    assert killed(made, tmp_path / "run", when=("checkpoints/step-30", 0.0))
    run(made, tmp_path / "run")
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_run_killed_at_random_times_resumes_with_same_bits(data, tmp_path, processes, seed):
    chance = random.Random(seed)
    made = recipe(data, steps=150, save_every=3, valid_every=9, dropout=0.1, ema=0.9, seed=seed)
    run(made, tmp_path / "whole", processes=processes)
    places = ["tokenizer.json", "arrangement.json", "rows.jsonl"]
    places += [f"checkpoints/step-{step}" for step in (3, 12, 30, 48)]
    hit = 0
    for place in places:
        delay = chance.random() * 0.3
        hit += killed(made, tmp_path / "run", when=(place, delay), processes=processes)
    run(made, tmp_path / "run", processes=processes)
    assert hit >= 3
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_two_processes_reproduce_losses_of_one(data, tmp_path):
    made = recipe(data, steps=12, wiring="post_ln", dropout=0.0, batch_tokens=200)
    train(made, tmp_path / "one")
    output = run(made, tmp_path / "two", processes=2)
    assert "2 processes (ddp)" in output
    for split in ("train", "valid"):
        assert losses(tmp_path / "two", split) == pytest.approx(
            losses(tmp_path / "one", split), rel=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize(
    "changes",
    [
        {"accumulate": 2, "ema": 0.9, "clip": 0.5},
        {"wiring": "ngpt", "weight_decay": 0.0},
        {"wiring": "admin", "optimizer": "adam"},
        {"wiring": "hyper", "encoder_wiring": "b2t", "norm": "rms"},
        {"optimizer": "muon", "wiring": "sub_ln"},
        {"optimizer": "adafactor", "lr": 0.003},
        {"recompute": True, "tied": False, "head_bias": True},
        {"batch_tokens": 16},  # batches of one sentence: the second process has nothing to do
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_parallel_modes_reproduce_losses_of_one_process(data, tmp_path, parallel, changes):
    base = {"steps": 9, "dropout": 0.0, "batch_tokens": 200}
    made = recipe(data, parallel=parallel, **base | changes)
    refused = {
        "hyper": "parallel=fsdp cannot shard scalar parameters such as",
        "adafactor": "torch's Adafactor",
    }
    expected = [text for name, text in refused.items() if name in changes.values()]
    if parallel == "fsdp" and expected:
        arguments = command(made, tmp_path / "two", processes=2)
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert done.returncode != 0
        assert f"addnorm: {expected[0]}" in done.stderr
        assert "Traceback" not in done.stderr.split("ChildFailedError")[0].split("torch/")[0]
        return
    train(made, tmp_path / "one")
    run(made, tmp_path / "two", processes=2)
    for split in ("train", "valid"):  # the average of the weights, where there is one
        assert losses(tmp_path / "two", split) == pytest.approx(
            losses(tmp_path / "one", split), rel=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_resume_with_another_number_of_processes(data, tmp_path, parallel):
    made = recipe(data, steps=16, dropout=0.0, parallel=parallel, ema=0.9)
    train(made, tmp_path / "whole")
    for processes, place in ((2, "checkpoints/step-4"), (1, "checkpoints/step-8")):
        killed(made, tmp_path / "run", when=(place, 0.0), processes=processes)
    run(made, tmp_path / "run", processes=2)
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_checkpoint_and_prints_message(data, tmp_path, number):
    made = recipe(data, steps=100000, save_every=100000, valid_every=0)
    with subprocess.Popen(
        command(made, tmp_path / "run"),
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        while not (tmp_path / "run" / "rows.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, stderr = process.communicate()
    assert process.returncode == 130
    assert "rerun the same command to resume" in stderr
    (kept,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert f"interrupted after step {kept.name[5:]}" in stderr


@pytest.mark.slow
def test_second_run_in_same_folder_is_rejected(data, tmp_path):
    made = recipe(data, steps=100000, valid_every=0)
    with subprocess.Popen(
        command(made, tmp_path / "run"),
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        while not (tmp_path / "run" / "rows.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.01)
        second = subprocess.run(command(made, tmp_path / "run"), capture_output=True, text=True)
        process.kill()
    assert second.returncode == 2
    assert second.stderr.startswith("addnorm: another process is training into")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["lm", "translate"])
def test_large_corpus_is_streamed(tmp_path, task):
    """Training on 256 MB of text needs about as much memory as on a hundredth of it."""
    text = " ".join(f"word{number}" for number in range(14))
    record = {"lm": {"text": text}, "translate": {"source": text, "target": text}}[task]

    def peak(megabytes):
        folder = tmp_path / f"{megabytes}"
        size = megabytes * 2**20 // (len(text) * len(record))
        write_corpus(folder, task, splits={"train": (record for _ in range(size))})
        made = recipe(folder, task, tokenizer="bpe", vocab=300, max_length=128, batch_tokens=256)
        made = made.model_copy(update={"steps": 3, "valid_every": 0})
        script = (
            "import resource, sys; from addnorm.cli.main import main; code = main(sys.argv[1:]);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
        )
        words_ = command(made, tmp_path / f"run-{megabytes}")[3:]
        done = subprocess.run(
            [sys.executable, "-c", script, *words_], capture_output=True, text=True, check=True
        )
        return int(done.stdout) / 1024

    assert peak(256) < peak(2) + 400


def test_process_groups_outlive_wrapped_models(monkeypatch):
    """It was, and with some bad luck the process never ended: torch waits there for its threads
    without letting go of Python's lock."""
    begin = distributed.init_process_group
    alone = {"store": distributed.HashStore(), "rank": 0, "world_size": 1}
    monkeypatch.setattr(distributed, "init_process_group", lambda name: begin(name, **alone))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with init_distributed("cpu"):
        group = weakref.ref(distributed.group.WORLD)
        model = DistributedDataParallel(nn.Linear(2, 2))
    del model
    gc.collect()
    assert not distributed.is_initialized()
    assert group() is not None
