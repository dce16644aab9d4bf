"""Digests: equal for equal code in every process, different once it has changed."""

import importlib
import subprocess
import sys

import pytest

from addnorm.plugins.digests import find_neighbours, hash_parts, iter_code_parts
from addnorm.plugins.plugin import describe_plugin

SCRIPT = """
FACTOR = 2.0

def helper(x):
    return x * FACTOR

class Base:
    gain = 1

class Member(Base):
    names = {"a", "b"}

    def __init__(self, *, factor=3.0):
        self.factor = factor

    @property
    def doubled(self):
        return helper(self.factor)

    @staticmethod
    def known(name):
        return name in {"left", "right", "up", "down"}

    def scale(self):
        return [each * 2 for each in range(3)]
"""


def digest(source, name="Member"):
    module = {"__name__": "script_of_a_test"}
    exec(source, module)
    return hash_parts(iter_code_parts(module[name]))


@pytest.mark.parametrize(
    "old, new",
    [
        ("FACTOR = 2.0", "FACTOR = 4.0"),
        ("x * FACTOR", "x + FACTOR"),
        ("gain = 1", "gain = 2"),
        ("factor=3.0", "factor=5.0"),
        ("helper(self.factor)", "self.factor"),
        ('"up"', '"above"'),
        ("each * 2 for", "each * 3 for"),
        ('{"a", "b"}', '{"a", "c"}'),
    ],
)
def test_every_change_is_seen(old, new):
    assert old in SCRIPT
    assert digest(SCRIPT.replace(old, new)) != digest(SCRIPT)


def test_digest_does_not_depend_on_the_process():
    """Sets of texts have another order in every process."""
    code = (
        "import sys; from tests.plugins.test_digests import SCRIPT, digest; print(digest(SCRIPT))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


def test_unrelated_code_of_a_script_does_not_count():
    assert digest(SCRIPT + "\nOTHER = 3\n") == digest(SCRIPT)


def test_files_beside_a_plugin_count(tmp_path):
    (tmp_path / "model.py").write_text("import layers")
    (tmp_path / "layers.py").write_text("SIZE = 1")
    (tmp_path / "unused.py").write_text("SIZE = 2")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "part.py").write_text("SIZE = 3")
    path = tmp_path / "study.py"
    source = "import torch\ndef train(cell):\n    import model\n    from package.part import SIZE\n"
    path.write_text(source)
    assert find_neighbours(path, source) == ["SIZE = 1", "import layers", "", "SIZE = 3"]


@pytest.mark.parametrize(
    "statement",
    [
        "from .blocks import SIZE",
        "from . import blocks",
        "from lab_package.parts.blocks import SIZE",
        "import lab_package.parts.blocks",
        "from ..parts.blocks import SIZE",
    ],
)
def test_modules_of_the_package_of_a_plugin_count(tmp_path, statement):
    parts = tmp_path / "lab_package" / "parts"
    parts.mkdir(parents=True)
    for folder in (parts, parts.parent):
        (folder / "__init__.py").write_text("")
    (parts / "blocks.py").write_text("SIZE = 1")
    (parts / "unused.py").write_text("SIZE = 2")
    (tmp_path / "torch").mkdir()  # installed beside the package
    (tmp_path / "torch" / "__init__.py").write_text("SIZE = 3")
    path, source = parts / "wirings.py", f"import torch\n{statement}\n"
    path.write_text(source)
    neighbours = find_neighbours(path, source)
    assert "SIZE = 1" in neighbours
    assert "SIZE = 2" not in neighbours and "SIZE = 3" not in neighbours


def test_version_of_a_package_that_does_not_list_its_modules(tmp_path, monkeypatch):
    """As some editable installations: the entry point tells the distribution."""
    (tmp_path / "unlisted_plugin.py").write_text("class Member: pass")
    facts = tmp_path / "unlisted-1.2.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: unlisted\nVersion: 1.2\n")
    (facts / "entry_points.txt").write_text("[addnorm.plugins]\nunlisted = unlisted_plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("unlisted_plugin")
    monkeypatch.setitem(sys.modules, "unlisted_plugin", module)
    assert describe_plugin(module.Member).version == "1.2"
