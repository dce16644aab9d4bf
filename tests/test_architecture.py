"""The rules of the source tree: package order, import cycles, sizes, docstrings.

`docs/architecture/overview.md` explains them.
"""

import ast
import os
import re
import subprocess
import sys
from collections import defaultdict

import pytest
from hypothesis import settings

import addnorm
from addnorm.norms import registry as norms
from addnorm.wirings import registry as wirings
from tests.source_tree import (
    FILES,
    MODULES,
    ROOT,
    SOURCE,
    find_cycles,
    find_dynamic_imports,
    find_imports,
    find_module_strings,
    module_name,
)

# A package imports only itself and the packages before it.
PACKAGE_ORDER = (
    *("core", "plugins", "kernels", "norms", "wirings", "sublayers", "scales", "stacks", "models"),
    *("data", "measure", "doctor", "monitor", "transfer", "decode", "tasks", "train", "planning"),
    *("tabular", "comparison", "claims", "report", "interop", "exporters", "rewiring", "bench"),
    *("selftest", "cli"),
)
FORWARDED = {
    "models/base.py": "from addnorm import rewire",
    "interop/hf_model.py": "from addnorm import rewire",
}
"""Methods that pass their model on to a public function of a later package, by file."""
INDEPENDENT = {("wirings", "sublayers"), ("sublayers", "wirings")}
"""Pairs (importer, imported) that the order would allow and the design forbids."""

MAX_LINES = 400
MAX_MODULES = 15
CATALOGUES = {
    *("claims/catalogue", "cli/commands", "doctor/rules", "measure/metrics", "norms", "wirings"),
}
"""Folders with one file per registered member; they grow with the catalogue."""
DYNAMIC_IMPORTERS = {
    "__init__.py": "public names are imported on first use",
    "bench/decode.py": "peers are optional and untyped",
    "bench/doctor.py": "peers are optional and untyped",
    "bench/monitor.py": "peers are optional and untyped",
    "bench/tabular.py": "peers are optional and untyped",
    "bench/train.py": "peers are optional and untyped",
    "cli/__init__.py": "an empty `exec` resets the interpreter after an interrupted one",
    "data/readers/tables.py": "pyarrow is optional",
    "exporters/__init__.py": "names are imported on first use: transformers is slow to import",
    "exporters/ctranslate2/library.py": "ctranslate2 is optional and untyped",
    "monitor/sinks.py": "packages of sinks are optional and untyped",
    "doctor/loading/targets.py": "the user names the module of a model",
    "plugins/loading.py": "the user names the module of a plugin",
    "plugins/plugin.py": "a class of a notebook is unpickled",
}
"""Files that may import a module by name, and why."""
MODULE_STRINGS = {
    # Run by `python -m`, in another process.
    "comparison/engines/torchrun.py": {"addnorm.comparison.engines.cell_process"},
    "monitor/site_meter.py": {"addnorm.monitor"},  # a logger
    "sublayers/cache.py": {"addnorm.KVCache"},  # the name of the type in exported programs
    "core/registry.py": {"addnorm.plugins"},  # a group of entry points
    "plugins/plugin.py": {"addnorm."},  # prefix of the members of the package
    "comparison/engines/local.py": {"addnorm.comparison.tasks.table_training"},  # fork server
    "doctor/matching.py": {"addnorm.doctor"},  # a data file of the package
    "report/html/page.py": {"addnorm.report"},  # templates of the package
}
"""Strings that may name a module of the package, by file; `addnorm/__init__.py` may name all."""


def relative_name(path):
    return path.relative_to(SOURCE).as_posix()


def package_of(module):
    """Return `wirings` for `addnorm.wirings.b2t` and None for a module of another project."""
    parts = module.split(".")
    return parts[1] if parts[0] == "addnorm" and len(parts) > 1 else None


@pytest.mark.parametrize("path", FILES, ids=relative_name)
def test_package_imports_only_earlier_packages(path):
    importer = path.relative_to(SOURCE).parts[0]
    if importer.endswith(".py"):
        return  # addnorm/__init__.py and __main__.py see everything
    assert importer in PACKAGE_ORDER, f"add {importer} to PACKAGE_ORDER"
    for line, module, _ in find_imports(path):
        imported = package_of(module)
        if module == "addnorm":
            text = path.read_text(encoding="utf-8").splitlines()[line - 1].strip()
            is_forwarded = text == FORWARDED.get(relative_name(path))
            assert "import __version__" in text or is_forwarded
        elif imported is not None:
            allowed = PACKAGE_ORDER.index(imported) <= PACKAGE_ORDER.index(importer)
            allowed = allowed and (importer, imported) not in INDEPENDENT
            assert allowed, f"{path}:{line}: {importer} must not import {imported}"


def import_graph():
    graph = defaultdict(set)
    for name, path in MODULES.items():
        for _, imported, only_for_types in find_imports(path):
            if imported in MODULES and imported not in (name, "addnorm") and not only_for_types:
                graph[name].add(imported)
    return graph


def test_modules_have_no_import_cycle():
    """Imports inside functions count: a lazy import hides a cycle, it does not remove it."""
    assert find_cycles(import_graph()) == []


def test_subfolders_of_a_package_have_no_import_cycle():
    folders = defaultdict(set)
    for name, imports in import_graph().items():
        for imported in imports:
            if package_of(name) == package_of(imported) and folder_of(name) != folder_of(imported):
                folders[folder_of(name)].add(folder_of(imported))
    assert find_cycles(folders) == []


def folder_of(module):
    """Return the folder of a module at any depth, or the module itself at the top of a package."""
    folder = relative_name(MODULES[module].parent)
    return folder if "/" in folder else module


