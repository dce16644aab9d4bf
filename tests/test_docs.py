"""README, CONTRIBUTING and docs: their code runs, and what they name exists."""

import os
import re
import subprocess
import sys

import pytest

from addnorm.cli.index import INDEX_FILE
from addnorm.cli.main import COMMANDS
from addnorm.doctor.diagnose import RULES
from tests.source_tree import ROOT, SOURCE
from tools.docs import generate_index, generate_pages
from tools.pages.readme import README_PARTS, fill_parts

GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
ARCHITECTURE = sorted((ROOT / "docs" / "architecture").glob("*.md"))
EXPLANATION = [ROOT / "docs" / "start.md", *sorted((ROOT / "docs" / "explanation").glob("*.md"))]
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *GUIDES, *EXPLANATION, *ARCHITECTURE]


def relative_name(path):
    return path.relative_to(ROOT).as_posix()


def python_blocks(text, mark):
    """Return the Python blocks that stand below an HTML comment with this mark."""
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


def test_guide_to_the_doctor_lists_every_rule():
    text = (ROOT / "docs" / "guides" / "doctor.md").read_text(encoding="utf-8")
    assert [name for name in RULES if f"`{name}`" not in text] == []


RUNNABLE = [
    pytest.param(block, id=f"{relative_name(path)}-{number}")
    for path in (ROOT / "README.md", *GUIDES, *EXPLANATION)
    for number, block in enumerate(python_blocks(path.read_text(encoding="utf-8"), "run"))
]


@pytest.mark.parametrize("block", RUNNABLE)
def test_python_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs", "exec"), {"__name__": "__docs__"})


@pytest.mark.parametrize("path", [ROOT / "README.md", *GUIDES, *EXPLANATION], ids=relative_name)
def test_every_python_block_is_marked(path):
    """A block is run, or it says why it is not: `<!-- not run: reason -->`."""
    text = path.read_text(encoding="utf-8")
    unrun = len(re.findall(r"<!-- not run: [^>]+ -->\n```python\n", text))
    assert text.count("```python") == len(python_blocks(text, "run")) + unrun


def test_generated_parts_of_the_readme_are_up_to_date():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    present = set(re.findall(r"<!-- generated: (\w+) -->", text))
    assert present == set(README_PARTS)
    assert text == fill_parts(text), "run `make docs`"


def test_readme_has_1200_to_1500_words():
    """Outside of code blocks and comments."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    words = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL).split()
    assert 1200 <= len(words) <= 1500


@pytest.mark.parametrize("path", EXPLANATION, ids=relative_name)
def test_intervals_in_explanations_are_those_of_the_claims(path):
    results = (ROOT / "docs" / "claims" / "claims.md").read_text(encoding="utf-8")
    for interval in re.findall(r"-?\d[\d.]* ± \d[\d.]*\d", path.read_text(encoding="utf-8")):
        assert interval in results, interval


def test_index_of_members_is_up_to_date():
    """`make docs` writes it; commands do not use outdated sections, but are slow without them."""
    assert INDEX_FILE.read_text(encoding="utf-8") == generate_index()


def test_generated_pages_are_up_to_date():
    pages = generate_pages()
    folder = ROOT / "docs" / "catalogue"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")} == set(pages)
    stale = [name for name, page in pages.items() if (folder / name).read_text("utf-8") != page]
    assert stale == [], "run `make docs`"


@pytest.mark.parametrize("path", TEXTS, ids=relative_name)
def test_links_and_pictures_exist(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r'(?:src|srcset)="([^"]+)"', text) + re.findall(r"\]\(([^)#\s]+)", text)
    for target in targets:
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (path.parent / target).exists(), target


CHECKED = [*TEXTS, ROOT / "CHANGELOG.md"]


@pytest.mark.parametrize("path", CHECKED, ids=relative_name)
def test_commands_named_in_the_text_exist(path):
    text = path.read_text(encoding="utf-8")
    assert set(re.findall(r"`addnorm ([a-z]+(?:-[a-z]+)*)", text)) <= set(COMMANDS)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert set(re.findall(r"(?:`|^)make ([a-z]+)", text, flags=re.MULTILINE)) <= set(targets)


@pytest.mark.parametrize("path", TEXTS, ids=relative_name)
def test_source_files_named_in_the_text_exist(path):
    text = path.read_text(encoding="utf-8").replace("scaled_sum", "b2t")
    for name in re.findall(r"`((?:\w+/)+\w+\.py)`", text):
        assert any((folder / name).exists() for folder in (ROOT, SOURCE)), name


def test_the_wiring_of_contributing_works(tmp_path):
    """The file, its import line and its reference, in a process that has no such wiring yet."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (wiring,) = python_blocks(text, "file: src/addnorm/wirings/scaled_sum.py")
    (line,) = python_blocks(text, "line: src/addnorm/wirings/__init__.py")
    (reference,) = python_blocks(text, "reference: tests/wirings/reference.py")
    (tmp_path / "scaled_sum.py").write_text(wiring, encoding="utf-8")
    run_python(f"""
import addnorm.wirings
assert "scaled_sum" not in addnorm.wirings.registry
addnorm.wirings.__path__.append({str(tmp_path)!r})
{line}
{reference}
import torch
from torch import nn
from addnorm.cli.main import main
torch.manual_seed(0)
sublayers = [nn.Sequential(nn.Linear(10, 10), nn.Tanh()) for _ in range(6)]
stack = addnorm.Stack(sublayers, dim=10, wiring="scaled_sum", kinds=("self", "ffn"))
x = torch.randn(3, 7, 10)
torch.testing.assert_close(stack(x), scaled_sum(x, sublayers, stack.wiring, 2))
for one, other in addnorm.wirings.registry.card("scaled_sum").reduces_to:
    torch.testing.assert_close(
        addnorm.Stack(sublayers, dim=10, wiring=one)(x),
        addnorm.Stack(sublayers, dim=10, wiring=other)(x),
    )
assert main(["show", "scaled_sum"]) == 0
""")
