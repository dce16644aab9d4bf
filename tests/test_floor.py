"""The lowest versions of Python and torch: what is promised, and what these versions lack.

Most tests run with pinned versions, so these guard what only an older torch would notice.
"""

import ast
import re

import yaml

from tests.source_tree import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
MATRIX = WORKFLOW["jobs"]["versions"]["strategy"]["matrix"]["include"]


def parse_sources():
    for path in sorted((ROOT / "src").rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_workflow_runs_every_promised_version_of_python():
    promised = re.findall(r"Programming Language :: Python :: (3\.\d+)", PROJECT)
    assert [job["python"] for job in MATRIX] == promised
    assert f'requires-python = ">={promised[0]}"' in PROJECT


def test_workflow_runs_the_lowest_torch():
    (floor,) = re.findall(r'"torch>=(\d+\.\d+),<3"', PROJECT)
    assert MATRIX[0]["torch"] == f"=={floor}.0"
    for page in ("README.md", "docs/start.md", "docs/architecture/releases.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        assert f"{floor} or newer" in text, page


def find_inferred_lists(tree):
    """Yield operators whose schema torch would have to infer from a built-in list."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for call in function.decorator_list:
            if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith("custom_op"):
                continue
            has_schema = any(keyword.arg == "schema" for keyword in call.keywords)
            if not has_schema and "list[" in ast.unparse(function.args):
                yield function.name


def test_operators_with_lists_have_a_written_schema():
    """torch before 2.7 infers none from list[...], and then the package cannot be imported."""
    found = [
        (path.name, name) for path, tree in parse_sources() for name in find_inferred_lists(tree)
    ]
    assert found == []


def test_operator_without_schema_is_found():
    tree = ast.parse("@torch.library.custom_op('a::b', mutates_args=())\ndef f(x: list[bool]): ...")
    assert list(find_inferred_lists(tree)) == ["f"]


def test_default_device_is_asked_in_one_place():
    """torch.get_default_device of 2.6 does not see `with torch.device("meta")`."""
    found = [
        path.name
        for path, tree in parse_sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "get_default_device"
    ]
    assert found == []
