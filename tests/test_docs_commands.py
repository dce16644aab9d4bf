"""Commands in the documentation: their names, sub-commands and options exist."""

import re
import shlex

import pytest
from typer import Typer
from typer.core import TyperGroup
from typer.main import get_command

from addnorm.cli.main import COMMANDS
from tests.source_tree import ROOT
from tools.docs import command_page

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/start.md")),
    *sorted((ROOT / "docs").glob("guides/*.md")),
    *sorted((ROOT / "docs").glob("explanation/*.md")),
    *sorted((ROOT / "docs").glob("architecture/*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]
GLOBAL_OPTIONS = {"--plugin", "--help", "-h", "--version"}


def make_command(verb):
    command = COMMANDS[verb]
    if not isinstance(command, Typer):
        app = Typer(add_completion=False)
        app.command(verb)(command)
        command = app
    return get_command(command)


def find_commands(text):
    """Return the command lines of shell blocks and of code in backticks."""
    text = re.sub(r"^# ?", "", text, flags=re.MULTILINE)  # cells of examples
    blocks = re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    lines += [" ".join(code.split()) for code in re.findall(r"`(addnorm [^`]+)`", text)]
    commands = []
    for line in lines:
        for part in re.split(r"\||&&|;", re.sub(r"(^|\s)#.*", "", line)):
            if part.strip().startswith("addnorm "):
                commands.append(part.strip())
    return commands


def find_unknown_options(line):
    """Return the options of a command line that the command does not have."""
    _, *words = shlex.split(line)
    while words and words[0] in GLOBAL_OPTIONS:
        words = words[2 if words[0] == "--plugin" else 1 :]
    if not words or words[0] not in COMMANDS:
        return words[:1] if words and re.fullmatch(r"[a-z][a-z-]*", words[0]) else []
    command = make_command(words[0])
    rest = words[1:]
    if isinstance(command, TyperGroup):
        if not rest or not re.fullmatch(r"[a-z][a-z-]*", rest[0]):
            return []
        if rest[0] not in command.commands:
            return rest[:1]
        command, rest = command.commands[rest[0]], rest[1:]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    given = [word.partition("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)]
    return [name for name in given if name not in known | GLOBAL_OPTIONS]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_options_of_commands_exist(path):
    for line in find_commands(path.read_text(encoding="utf-8")):
        assert find_unknown_options(line) == [], line


def test_page_of_commands_has_the_commands_of_groups():
    headings = re.findall(r"^## `addnorm ([\w -]+)`$", command_page(), flags=re.MULTILINE)
    assert {"data demo", "data files", "claims run", "claims list"} <= set(headings)
    assert "--install-completion" not in command_page()


def test_unknown_options_are_found():
    assert find_unknown_options("addnorm compare --wiring b2t --no-such 1 -o out") == ["--no-such"]
    assert find_unknown_options("addnorm data nothing --text a") == ["nothing"]
    assert find_unknown_options("addnorm compair --wiring b2t") == ["compair"]
    assert find_unknown_options("addnorm list wirings --year 2025") == []
