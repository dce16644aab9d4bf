"""Ctrl-C and SIGTERM: one line and 130 or 143, wherever they arrive."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.torture.commands import CommandResult, check_ending
from tests.torture.valid_commands import tiny_files

SCRIPT = """
import os, signal, sys, threading
from addnorm.cli import main as cli, run
def send(): os.kill(os.getpid(), signal.{signal})
class Deleted:
    def __del__(self): send(); sum(range(1000))
def extra() -> None:
    {body}
    threading.Event().wait(60)
cli.COMMANDS["extra"] = extra
sys.argv = ["addnorm", "extra"]
sys.exit(run())
"""
BODIES = {
    "plain": "send()",
    "discarded": "Deleted()",
    "converted": "\\n    try: send(); sum(range(1000))\\n    except BaseException: raise EOFError",
    "inside exec": "exec('send(); sum(range(1000))')",
    "handled gracefully": "\\n    from addnorm.core.interrupts import graceful_shutdown"
    "\\n    with graceful_shutdown() as flag: send(); assert flag.requested"
    "\\n    raise KeyboardInterrupt",
}


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_with_one_line(number, body, tmp_path):
    code = SCRIPT.format(signal=number.name, body=BODIES[body].replace("\\n", "\n"))
    (tmp_path / "program.py").write_text(code)
    result = subprocess.run(
        [sys.executable, "-m", "program"],  # Python exits differently after -m and -c
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=_allow_interrupt,
    )
    assert (result.returncode, result.stderr) == (128 + number, "addnorm: interrupted\n")


def _allow_interrupt():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # background jobs start with it ignored


def long_lines(folder):
    """Return a command of some seconds for each command that takes long."""
    files = tiny_files()
    corpus, text = str(folder / "corpus"), str(folder / "text.txt")
    translator, generator, fitted = (str(folder / name) for name in ("translator", "lm", "fitted"))
    grid = ["--wiring", "pre_ln,b2t", "--depth", "1", "--lr", "1e-3", "--steps", "40"]
    return {
        "compare": ["compare", *grid, "--seeds", "1", "dim=16", "-o", str(folder / "compare")],
        "train": ["train", "translate", f"data={corpus}", "dim=16", "depth=1", "steps=300",
                  "batch_tokens=256", "-o", str(folder / "run")],
        "data": ["data", "demo", "-o", str(folder / "made"), "--force"],
        "claims": ["claims", "run", "last_gradient", "shallow_post_ln_is_as_good", "--budget",
                   "smoke", "-o", str(folder / "claims")],
        "doctor": ["doctor", "hf:bert"],
        "fit": ["fit", str(files / "table.csv"), "--target", "y", "-o", str(folder / "fit")],
        "bench": ["bench", "kernels", "--threads", "1", "--rounds", "1"],
        "translate": ["translate", translator, text],
        "generate": ["generate", generator, text, "--max-new-tokens", "60"],
        "evaluate": ["evaluate", translator],
        "predict": ["predict", fitted, str(folder / "table.csv")],
        "report": ["report", translator],
    }  # fmt: skip


def interrupt(arguments, number, delay):
    """Send a signal to the process group of a command after a delay."""
    process = subprocess.Popen(
        [sys.executable, "-m", "addnorm", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_allow_interrupt,
    )
    time.sleep(delay)  # any moment is fine: the test is that none is special
    if process.poll() is None:
        os.killpg(process.pid, number)
    out, err = process.communicate(timeout=300)
    return CommandResult(process.returncode, out, err)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A corpus, runs and an estimator that are hardly trained, and inputs for seconds of work."""
    folder = tmp_path_factory.mktemp("interrupts")
    (folder / "text.txt").write_text("".join(f"May {n % 28 + 1}, 2043\n" for n in range(3000)))
    table = (tiny_files() / "table.csv").read_text()
    (folder / "table.csv").write_text(table + "".join(table.splitlines(True)[1:]) * 2000)
    small = ["dim=16", "depth=1", "heads=2", "steps=2", "batch_tokens=256"]
    for line in (
        ["data", "demo", "-o", "corpus"],
        ["data", "files", "--text", "text.txt", "-o", "texts"],
        ["train", "translate", "data=corpus", *small, "-o", "translator"],
        ["train", "lm", "data=texts", *small, "-o", "lm"],
        ["fit", str(tiny_files() / "table.csv"), "--target", "y", "-o", "fitted", "max_epochs=1"],
    ):
        command = [sys.executable, "-m", "addnorm", *line]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return folder


@pytest.mark.slow
@pytest.mark.cases(2)
@pytest.mark.parametrize("verb", sorted(long_lines(Path("folder"))))
def test_interrupt_at_any_moment(folder, verb, case_seed):
    rng = random.Random(f"{case_seed} {verb}")
    number = rng.choice([signal.SIGINT, signal.SIGTERM])
    delay = rng.choice([rng.uniform(0.15, 2), rng.uniform(2, 25)])
    arguments = long_lines(folder)[verb]
    ended = interrupt(arguments, number, delay)
    assert ended.code in (128 + number, 0, 1), (number, delay, ended)
    check_ending(ended, (verb, f"{number.name} after {delay:.2f} s"))
    if ended.code > 2:
        assert ended.err.splitlines()[-1].startswith("addnorm: "), (number, delay, ended)
        assert ended.err.count("interrupt") == 1, (number, delay, ended)


@pytest.fixture(scope="module")
def translator(folder):
    """Folder of a run that translates; its outputs do not matter."""
    return folder / "translator"


def translate(run, lines, number=None):
    """Translate lines, and send a signal once the first of them are written."""
    command = [sys.executable, "-m", "addnorm", "translate", str(run), "--beam", "1"]
    command += ["--max-new-tokens", "4", "--chunk-lines", "8"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=_allow_interrupt,
    )  # fmt: skip
    start = b""
    if number is not None:
        process.stdin.write(lines[: len(lines) // 2])  # it cannot end: more lines are to come
        process.stdin.flush()
        start = process.stdout.readline()
        process.send_signal(number)
        lines = b""
    out, err = process.communicate(lines, timeout=300)
    return CommandResult(process.returncode, (start + out).decode(), err.decode())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_stopped_translate_has_written_whole_lines(translator, number):
    """What is written before a signal is what a complete run writes; the run stays intact."""
    lines = b"".join(b"%d %d\n" % (n, n * n) for n in range(64))
    files = {p: p.read_bytes() for p in translator.rglob("*") if p.is_file()}
    expected = translate(translator, lines)
    assert expected.code == 0 and expected.out.count("\n") == 64
    stopped = translate(translator, lines, number)
    if number == signal.SIGKILL:
        assert stopped.code == -number
    else:
        last = stopped.err.splitlines()[-1]
        assert (stopped.code, last) == (128 + number, "addnorm: interrupted")
        check_ending(stopped, ("translate", number.name))
    assert stopped.out and stopped.out.endswith("\n") and expected.out.startswith(stopped.out)
    assert {p: p.read_bytes() for p in translator.rglob("*") if p.is_file()} == files
