"""Wirings and norms of one's own: registered, loaded from files, recorded by a comparison."""

import json
import re
import subprocess
import sys

import pytest
import torch

import addnorm
from addnorm.cli.main import main
from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.run import run_comparison
from addnorm.comparison.tasks.used_plugins import find_used_plugins
from addnorm.core.errors import UserError
from addnorm.core.registry import find_registry
from addnorm.models.presets import PRESETS
from addnorm.norms.base import registry as norms
from addnorm.plugins import load_plugin
from addnorm.plugins import plugin as plugin_module
from addnorm.wirings.base import registry as wirings
from tests.comparison.same_process_engine import SameProcessEngine
from tests.source_tree import ROOT
from tests.train.cases import write_number_corpus

WIRING = '''
import addnorm
from addnorm.core.registry import Positive

@addnorm.register("{name}")
class Doubled(addnorm.Wiring):
    """Add the branch twice."""

    def __init__(self, plan, *, factor: Positive = 2.0) -> None:
        super().__init__(plan)
        self.factor = factor

    def read(self, state, site):
        return state[0], state

    def write(self, state, site, branch):
        return (state[0] + self.factor * branch,)

    def close(self, state):
        return state[0]
'''
KEYS = {"task": "translate", "depth": 1, "seeds": 1, "dim": 8, "heads": 2, "steps": 3, "score": 0}


@pytest.fixture(autouse=True)
def forget_new_members():
    """Remove what a test registers."""
    known = {
        registry: (dict(registry._members), dict(registry._cards)) for registry in (wirings, norms)
    }
    yield
    for registry, (members, cards) in known.items():
        registry._members, registry._cards = members, cards


def write_plugin(folder, name="doubled"):
    path = folder / f"{name}_plugin.py"
    path.write_text(WIRING.format(name=name))
    return path


def test_registered_wiring_is_built_by_name(tmp_path):
    load_plugin(write_plugin(tmp_path))
    model = addnorm.build(kind="lm", vocab=9, dim=8, depth=1, heads=2, wiring="doubled(factor=3.0)")
    assert model(torch.tensor([[1, 2]])).shape == (1, 2, 9)
    card = wirings.card("doubled")
    assert card.summary == "Add the branch twice." and list(card.options) == ["factor"]


def test_registry_follows_the_base_class():
    @addnorm.register("times_two")
    class TimesTwo(addnorm.Norm):
        """Multiply by two."""

        def normalize(self, x, mask=None, cond=None):
            return 2 * x

    assert find_registry(TimesTwo) is norms and "times_two" in norms
    assert torch.equal(addnorm.make_norm("times_two", 4)(torch.ones(4)), 2 * torch.ones(4))
    with pytest.raises(UserError, match="register: expected a class derived from one of"):
        addnorm.register("other")(dict)


def test_class_can_be_registered_again_but_not_replaced():
    """As by running a notebook cell twice."""
    for _ in range(2):

        @addnorm.register("again")
        class Again(addnorm.Norm):
            """Do nothing."""

    with pytest.raises(ValueError, match="registered twice"):

        @addnorm.register("layer")
        class Layer(addnorm.Norm):
            """Replace a norm of addnorm."""


def test_example_of_the_guide_runs():
    text = (ROOT / "docs" / "guides" / "plugins.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(block, "plugins.md", "exec"), {"__name__": "guide"})
    assert "doubled" in wirings


@pytest.mark.parametrize(
    "content, message",
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import nothing_like_this", "No module named 'nothing_like_this'"),
        ("def f(:", "SyntaxError"),
        (WIRING.format(name="post_ln"), "registered twice"),
    ],
)
def test_broken_plugin_is_one_line(tmp_path, content, message):
    path = tmp_path / "broken.py"
    path.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        load_plugin(path)
    assert "broken.py" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("target", ["missing.py", "no_such_module_here", "no.such.module"])
def test_missing_plugin(target):
    with pytest.raises(UserError, match="plugin: expected a"):
        load_plugin(target)


def test_plugin_imports_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_plugin.py").write_text("NAME = 'by_neighbour'")
    path = tmp_path / "main_plugin.py"
    text = WIRING.replace('"{name}"', "neighbour_of_plugin.NAME")
    path.write_text("import neighbour_of_plugin\n" + text)
    load_plugin(path)
    assert "by_neighbour" in wirings


