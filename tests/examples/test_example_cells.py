"""The examples of the site: every cell runs, and prints what the pages show."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.source_tree import ROOT
from tools.docs_site.example_cells import list_examples, read_cells, read_outputs, split_cells
from tools.docs_site.examples import cells_page, make_notebook

NEEDS = {
    "export_translator": ("ctranslate2",),
    "table_pipeline": ("sklearn", "pandas"),
    "trainer_with_monitor": ("transformers", "accelerate"),
}
QUICK = {"find_a_bug", "own_wiring"}
EXAMPLES = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
    for name in list_examples()
]


def test_there_are_seven_examples():
    assert list_examples() == [
        *("compare_own_text", "export_translator", "find_a_bug", "gpt_with_stack", "own_wiring"),
        *("table_pipeline", "trainer_with_monitor"),
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_prints_what_its_page_shows(name):
    """In a process of its own: examples register names and start processes."""
    for package in NEEDS.get(name, ()):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    code = (
        "import json; from tools.docs_site.example_cells import run_cells; "
        f"print(json.dumps(run_cells({name!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == read_outputs()[name]


@pytest.mark.parametrize("name", list_examples())
def test_every_code_cell_has_a_stored_output(name):
    assert len(read_outputs()[name]) == sum(cell.is_code for cell in read_cells(name))
    assert any(text.strip() for text in read_outputs()[name])


@pytest.mark.parametrize("name", list_examples())
def test_notebook_and_page_have_the_code_and_the_outputs_of_the_script(name):
    cells = read_cells(name)
    code = [cell for cell in cells if cell.is_code]
    notebook = make_notebook(cells)
    own = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert ["".join(cell["source"]) for cell in own] == [cell.source for cell in code]
    printed = ["".join("".join(each["text"]) for each in cell["outputs"]) for cell in own]
    assert printed == [cell.output for cell in code]
    assert len({cell["id"] for cell in notebook["cells"]}) == len(cells)
    page = cells_page(name)
    assert page.startswith("# ")
    for cell in code:
        assert cell.source in page
        assert cell.output.rstrip() in page


def test_split_cells_joins_to_the_script():
    script = "# %% [markdown]\n# # A title\n#\n# Two\n# lines.\n\n# %%\nx = 1\n\n\n# %%\nprint(x)\n"
    markdown, *code = split_cells(script)
    assert markdown.source == "# A title\n\nTwo\nlines."
    assert [cell.source for cell in code] == ["x = 1", "print(x)"]
