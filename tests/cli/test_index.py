"""The index from which commands list members without importing torch."""

import json
import subprocess
import sys

import pytest

from addnorm.cli import index
from addnorm.cli.registries import FAMILIES, find_facts, get_registry, read_cards

LIGHT_COMMANDS = [
    ["list"],
    ["list", "--json"],
    *(["list", family] for family in FAMILIES),
    ["list", "wirings", "--json"],
    ["show", "b2t"],
    ["show", "none"],
    ["show", "gpt2", "--json"],
    ["claims", "list"],
    ["claims", "list", "--json"],
    ["train", "lm", "--list-keys"],
    ["compare", "--help"],
    ["--version"],
]


def run_python(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_commands_that_only_list_do_not_import_torch():
    code = f"""
import contextlib, io, json, sys
from addnorm.cli.main import main
outputs = []
for arguments in {LIGHT_COMMANDS!r}:
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = main(arguments)
    heavy = sorted({{"torch", "numpy", "transformers"}} & sys.modules.keys())
    outputs.append([arguments, code, bool(output.getvalue()), heavy])
print(json.dumps(outputs))
"""
    outputs = json.loads(run_python(code))
    assert outputs == [[arguments, 0, True, []] for arguments in LIGHT_COMMANDS]


SLOW_PACKAGES = {
    *("torch.distributed.tensor", "torch._dynamo", "sympy", "transformers", "peft", "ray"),
    *("pandas", "sklearn", "altair", "scipy.optimize", "scipy.stats"),
}


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["compare", "--demo", "--dry-run"], 0),
        (["translate", "no_such_run"], 2),
        (["evaluate", "no_such_run"], 2),
        (["doctor", "no_such_file.py:build"], 2),
    ],
)
def test_commands_import_only_what_they_need(arguments, code):
    """Each of these packages takes as long as half of torch."""
    program = f"""
import contextlib, io, json, sys
from addnorm.cli.main import main
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    code = main({arguments!r})
print(json.dumps([code, sorted({SLOW_PACKAGES!r} & sys.modules.keys())]))
"""
    assert json.loads(run_python(program)) == [code, []]


def test_missing_folder_is_refused_before_torch_is_imported(tmp_path):
    program = f"""
import contextlib, io, sys
from addnorm.cli.main import main
with contextlib.redirect_stderr(io.StringIO()) as errors:
    code = main(["report", {str(tmp_path / "none")!r}])
print(code, "torch" in sys.modules, "which does not exist" in errors.getvalue())
"""
    assert run_python(program).split() == ["2", "False", "True"]


def test_index_and_registries_give_the_same_output(addnorm):
    """In this process the registries are loaded, in the other one they are not."""
    commands = [["list", "norms"], ["show", "deepnorm"], ["show", "gpt2"], ["claims", "list"]]
    code = "import sys, json; from addnorm.cli.main import main; main(json.loads(sys.argv[1]))"
    get_registry("norms")
    for arguments in commands:
        other = subprocess.run(
            [sys.executable, "-c", code, json.dumps(arguments)], capture_output=True, text=True
        )
        assert other.stdout == addnorm(*arguments).out


def test_every_family_has_a_section():
    assert set(FAMILIES) <= index.SOURCES.keys()


def test_section_of_changed_sources_is_not_used(monkeypatch):
    monkeypatch.setattr("addnorm.core.registry.REGISTRIES", [])
    assert [m["card"]["name"] for m in index.read_section("norms")] == list(get_registry("norms"))
    monkeypatch.setattr(index, "hash_sources", lambda name: "changed")
    assert index.read_section("norms") is None
    assert read_cards("norms") == [card.to_dict() for card in get_registry("norms").cards()]


def test_index_is_not_used_where_plugins_may_have_registered(monkeypatch):
    assert get_registry("norms")
    assert index.read_section("norms") is None  # this process has registries
    monkeypatch.setattr("addnorm.core.registry.REGISTRIES", [])
    assert index.read_section("norms") is not None
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: ["plugin"])
    assert index.read_section("norms") is None


@pytest.mark.parametrize("text", ["", "[]", "{", "{}"])
def test_damaged_or_missing_index_is_not_used(monkeypatch, tmp_path, text):
    (tmp_path / "index.json").write_text(text)
    monkeypatch.setattr(index, "INDEX_FILE", tmp_path / "index.json")
    index._read_index.cache_clear()
    try:
        assert index.read_section("norms") is None
    finally:
        index._read_index.cache_clear()


def test_hash_depends_on_names_and_content(monkeypatch, tmp_path):
    monkeypatch.setattr(index, "PACKAGE", tmp_path)
    (tmp_path / "norms").mkdir()
    digests = set()
    for name, text in [("a.py", "x"), ("a.py", "y"), ("b.py", "y")]:
        (tmp_path / "norms" / name).write_text(text)
        index.hash_sources.cache_clear()
        digests.add(index.hash_sources("norms"))
    index.hash_sources.cache_clear()
    assert len(digests) == 3


def test_unknown_name_gets_a_suggestion_from_the_index():
    code = "import sys; from addnorm.cli.main import main; print(main(['show', 'bt2']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "2\n"
    assert "unknown name 'bt2'; did you mean 'b2t'?" in result.stderr


def test_call_with_options_is_read_from_the_registry():
    facts, *_ = find_facts("rms(eps=1e-3)")
    assert facts.values["eps"] == 1e-3
    assert facts.call == "rms(eps=0.001)"
