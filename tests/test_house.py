"""The house: who may import whom, what is fast, and that README and CONTRIBUTING tell the truth."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import addnorm
from addnorm.cli.main import COMMANDS
from addnorm.norms import registry as norms
from addnorm.wirings import registry as wirings
from tools.readme import PARTS, filled

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "addnorm"
FILES = sorted(SOURCE.rglob("*.py"))

# A package imports only what stands above it.
ORDER = (
    *("core", "kernels", "norms", "wirings", "sublayers", "stacks", "models", "data", "measure"),
    *(
        "doctor",
        "decode",
        "tasks",
        "train",
        "tabular",
        "comparison",
        "claims",
        "report",
        "interop",
        "bench",
        "cli",
    ),
)
STRANGERS = {("wirings", "sublayers"), ("sublayers", "wirings")}


def imports(path):
    """(line, module) of every absolute import; names taken from the package itself spelt out."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is a relative import; write it out"
            taken = [f"addnorm.{alias.name}" for alias in node.names]
            yield from (
                (node.lineno, name)
                for name in (taken if node.module == "addnorm" else [node.module])
            )


def package_of(module):
    """`wirings` of `addnorm.wirings.b2t`; None for what is not ours."""
    parts = module.split(".")
    return parts[1] if parts[0] == "addnorm" and len(parts) > 1 else None


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_package_imports_only_what_stands_above_it(path):
    own = path.relative_to(SOURCE).parts[0]
    if own.endswith(".py"):
        return  # the package itself and its __main__ see everything
    assert own in ORDER, f"{own} has no place in the order"
    for line, module in imports(path):
        assert module != "addnorm", f"{path}:{line} imports the whole package; name the part"
        theirs = package_of(module)
        if theirs in (None, "__version__"):
            continue
        above = ORDER.index(theirs) <= ORDER.index(own) and (own, theirs) not in STRANGERS
        assert above, f"{path}:{line}: {own} must not import {theirs}"


def test_core_imports_no_torch():
    for path in (SOURCE / "core").glob("*.py"):
        assert not [line for line, module in imports(path) if module.split(".")[0] == "torch"]


@pytest.mark.parametrize(
    "code",
    [
        "import addnorm",
        "import addnorm.core",
        "from addnorm.cli.main import main; assert main(['--help']) == 0",
        "from addnorm.cli.main import main; assert main(['show', '--help']) == 0",
        "from addnorm.cli.main import main; assert main(['--version']) == 0",
    ],
)
def test_what_must_be_quick_does_not_import_torch(code):
    assert run_python(f"{code}\nimport sys; assert 'torch' not in sys.modules")


def test_every_public_name_and_package_is_there_on_first_use():
    assert set(addnorm.__all__) == {*addnorm._HOME, "__version__"}
    for name in (*addnorm.__all__, *addnorm._PACKAGES):
        assert getattr(addnorm, name) is not None
    with pytest.raises(AttributeError, match="module 'addnorm' has no attribute 'Encodr'"):
        _ = addnorm.Encodr


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_has_more_than_400_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("registry", [norms, wirings], ids=["norms", "wirings"])
def test_every_member_lives_in_the_file_of_its_name(registry):
    for name in registry:
        assert registry.member(name).__module__ == f"addnorm.{registry.family}s.{name}"


@pytest.mark.parametrize("registry", [norms, wirings], ids=["norms", "wirings"])
def test_every_card_is_complete(registry):
    for card in registry.cards():
        assert card.title and card.formula and card.summary, card.name
        assert card.symbols, f"{card.name}: the docstring has no paragraph of symbols"
        assert card.year, f"{card.name}: the paper has no year"


def tracked():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [path for name in listed.stdout.decode().split("\0") if (path := ROOT / name).is_file()]


def test_no_file_names_the_address_of_a_package_registry():
    hosts = [rb"py" + rb"pi\.org", rb"python" + rb"hosted\.org", rb"npm" + rb"js\.(?:org|com)"]
    hosts += [rb"deb\.deb" + rb"ian\.org", rb"download\.py" + rb"torch\.org", rb"anaconda\.org"]
    found = [path for path in tracked() if re.search(rb"|".join(hosts), path.read_bytes())]
    assert found == []


# README.md and CONTRIBUTING.md


