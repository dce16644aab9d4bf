"""Output folders under kills, full disks, two processes and a clock that jumps."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from addnorm.core.locks import folder_lock
from addnorm.core.rows import read_rows
from addnorm.data.corpus import Corpus
from tests.torture.valid_commands import replace_long_work, tiny_files, tiny_run, valid_lines

TIMES = ("tokens_per_second", "seconds")
"""Measured times, which differ between two runs."""


@pytest.mark.parametrize(
    ("words", "out"),
    [
        (("train",), "run"),
        (("fit",), "fitted"),
        (("claims", "run"), "claims"),
        (("data", "files"), "corpus"),
        (("data", "columns"), "corpus"),
        (("compare",), "comparison"),
    ],
    ids=str,
)
def test_second_process_in_a_folder_is_rejected(run, monkeypatch, words, out):
    line = [*words, *valid_lines()[words]]
    if words == ("compare",):
        line.remove("--dry-run")
        monkeypatch.setattr("addnorm.comparison.engines.local._start_server", lambda: None)
    with folder_lock(Path(out), "working"):
        ended = run(*line)
        assert ended.code == 2
        assert "another process is" in ended.err.splitlines()[-1]
    assert list(Path(out).iterdir()) == []


def test_corpus_leaves_no_lock_behind(run):
    arguments = ["data", "files", "--text", str(tiny_files() / "text.txt"), "-o", "corpus"]
    assert run(*arguments).code == 0
    assert ".lock" not in os.listdir("corpus")
    assert run(*arguments, "--force").code == 0
    assert run("data", "files", "--text", os.devnull, "-o", "other").code == 2
    assert not Path("other").exists()


FULL_LINES = {
    "draw": ["draw", "pre_ln", "-o", "blocks.svg"],
    "data files": ["data", "files", "--text", "text.txt", "-o", "corpus"],
    "attention": ["classify", "RUN", "text.txt", "--attention", "attention.html"],
    "train": ["train", "lm", "data=DATA", "dim=16", "depth=1", "heads=2", "-o", "run"],
}


@pytest.mark.parametrize("name", FULL_LINES)
def test_full_disk_is_one_line_that_names_the_file(run, monkeypatch, name):
    """Every file is written through `os.fsync`, which fails here as on a full disk."""
    Path("text.txt").write_text("".join(f"ab cab {n}\n" for n in range(40)))
    replace_long_work(monkeypatch, ("classify",))
    for task in ("lm", "classify"):
        tiny_run(task)  # before the disk is full

    def raise_disk_full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", raise_disk_full)
    line = [part.replace("DATA", str(tiny_run("lm").folder)) for part in FULL_LINES[name]]
    ended = run(*line)
    assert ended.code == 2
    last = ended.err.splitlines()[-1]
    assert "No space left on device" in last
    out = line[line.index("--attention" if name == "attention" else "-o") + 1]
    assert out in last
    assert not [path for path in Path(".").rglob(".*") if path.name.endswith(str(os.getpid()))]


def test_clock_that_jumps_backwards_is_harmless(run, monkeypatch):
    times = iter(range(10**9, 0, -3600))
    monkeypatch.setattr("time.time", lambda: float(next(times)))
    text = str(tiny_files() / "text.txt")
    assert run("data", "files", "--text", text, "-o", "corpus").code == 0
    replace_long_work(monkeypatch, ("classify",))
    assert run("classify", "RUN", text).code == 0


def addnorm(*arguments, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "addnorm", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def kill_and_resume(arguments, rng, *, kills, longest):
    """Kill a command at random moments, then let it end; return the number of effective kills."""
    killed = 0
    for _ in range(kills):
        process = addnorm(*arguments, start_new_session=True)
        time.sleep(rng.uniform(1, longest))  # any moment is fine: none may be special
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.communicate()
    process = addnorm(*arguments)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return killed


def read_values(folder):
    """Return the rows of all runs below a folder, without measured times."""
    return {
        str(path.relative_to(folder)): [r for r in read_rows(path) if r["name"] not in TIMES]
        for path in sorted(folder.rglob("rows.jsonl"))
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run and a comparison that were not disturbed, and their commands without folder."""
    folder = tmp_path_factory.mktemp("undisturbed")
    corpus = str(folder / "corpus")
    text = str(tiny_files() / "text.txt")
    addnorm("data", "files", "--text", text, "-o", corpus).communicate()
    sizes = ["dim=8", "depth=1", "heads=2", "batch_tokens=128", "max_length=32"]
    every = ["save_every=5", "valid_every=10", "log_every=1"]
    commands = {
        "train": ["train", "lm", f"data={corpus}", "steps=60", *sizes, *every],
        "compare": ["compare", "--wiring", "pre_ln,b2t", "--lr", "1e-3", "--depth", "1", "--seeds",
                    "1", "--steps", "30", "--task", "lm", f"data={corpus}", "--score", "4",
                    "save_every=5", *(each for each in sizes if "depth" not in each)],
    }  # fmt: skip
    for verb, arguments in commands.items():
        process = addnorm(*arguments, "-o", str(folder / verb))
        _, err = process.communicate()
        assert process.returncode == 0, err
    return folder, commands


@pytest.mark.slow
@pytest.mark.cases(2)
@pytest.mark.parametrize("verb", ["train", "compare"])
def test_killed_command_ends_with_the_same_values(undisturbed, tmp_path, verb, case_seed):
    folder, commands = undisturbed
    rng = random.Random(f"{case_seed} {verb}")
    kill_and_resume([*commands[verb], "-o", str(tmp_path / verb)], rng, kills=3, longest=20)
    expected = read_values(folder / verb)
    assert expected and read_values(tmp_path / verb) == expected
    if verb == "train":
        (last,) = {path.name for path in (folder / "train" / "checkpoints").glob("step-60")}
        weights = Path("checkpoints") / last / "model.safetensors"
        assert (tmp_path / verb / weights).read_bytes() == (folder / "train" / weights).read_bytes()


@pytest.mark.slow
@pytest.mark.cases(3)
def test_killed_data_leaves_the_old_corpus_or_the_new_one(tmp_path, case_seed):
    rng = random.Random(case_seed)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {n} ab cab\n" for n in range(200_000)))
    small = ["data", "files", "--text", str(tiny_files() / "text.txt"), "-o", str(tmp_path / "c")]
    large = ["data", "files", "--text", str(text), "-o", str(tmp_path / "c"), "--force"]
    addnorm(*small).communicate()
    old = Corpus.open(tmp_path / "c").counts
    process = addnorm(*large)
    time.sleep(rng.uniform(1, 12))
    process.kill()
    process.communicate()
    if (tmp_path / "c" / "corpus.json").exists():
        now = Corpus.open(tmp_path / "c")
        assert {split: sum(1 for _ in now.records(split)) for split in now.counts} == now.counts
        assert now.counts == old or sum(now.counts.values()) == 200_000
    process = addnorm(*large)
    _, err = process.communicate()
    assert process.returncode == 0, err
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert names == {"corpus.json", "train.jsonl", "valid.jsonl", "test.jsonl"}