@pytest.mark.parametrize("position", ["before", "after"])
def test_every_command_takes_plugins(tmp_path, capsys, position):
    option, command = ["--plugin", str(write_plugin(tmp_path))], ["show", "doubled", "--json"]
    assert main([*option, *command] if position == "before" else [*command, *option]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "doubled"
    assert main(["list", "wirings", "--plugin", str(tmp_path / "none.py")]) == 2
    assert "which does not exist" in capsys.readouterr().err


def test_show_leaves_out_what_a_member_does_not_have(tmp_path, capsys):
    assert main(["show", "doubled", "--plugin", str(write_plugin(tmp_path))]) == 0
    output = capsys.readouterr().out
    assert "Options" in output and "Formula" not in output and "Paper" not in output


def make_spec(tmp_path, wiring, preset=None):
    if not (tmp_path / "corpus").exists():
        write_number_corpus(tmp_path / "corpus")
    keys = {"wiring": wiring, "lr": "1e-3", "data": str(tmp_path / "corpus")}
    keys |= {} if preset is None else {"preset": preset}
    return parse_comparison(KEYS | keys)


def test_comparison_records_plugins_and_refuses_changed_ones(tmp_path):
    path = write_plugin(tmp_path)
    load_plugin(path)
    spec = make_spec(tmp_path, "doubled,pre_ln")
    study = run_comparison(spec, tmp_path / "study", engine=SameProcessEngine())
    assert study.complete and list(study.shared_data.plugins) == [str(path)]
    path.write_text(path.read_text().replace("twice", "three times"))
    with pytest.raises(UserError, match="has changed since the comparison started"):
        run_comparison(spec, tmp_path / "study", engine=SameProcessEngine())


def test_only_used_plugins_are_recorded(tmp_path):
    load_plugin(write_plugin(tmp_path))
    assert find_used_plugins(make_spec(tmp_path, "pre_ln")) == ()


def test_plugin_file_is_not_needed_where_the_cell_runs(tmp_path):
    path = write_plugin(tmp_path, "sent_along")
    load_plugin(path)
    (plugin,) = find_used_plugins(make_spec(tmp_path, "sent_along"))
    path.unlink()
    wirings._members.pop("sent_along")
    sys.modules.pop(
        wirings._cards.pop("sent_along")
        and next(
            name
            for name in sys.modules
            if name.startswith("addnorm_plugin_")
            and getattr(sys.modules[name], "__file__", "") == str(path)
        )
    )
    plugin.load()
    assert "sent_along" in wirings


def test_entry_points_of_installed_packages(tmp_path):
    write_plugin(tmp_path, "installed")
    metadata = tmp_path / "someones_package-1.5.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: someones-package\nVersion: 1.5\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[addnorm.plugins]\ninstalled = installed_plugin\nbroken = no_such_module\n"
    )
    code = (
        f"import sys, warnings; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import addnorm\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    sizes = dict(vocab=9, dim=8, depth=1, heads=2)\n"
        "    model = addnorm.build(kind='lm', **sizes, wiring='installed')\n"
        "print(model.config.wiring, [str(each.message) for each in caught])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("installed")
    assert "plugin broken (no_such_module) could not be loaded" in done.stdout


SCRIPT = """
import sys
import addnorm
from addnorm.comparison.engines.local import LocalEngine
{definition}
if __name__ == "__main__":
    keys = {keys!r}
    study = addnorm.compare(keys, sys.argv[1], engine=LocalEngine(workers=1))
    print([each.state for each in study.cells], [each.end.why for each in study.cells])
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["script", "notebook", "plugin"])
def test_cells_know_the_wirings_of_a_study(tmp_path, how):
    """In processes of their own; a notebook is a `__main__` without a file."""
    write_number_corpus(tmp_path / "corpus")
    keys = KEYS | {"wiring": "doubled", "lr": 1e-3, "data": str(tmp_path / "corpus")}
    definition = WIRING.format(name="doubled")
    if how == "plugin":
        plugin = write_plugin(tmp_path)
        definition = f"from addnorm.plugins import load_plugin\nload_plugin({str(plugin)!r})"
    script = SCRIPT.format(definition=definition, keys=keys)
    if how == "notebook":
        command = [sys.executable, "-c", script, str(tmp_path / "study")]
    else:
        (tmp_path / "script.py").write_text(script)
        command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "study")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "crashed" not in done.stdout, done.stdout


@pytest.fixture
def forget_new_presets():
    """Remove the presets that a test registers."""
    yield
    for name in list(PRESETS.own):
        del PRESETS.own[name], PRESETS._rows[name]


SMALL = {"kind": "lm", "vocab": 9, "dim": 8, "depth": 1, "heads": 2}


@pytest.mark.usefixtures("forget_new_presets")
def test_preset_of_ones_own(tmp_path, capsys):
    plugin = tmp_path / "presets_plugin.py"
    plugin.write_text(
        f"import addnorm\naddnorm.register('my_gpt')(addnorm.Config(**{SMALL}, wiring='b2t'))\n"
    )
    assert main(["show", "my_gpt", "--json", "--plugin", str(plugin)]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "my_gpt"
    model = addnorm.build("my_gpt", dim=16)
    assert (model.config.wiring, model.config.dim) == ("b2t", 16)
    with pytest.raises(UserError, match="preset 'gpt2' exists already"):
        addnorm.register("gpt2")(addnorm.Config(**SMALL))
    with pytest.raises(UserError, match="name of a preset"):
        addnorm.register("my gpt")(addnorm.Config(**SMALL))


@pytest.mark.usefixtures("forget_new_presets")
def test_comparison_records_presets_and_their_wirings(tmp_path):
    load_plugin(write_plugin(tmp_path, "in_preset"))
    sizes = {"kind": "seq2seq", "vocab": 9, "dim": 8, "depth": 1, "heads": 2}

    def record(dropout):
        config = addnorm.Config(**sizes, encoder_wiring="in_preset", dropout=dropout)
        addnorm.register("mine")(config)
        return {
            each.name: each for each in find_used_plugins(make_spec(tmp_path, "pre_ln", "mine"))
        }

    before, after = record(0.0), record(0.1)
    assert list(before) == [str(tmp_path / "in_preset_plugin.py"), "preset mine"]
    assert before["preset mine"].digest != after["preset mine"].digest
    del PRESETS.own["mine"], PRESETS._rows["mine"]
    after["preset mine"].load()
    assert PRESETS["mine"].config.dropout == 0.1


def test_version_of_a_package_is_recorded(tmp_path, monkeypatch):
    path = write_plugin(tmp_path, "of_package")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugin_module, "_find_version", lambda module: "1.5")
    load_plugin(path.stem)
    spec = make_spec(tmp_path, "of_package")
    study = run_comparison(spec, tmp_path / "study", engine=SameProcessEngine())
    assert study.shared_data.versions[path.stem] == "1.5"
    assert list(study.shared_data.plugins) == [path.stem]
    monkeypatch.setattr(plugin_module, "_find_version", lambda module: "1.6")
    with pytest.raises(UserError, match=f"plugin {path.stem} has changed"):
        run_comparison(spec, tmp_path / "study", engine=SameProcessEngine())


def test_plugin_that_only_crashed_may_be_repaired(tmp_path):
    """Nothing was learned from the crashed cells, so nothing is mixed."""
    path = write_plugin(tmp_path, "repaired")
    working = path.read_text()
    path.write_text(working.replace("return (state[0] +", "1 / 0; return (state[0] +"))
    load_plugin(path)
    spec = make_spec(tmp_path, "repaired")
    broken = run_comparison(spec, tmp_path / "study", engine=SameProcessEngine())
    assert {each.state for each in broken.cells} == {"crashed"}
    path.write_text(working)
    wirings.member("repaired").write = lambda self, state, site, branch: (state[0] + branch,)
    repaired = run_comparison(spec, tmp_path / "study", engine=SameProcessEngine())
    assert repaired.complete and "crashed" not in {each.state for each in repaired.cells}
    assert repaired.shared_data.plugins != broken.shared_data.plugins


def test_file_in_a_package_imports_it(tmp_path):
    package = tmp_path / "some_package"
    (package / "inner").mkdir(parents=True)
    for folder in (package, package / "inner"):
        (folder / "__init__.py").touch()
    (package / "names.py").write_text("NAME = 'in_package'")
    path = package / "inner" / "wirings.py"
    text = WIRING.replace('"{name}"', "names.NAME")
    path.write_text("from some_package import names\nfrom .. import names\n" + text)
    load_plugin(path)
    assert "in_package" in wirings


def test_module_below_the_working_directory(tmp_path, monkeypatch):
    write_plugin(tmp_path, "from_here")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    load_plugin("from_here_plugin")
    assert "from_here" in wirings


def test_members_of_entry_points_are_known_to_every_question(monkeypatch):
    """`in` is asked by draw, train and compare before a member is built."""

    class Package:
        name, value = "late", "late_package"

        def load(self):
            assert "unknown" not in wirings  # asked by a plugin while it is loaded

            @addnorm.register("late")
            class Late(addnorm.Wiring):
                """Do nothing."""

    packages = [Package()]
    monkeypatch.setattr("addnorm.core.registry._find_entry_points", lambda: packages)
    assert "late" in wirings and packages == []