def test_folder_of_sees_every_depth():
    assert folder_of("addnorm.doctor.rules.leaks") == "doctor/rules"
    assert folder_of("addnorm.doctor.rules") == "doctor/rules"
    assert folder_of("addnorm.doctor.rules.probing.perturb") == "doctor/rules/probing"
    assert folder_of("addnorm.doctor.report") == "addnorm.doctor.report"


def test_find_cycles_sees_a_cycle_behind_another_module():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}
    assert find_cycles(graph) == [["b", "c"]]


@pytest.mark.parametrize("path", FILES, ids=relative_name)
def test_no_module_of_the_package_is_imported_by_string(path):
    """A string hides an import from the two tests above."""
    source, name = path.read_text(encoding="utf-8"), relative_name(path)
    if name not in DYNAMIC_IMPORTERS:
        assert find_dynamic_imports(source) == set()
    if name != "__init__.py":
        assert find_module_strings(source) <= MODULE_STRINGS.get(name, set())


@pytest.mark.parametrize(
    "planted",
    [
        'THEME = "addnorm.report.theme"\nimport_module(THEME)',
        "importlib.import_module(module)",
        "from importlib import import_module as load",
        'getattr(importlib, "import_module")(module)',
        'pkgutil.resolve_name("addnorm.report.theme")',
        "__import__(module)",
        'exec("import addnorm.report.theme")',
        'sys.modules["addnorm.report"]',
        'load(f"addnorm.{name}")',
        'load("addnorm." + name)',
    ],
)
def test_imports_by_string_are_seen(planted):
    assert find_dynamic_imports(planted) | find_module_strings(planted)


def test_docstrings_and_methods_are_not_imports_by_string():
    source = '"""addnorm.report.theme"""\nmodel.eval()\nimport importlib.util\n'
    assert find_dynamic_imports(source) | find_module_strings(source) == set()


@pytest.mark.parametrize(
    ("condition", "only_for_types"),
    [
        ("TYPE_CHECKING", True),
        ("typing.TYPE_CHECKING", True),
        ("not TYPE_CHECKING", False),
        ("TYPE_CHECKING or True", False),
    ],
)
def test_only_imports_that_never_run_are_left_out_of_the_graph(tmp_path, condition, only_for_types):
    path = tmp_path / "module.py"
    path.write_text(f"if {condition}:\n    import addnorm.report.theme\nelse:\n    import json\n")
    assert [found[1:] for found in find_imports(path)] == [
        ("addnorm.report.theme", only_for_types),
        ("json", False),
    ]


def test_core_does_not_import_torch():
    for path in (SOURCE / "core").glob("*.py"):
        assert not [name for _, name, _ in find_imports(path) if name.split(".")[0] == "torch"]


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
def test_import_and_help_do_not_load_torch_or_yaml(code):
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            f"{code}\nimport sys; assert not {{'torch', 'yaml'}} & sys.modules.keys()",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_and_package_can_be_imported():
    assert set(addnorm.__all__) == {*addnorm._HOME, "__version__"}
    for name in (*addnorm.__all__, *addnorm._PACKAGES):
        assert getattr(addnorm, name) is not None
    with pytest.raises(AttributeError, match="module 'addnorm' has no attribute 'Encodr'"):
        _ = addnorm.Encodr


@pytest.mark.parametrize("path", FILES, ids=relative_name)
def test_file_length(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_number_of_modules_per_folder():
    folders = {path.parent for path in FILES}
    counts = {
        relative_name(folder): sum(path.name != "__init__.py" for path in folder.glob("*.py"))
        for folder in folders
    }
    crowded = {name: n for name, n in counts.items() if n > MAX_MODULES and name not in CATALOGUES}
    assert crowded == {}


@pytest.mark.parametrize("path", FILES, ids=relative_name)
def test_every_module_has_a_docstring(path):
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring and not docstring.startswith("TODO")


def class_table():
    """Map each class name to (its node, the names of its bases)."""
    table = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
                table[node.name] = (node, bases)
    return table


CLASSES = class_table()
FOREIGN_METHODS = {
    *("forward", "setup_context", "backward", "extra_repr", "get_extra_state", "set_extra_state"),
    *("fit", "predict", "predict_proba", "score", "transform", "inverse_transform", "step"),
    *("state_dict", "load_state_dict", "vmap", "jvp", "train", "reset_parameters"),
}
"""Methods whose meaning torch or scikit-learn define."""


def is_declared_by_a_base(name, bases):
    return any(
        base in CLASSES
        and (
            any(getattr(member, "name", None) == name for member in CLASSES[base][0].body)
            or is_declared_by_a_base(name, CLASSES[base][1])
        )
        for base in bases
    )


@pytest.mark.parametrize("path", FILES, ids=relative_name)
def test_public_methods_have_a_docstring_where_they_are_first_declared(path):
    missing = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        bases = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
        for member in node.body:
            if not isinstance(member, ast.FunctionDef) or member.name.startswith("_"):
                continue
            decorators = [ast.unparse(each) for each in member.decorator_list]
            inherited = member.name in FOREIGN_METHODS or is_declared_by_a_base(member.name, bases)
            overload = any(each.endswith(("overload", ".setter")) for each in decorators)
            if not (inherited or overload or ast.get_docstring(member)):
                missing.append(f"{node.name}.{member.name}")
    assert missing == []


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


def test_module_names_are_unique_within_the_import_system():
    assert len(MODULES) == len(FILES) == len({module_name(path) for path in FILES})


def test_no_test_has_a_time_limit_for_its_examples():
    assert settings().deadline is None
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    limited = [
        path.name for path in tests if re.search(r"deadline=(?!None)[\d.t]", path.read_text())
    ]
    assert limited == []
