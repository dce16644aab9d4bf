"""Training runs in separate processes: killed, interrupted and distributed."""

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
from tests.train.cases import digest, make_recipe, write_number_corpus

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_number_corpus(tmp_path_factory.mktemp("corpus"), count=200).folder


def build_command(recipe, out, *, processes=1):
    keys = [f"{key}={value}" for key, value in recipe.to_flat_dict().items() if key != "task"]
    keys = [key for key in keys if not key.endswith("=None")]
    return [
        sys.executable,
        *(TORCHRUN if processes == 2 else []),
        "-m",
        "addnorm",
        "train",
        recipe.task,
        *keys,
        "-o",
        str(out),
    ]


def run_to_end(recipe, out, *, processes=1):
    done = subprocess.run(
        build_command(recipe, out, processes=processes),
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def run_and_kill(recipe, out, *, when, processes=1):
    """Start a run and kill all its processes shortly after a file appears.

    Returns whether the run was killed before it ended.
    """
    with subprocess.Popen(
        build_command(recipe, out, processes=processes),
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        path, delay = when
        limit = time.monotonic() + 600
        while process.poll() is None and not (out / path).exists():
            assert time.monotonic() < limit, f"{path} was not written"
            time.sleep(0.005)
        time.sleep(delay)
        ended = process.poll() is not None
        # torchrun starts its workers in separate groups, so each process is killed by its id.
        for pid in [process.pid, *list_descendants(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return not ended


def list_descendants(pid):
    """Return the process ids of all descendants."""
    descendants = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            descendants += [child, *list_descendants(child)]
    return descendants


def read_losses(folder, split="train"):
    rows = read_rows(folder / "rows.jsonl")
    return [r["value"] for r in rows if r["name"] == "loss" and r.get("split") == split]


def test_killed_run_resumes_with_same_bits(data, tmp_path):
    recipe = make_recipe(data, steps=60, save_every=5, valid_every=20, dropout=0.1)
    train(recipe, tmp_path / "whole")
    assert run_and_kill(recipe, tmp_path / "run", when=("checkpoints/step-10", 0.05))
    assert run_and_kill(recipe, tmp_path / "run", when=("checkpoints/step-30", 0.0))
    run_to_end(recipe, tmp_path / "run")
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    assert read_losses(tmp_path / "run") == read_losses(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_run_killed_at_random_times_resumes_with_same_bits(data, tmp_path, processes, seed):
    rng = random.Random(seed)
    recipe = make_recipe(
        data, steps=150, save_every=3, valid_every=9, dropout=0.1, ema=0.9, seed=seed
    )
    run_to_end(recipe, tmp_path / "whole", processes=processes)
    places = ["tokenizer.json", "arrangement.json", "rows.jsonl"]
    places += [f"checkpoints/step-{step}" for step in (3, 12, 30, 48)]
    num_killed = 0
    for place in places:
        delay = rng.random() * 0.3
        num_killed += run_and_kill(
            recipe, tmp_path / "run", when=(place, delay), processes=processes
        )
    run_to_end(recipe, tmp_path / "run", processes=processes)
    assert num_killed >= 3
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_two_processes_reproduce_losses_of_one(data, tmp_path):
    recipe = make_recipe(data, steps=12, wiring="post_ln", dropout=0.0, batch_tokens=200)
    train(recipe, tmp_path / "one")
    output = run_to_end(recipe, tmp_path / "two", processes=2)
    assert "2 processes (ddp)" in output
    for split in ("train", "valid"):
        assert read_losses(tmp_path / "two", split) == pytest.approx(
            read_losses(tmp_path / "one", split), rel=1e-5
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
        {"batch_tokens": 16},  # batches of one sentence: the second process gets none
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_parallel_modes_reproduce_losses_of_one_process(data, tmp_path, parallel, changes):
    base = {"steps": 9, "dropout": 0.0, "batch_tokens": 200}
    recipe = make_recipe(data, parallel=parallel, **base | changes)
    unsupported = {
        "hyper": "parallel=fsdp cannot shard scalar parameters such as",
        "adafactor": "torch's Adafactor",
    }
    expected = [text for name, text in unsupported.items() if name in changes.values()]
    if parallel == "fsdp" and expected:
        arguments = build_command(recipe, tmp_path / "two", processes=2)
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert done.returncode != 0
        assert f"addnorm: {expected[0]}" in done.stderr
        assert "Traceback" not in done.stderr.split("ChildFailedError")[0].split("torch/")[0]
        return
    train(recipe, tmp_path / "one")
    run_to_end(recipe, tmp_path / "two", processes=2)
    for split in ("train", "valid"):  # with ema, validation uses the average of the weights
        assert read_losses(tmp_path / "two", split) == pytest.approx(
            read_losses(tmp_path / "one", split), rel=1e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_resume_with_another_number_of_processes_reproduces_losses(data, tmp_path, parallel):
    recipe = make_recipe(data, steps=16, dropout=0.0, parallel=parallel, ema=0.9)
    train(recipe, tmp_path / "whole")
    for processes, place in ((2, "checkpoints/step-4"), (1, "checkpoints/step-8")):
        run_and_kill(recipe, tmp_path / "run", when=(place, 0.0), processes=processes)
    run_to_end(recipe, tmp_path / "run", processes=2)
    assert read_losses(tmp_path / "run") == pytest.approx(read_losses(tmp_path / "whole"), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_checkpoint_and_prints_message(data, tmp_path, number):
    recipe = make_recipe(data, steps=100000, save_every=100000, valid_every=0)
    with subprocess.Popen(
        build_command(recipe, tmp_path / "run"),
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        while not (tmp_path / "run" / "rows.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(number)
        _, stderr = process.communicate()
    assert process.returncode == 128 + number
    assert "rerun the same command to resume" in stderr
    (kept,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert f"interrupted after step {kept.name[5:]}" in stderr


@pytest.mark.slow
def test_second_run_in_same_folder_is_rejected(data, tmp_path):
    recipe = make_recipe(data, steps=100000, valid_every=0)
    with subprocess.Popen(
        build_command(recipe, tmp_path / "run"),
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        while not (tmp_path / "run" / "rows.jsonl").exists():
            assert process.poll() is None
            time.sleep(0.01)
        second = subprocess.run(
            build_command(recipe, tmp_path / "run"), capture_output=True, text=True
        )
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
        recipe = make_recipe(
            folder, task, tokenizer="bpe", vocab=300, max_length=128, batch_tokens=256
        )
        recipe = recipe.model_copy(update={"steps": 3, "valid_every": 0})
        script = (
            "import resource, sys; from addnorm.cli.main import main; code = main(sys.argv[1:]);"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
        )
        arguments = build_command(recipe, tmp_path / f"run-{megabytes}")[3:]
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
        )
        return int(done.stdout) / 1024

    assert peak(256) < peak(2) + 400


def test_process_groups_outlive_wrapped_models(monkeypatch):
    """Freeing a group with its model can deadlock: torch joins threads while it holds the GIL."""
    init_process_group = distributed.init_process_group
    single = {"store": distributed.HashStore(), "rank": 0, "world_size": 1}
    monkeypatch.setattr(
        distributed, "init_process_group", lambda name: init_process_group(name, **single)
    )
    group = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in group.items():
        monkeypatch.setenv(name, value)
    with init_distributed("cpu"):
        group = weakref.ref(distributed.group.WORLD)
        model = DistributedDataParallel(nn.Linear(2, 2))
    del model
    gc.collect()
    assert not distributed.is_initialized()
    assert group() is not None


def test_one_of_several_processes_ends_without_finalization():
    """Threads of a group can abort an interpreter that shuts down; see `exit_if_distributed`."""
    code = """
import atexit, sys
from addnorm.train import distributed
class Finalized:
    def __del__(self): print("finalized")
keep = Finalized()
atexit.register(print, "closed")
distributed.exit_if_distributed(3)
distributed.PROCESS_GROUPS.append(None)
distributed.exit_if_distributed(4)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (4, "closed\n", "")