def blocks(name, mark):
    """Python blocks of a file that stand below a mark."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(rf"<!-- {mark} -->\n```python\n(.*?)```", text, flags=re.DOTALL)


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout or "ran"


def test_every_python_block_of_the_readme_is_marked():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text.count("```python") == len(blocks("README.md", "run")) >= 3


@pytest.mark.parametrize("block", range(4))
def test_the_readmes_python_runs(block):
    exec(compile(blocks("README.md", "run")[block], "README.md", "exec"), {})


def test_the_generated_parts_of_the_readme_are_those_of_the_registry():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {name for name in PARTS if f"<!-- generated: {name} -->" in text} == set(PARTS)
    assert text == filled(text), "run `make docs`"


def test_the_readmes_pictures_are_there():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in re.findall(r'(?:src|srcset)="([^"]+)"', text):
        assert (ROOT / name).is_file(), name


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LEDGER.md"])
def test_the_commands_that_the_texts_name_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    assert set(re.findall(r"`addnorm ([a-z]+)", text)) <= set(COMMANDS)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"(?:`|^)make ([a-z]+)", text, flags=re.MULTILINE)) <= set(targets)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_the_files_that_the_texts_name_exist(name):
    text = (ROOT / name).read_text(encoding="utf-8").replace("scaled_sum", "b2t")
    for path in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert any((folder / path).exists() for folder in (ROOT, SOURCE)), path


def test_the_wiring_of_contributing_works_as_it_stands(tmp_path):
    """The file, its import line and its twin, in a process where nobody knew the wiring before."""
    (wiring,) = blocks("CONTRIBUTING.md", "file: src/addnorm/wirings/scaled_sum.py")
    (line,) = blocks("CONTRIBUTING.md", "line: src/addnorm/wirings/__init__.py")
    (twin,) = blocks("CONTRIBUTING.md", "twin: tests/wirings/reference.py")
    (tmp_path / "scaled_sum.py").write_text(wiring, encoding="utf-8")
    run_python(f"""
import addnorm.wirings
assert "scaled_sum" not in addnorm.wirings.registry
addnorm.wirings.__path__.append({str(tmp_path)!r})
{line}
{twin}
import torch
from torch import nn
from addnorm.cli.main import main
torch.manual_seed(0)
mixers = [nn.Sequential(nn.Linear(10, 10), nn.Tanh()) for _ in range(6)]
stack = addnorm.Stack(mixers, dim=10, wiring="scaled_sum", kinds=("self", "ffn"))
x = torch.randn(3, 7, 10)
torch.testing.assert_close(stack(x), scaled_sum(x, mixers, stack.wiring, 2))
for one, other in addnorm.wirings.registry.card("scaled_sum").reduces_to:
    torch.testing.assert_close(
        addnorm.Stack(mixers, dim=10, wiring=one)(x), addnorm.Stack(mixers, dim=10, wiring=other)(x)
    )
assert main(["show", "scaled_sum"]) == 0
""")


# Makefile, .ci/run and the pins


def test_make_says_what_python_it_wants(tmp_path):
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.1\nexit 1\n')
    old.chmod(0o755)
    for python, got in ((old, "is Python 3.9.1"), ("no-such-python", "no 'no-such-python' here")):
        done = subprocess.run(
            ["make", "setup", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode != 0
        assert got in done.stderr
        assert "wanted Python 3.11 or newer; try make PYTHON=" in done.stderr


def test_make_help_names_every_target():
    said = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    for target in ("setup", "demo", "test", "check", "fix", "bench", "docs", "clean"):
        assert f"make {target} " in said


def test_ci_runs_check_and_test():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^make check\nmake test$", script.read_text(), flags=re.MULTILINE)


def test_every_pin_is_exact_and_every_dependency_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    assert "torch==2.13.0" in pins
    names = {plain(pin.split("==")[0]) for pin in pins}
    project = (ROOT / "pyproject.toml").read_text()
    listed = re.findall(
        r"^(?:dependencies|tabular|cluster|interop|dev) = \[(.*?)\]", project, re.M | re.S
    )
    wanted = {plain(name) for part in listed for name in re.findall(r'"([\w.-]+)', part)}
    assert len(listed) == 5
    assert wanted <= names


def plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()
