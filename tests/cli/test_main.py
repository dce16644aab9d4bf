"""Console script: help, exit codes, output errors."""

import errno
import os
import pty
import re
import resource
import signal
import subprocess
import sys

import pytest

import addnorm as package
from addnorm.cli import main as cli
from addnorm.core.errors import UserError


@pytest.fixture
def command(monkeypatch):
    """Register a command named `extra`."""

    def add(function):
        monkeypatch.setitem(cli.COMMANDS, "extra", function)

    return add


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_help_lists_every_command(addnorm, arguments):
    result = addnorm(*arguments)
    assert (result.code, result.err) == (0, "")
    assert all(f"\n  {verb} " in result.out for verb in cli.COMMANDS)


@pytest.mark.parametrize("verb", cli.COMMANDS)
def test_every_command_has_help(addnorm, verb):
    result = addnorm(verb, "--help")
    assert (result.code, result.err) == (0, "")
    assert f"Usage: addnorm {verb}" in result.out
    assert "[[" not in result.out and "...]..." not in result.out  # typer adds brackets and dots
    assert "..." not in addnorm("--help").out.split("Commands:")[1], "too long for one line"


def test_version(addnorm):
    assert addnorm("--version").out == f"addnorm {package.__version__}\n"


def test_module_can_be_executed(program):
    assert program("--version").out == f"addnorm {package.__version__}\n"


def test_help_is_fast(program):
    """Help takes less than half a second of CPU time in the best of three attempts."""

    def cpu_seconds():
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    times = []
    for _ in range(3):
        before = cpu_seconds()
        assert program("--help").code == 0
        times.append(cpu_seconds() - before)
    assert min(times) < 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["lst"], "No such command 'lst'. Did you mean 'list'?; try 'addnorm --help'"),
        (["--bad"], "No such option: --bad; try 'addnorm --help'"),
        (["lis\nt"], "No such command"),
        (["--version=3"], "--version"),
    ],
)
def test_usage_error_prints_one_line_and_exits_with_2(addnorm, arguments, message):
    result = addnorm(*arguments)
    assert (result.code, result.out) == (2, "")
    assert message in result.err
    assert result.err.startswith("addnorm: ")
    assert result.err.count("\n") == 1


def test_user_error_prints_one_line_and_exits_with_2(addnorm, command):
    def extra() -> None:
        raise UserError("expected this;\n  got that")

    command(extra)
    result = addnorm("extra")
    assert (result.code, result.err) == (2, "addnorm: expected this; got that\n")


def test_os_error_prints_one_line_and_exits_with_2(addnorm, command, tmp_path):
    command(lambda: (tmp_path / "nowhere").read_text())
    result = addnorm("extra")
    assert result.code == 2
    assert result.err == f"addnorm: {tmp_path / 'nowhere'}: No such file or directory\n"


def test_exit_code_of_command_is_returned(addnorm, command):
    def extra() -> None:
        import typer

        raise typer.Exit(1)

    command(extra)
    assert addnorm("extra").code == 1


def test_other_errors_propagate(addnorm, command):
    def extra() -> None:
        raise ValueError("a bug")

    command(extra)
    with pytest.raises(ValueError, match="a bug"):
        addnorm("extra")


def test_out_of_memory_is_one_line(addnorm, command):
    def extra() -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 4 bytes")

    command(extra)
    result = addnorm("extra")
    assert result.code == 2
    assert result.err.startswith("addnorm: out of memory") and result.err.count("\n") == 1


def test_interrupt_exits_with_130_without_traceback():
    code = (
        "import sys, time; from addnorm.cli import main as cli\n"
        "def wait() -> None: print('ready', flush=True); time.sleep(60)\n"
        "cli.COMMANDS['wait'] = wait\n"
        "sys.exit(cli.main(['wait']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Background jobs are started with SIGINT ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err == "addnorm: interrupted\n"


def test_closed_pipe_is_not_an_error(program):
    reading, writing = os.pipe()
    os.close(reading)
    result = program("list", "--help", stdout=writing)
    os.close(writing)
    assert (result.code, result.err) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_full_disk_prints_one_line_and_exits_with_2(program, arguments):
    with open("/dev/full", "w") as full:
        result = program(*arguments, stdout=full)
    assert result.code == 2
    assert result.err == "addnorm: standard output: No space left on device\n"


def test_full_disk_names_the_file(addnorm, command, tmp_path, monkeypatch):
    def full(self, *_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def extra() -> None:
        from addnorm.core.files import write_json

        write_json(tmp_path / "result.json", {})

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    command(extra)
    result = addnorm("extra")
    assert result.code == 2
    assert result.err == f"addnorm: {tmp_path / 'result.json'}: No space left on device\n"


def test_closed_stdout_prints_one_line_and_exits_with_2():
    result = subprocess.run(
        [sys.executable, "-m", "addnorm", "--version"],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.close(1),
    )
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "standard output is closed" in result.stderr


def test_unencodable_characters_are_escaped(program):
    """A title with an accent does not fail on an ASCII terminal."""
    code = (
        "import sys; from addnorm.cli import main as cli\n"
        "def say() -> None: print('größer')\n"
        "cli.COMMANDS['say'] = say; sys.exit(cli.main(['say']))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert (result.returncode, result.stdout) == (0, b"gr\\xf6\\xdfer\n")


def on_a_terminal(*arguments, **env):
    """Return the output of a command on a pseudo-terminal."""
    reader, writer = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "addnorm", *arguments],
        stdout=writer,
        stderr=writer,
        stdin=subprocess.DEVNULL,
        env={key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        | {"TERM": "xterm-256color", "COLUMNS": "60"}
        | env,
    )
    os.close(writer)
    output = b""
    try:
        while piece := os.read(reader, 65536):
            output += piece
    except OSError:
        pass  # Linux signals the closed end this way
    os.close(reader)
    assert process.wait() == 0
    return output.decode()


@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["show", "--help"]])
def test_help_fits_a_narrow_terminal(arguments):
    output = on_a_terminal(*arguments, COLUMNS="40")
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in output.splitlines()) <= 40


def test_color_only_on_a_terminal(program):
    assert "\x1b[1;36mFormula" in on_a_terminal("show", "rms")
    assert "\x1b" not in program("--help").out


def test_no_color_is_respected():
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]", on_a_terminal("--help", NO_COLOR="1"))
