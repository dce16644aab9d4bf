"""`addnorm doctor`: targets, inputs, exit codes, one-line errors."""

import io
import json
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console

import addnorm
from addnorm.cli.commands.doctor import _render_report
from addnorm.cli.main import main
from addnorm.data import write_corpus
from tests.doctor.models.tiny import Model, PreBlock, ids, stack
from tests.tasks.sample_runs import records

MODULE = """
import torch
from torch import nn
from tests.doctor.models.tiny import DIM, Model, PreBlock, stack

def healthy():
    torch.manual_seed(0)
    return Model(stack(PreBlock), nn.LayerNorm(DIM))

class Alone(nn.Module):
    def __init__(self):
        super().__init__()
        self.latent, self.out = nn.Parameter(torch.ones(3, 4)), nn.Linear(4, 4)

    def forward(self):
        return self.out(self.latent)

def faulty():
    torch.manual_seed(0)
    return Model(stack(PreBlock, fault="skip"))

def picky():
    class Picky(nn.Module):
        def forward(self, x):
            raise ValueError("never")
    return Picky()

def number():
    return 3

def broken():
    raise KeyError("lost")

model = healthy()

def with_decay(model):
    return torch.optim.AdamW(model.parameters(), weight_decay=0.1)

def without_decay(model):
    gains = [w for w in model.parameters() if w.dim() < 2]
    others = [w for w in model.parameters() if w.dim() > 1]
    groups = [{"params": gains, "weight_decay": 0.0}, {"params": others}]
    return torch.optim.AdamW(groups, weight_decay=0.1)

def size(out):
    return 7 + (out - out.detach()).mean()

def optioned(depth=2, pre_norm=True):
    torch.manual_seed(0)
    return Model(stack(PreBlock, depth), nn.LayerNorm(DIM))
"""
IDS = "tokens:int64[2,7]<40"


@pytest.fixture(autouse=True)
def user_modules(tmp_path, monkeypatch):
    (tmp_path / "user_models.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "list.yaml").write_text("[1, 2]", encoding="utf-8")
    (tmp_path / "some.yaml").write_text("{a: 1, b: 2}", encoding="utf-8")
    (tmp_path / "typo.yaml").write_text("{dept: 1}", encoding="utf-8")
    (tmp_path / "odd.yaml").write_text("{depth: two}", encoding="utf-8")
    (tmp_path / "fitted").mkdir()
    (tmp_path / "fitted" / "estimator.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("user_models", None)


def test_exit_code_is_0_without_findings(capsys):
    assert main(["doctor", "user_models:healthy", "--input", IDS]) == 0
    out = capsys.readouterr().out
    assert "3 x [self-attention, feed-forward], Pre-LN with LayerNorm" in out
    assert out.endswith("no findings\n")


def test_target_may_be_a_module_and_inputs_are_guessed(capsys):
    assert main(["doctor", "user_models:model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize("target", ["./user_models.py", "below/pack/deep.py"])
def test_target_may_be_a_file(target, tmp_path, capsys):
    pack = tmp_path / "below" / "pack"
    pack.mkdir(parents=True)
    (pack / "__init__.py").write_text("")
    (pack / "near.py").write_text(MODULE, encoding="utf-8")
    (pack / "deep.py").write_text("from .near import healthy", encoding="utf-8")
    before, known = list(sys.path), set(sys.modules)
    try:
        assert main(["doctor", f"{target}:healthy", "--input", IDS]) == 0
    finally:
        sys.path[:] = before
        for name in {n for n in sys.modules if n.split(".")[0] == "pack"} - known:
            del sys.modules[name]
    assert "Pre-LN with LayerNorm" in capsys.readouterr().out


PRINTING_MODULE = """
print("imported")
from user_models import *

class Loud(Model):
    def forward(self, *args):
        print("run")
        return super().forward(*args)

def build():
    print("built")
    return Loud(stack(PreBlock), nn.LayerNorm(DIM))
"""


@pytest.fixture
def restore_modules():
    """Restore `sys.path` and remove the modules that the test imported."""
    path, known = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - known:
        if hasattr(sys.modules[name], "loud_enough") or name.startswith(("json@", "taken")):
            del sys.modules[name]


@pytest.mark.parametrize("more", [["--json"], []])
def test_output_of_user_code_goes_to_stderr(more, tmp_path, capsys, restore_modules):
    (tmp_path / "loud.py").write_text(PRINTING_MODULE + "loud_enough = True", encoding="utf-8")
    assert main(["doctor", "loud.py:build", "--input", "int64[2,7]<40", *more]) == 0
    out, err = capsys.readouterr()
    assert not {"imported", "built", "run"} & set(out.split())
    assert {"imported", "built", "run"} <= set(err.split())
    assert not more or json.loads(out)["findings"] == []


@pytest.mark.parametrize("location", ["below/json.py", "json/__init__.py", "json/deep.py"])
def test_file_is_loaded_by_its_path(location, tmp_path, capsys, restore_modules):
    """An imported module of the same name must not be examined instead."""
    (tmp_path / location).parent.mkdir()
    if location.endswith("deep.py"):
        (tmp_path / "json" / "__init__.py").write_text("build = None")
    (tmp_path / location).write_text("from torch import nn\ndef dumps(): return nn.Linear(3, 3)\n")
    arguments = [f"{location}:dumps", "--input", "float32[2,5,3]", "--json"]
    assert main(["doctor", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "Linear"
    assert main(["doctor", f"{location}:dumsp"]) == 2
    assert f"{location!r} has no 'dumsp'; did you mean 'dumps'?" in capsys.readouterr().err
    assert sys.modules["json"] is json


def test_file_is_loaded_once_under_its_module_name(tmp_path, restore_modules):
    from addnorm.doctor.loading.targets import import_target

    (tmp_path / "taken.py").write_text("class Own: pass\n")
    (tmp_path / "taken_by.py").write_text("from taken import Own\n")
    own = import_target("taken.py:Own", "")
    assert own is import_target("./taken.py:Own", "") is import_target("taken_by.py:Own", "")
    assert own is import_target("taken:Own", "")


def test_forward_without_inputs(capsys):
    assert main(["doctor", "user_models:Alone"]) == 0
    assert "no residual adds found" in capsys.readouterr().out


@pytest.mark.parametrize(("level", "code"), [("warning", 1), ("error", 1), ("never", 0)])
def test_exit_code_is_1_from_the_chosen_severity(level, code, capsys):
    arguments = ["doctor", "user_models:faulty", "--input", IDS, "--fail-on", level]
    assert main(arguments) == code
    assert (
        "error skip_after_norm at blocks.0: the skip connection carries" in capsys.readouterr().out
    )


def test_json_and_html_page(tmp_path, capsys):
    page = tmp_path / "report.html"
    code = main(["doctor", "user_models:faulty", "--input", IDS, "--json", "--html", str(page)])
    assert code == 1
    report = json.loads(capsys.readouterr().out)
    assert report["blocks"][0]["wiring"] == "false_pre_ln"
    assert {f["rule"] for f in report["findings"]} == {"skip_after_norm"}
    text = page.read_text(encoding="utf-8")
    assert "skip_after_norm" in text and "<svg" in text
    assert 'src="http' not in text and 'href="http' not in text


def test_stress_test_prints_a_table(capsys):
    arguments = ["doctor", "user_models:healthy", "--input", IDS, "--stress", "--lr", "1e-2"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "largest gradient" in out
    assert out.count("True") == 6
    assert "sensitivity to the rate without warm-up: 0." in out


@pytest.mark.parametrize("loss", ["mse", "user_models:size"])
def test_loss_of_stress_test_can_be_chosen(loss, capsys):
    arguments = ["doctor", "user_models:healthy", "--input", IDS, "--json", "--stress"]
    assert main([*arguments, "--loss", loss]) == 0
    report = json.loads(capsys.readouterr().out)
    first = {round(row["first_loss"], 4) for row in report["stress"]}
    assert len(first) == 1 and (first == {7.0}) is (loss != "mse")
    assert set(report["sensitivity"]) == {"0", "10"}


def rules(capsys):
    return {finding["rule"] for finding in json.loads(capsys.readouterr().out)["findings"]}


def test_optimizer_is_checked(capsys):
    arguments = ["doctor", "user_models:healthy", "--input", IDS, "--json", "--optimizer"]
    assert main([*arguments, "user_models:with_decay"]) == 1
    assert rules(capsys) == {"decayed_gain"}
    assert main([*arguments, "user_models:without_decay"]) == 0
    assert rules(capsys) == set()


@pytest.mark.parametrize("text", ['{"depth": 3, "pre_norm": true}', "depth: 3\npre_norm: true\n"])
def test_options_are_passed_and_checked(tmp_path, text, capsys):
    path = tmp_path / "options.yaml"
    path.write_text(text, encoding="utf-8")
    arguments = ["doctor", "user_models:optioned", "--input", IDS, "--json", "--config"]
    assert main([*arguments, str(path)]) == 1
    report = json.loads(capsys.readouterr().out)
    assert len(report["blocks"]) == 6  # two per layer; the file sets depth 3
    assert [(f["rule"], f["path"]) for f in report["findings"]] == [
        ("ineffective_option", "pre_norm")
    ]


def test_target_may_be_a_run_folder(tmp_path, capsys):
    splits = {name: list(records("lm", 20, 0)) for name in ("train", "valid", "test")}
    write_corpus(tmp_path / "corpus", "lm", splits=splits)
    spec = ["data=corpus", "steps=1", "depth=2", "dim=16", "heads=2", "wiring=sandwich"]
    assert main(["train", "lm", "-o", "run", *spec]) == 0
    capsys.readouterr()
    assert main(["doctor", "run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["arrangement"] == "sandwich"
    assert main(["doctor", "run", "--depth", "2"]) == 2
    assert "--depth and --config do not apply to the run folder run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "expected package.module:callable, file.py:callable, hf:FAMILY"),
        ([""], "a run folder, got ''"),
        (["fitted"], "expected a run folder of addnorm train, got the saved estimator fitted"),
        (["no_such_module:build"], "cannot import 'no_such_module'"),
        (["user_models:helthy"], "has no 'helthy'; did you mean 'healthy'?"),
        (["user_models:number"], "expected a torch.nn.Module, got an object of type int"),
        (["user_models:broken"], "broken() failed: KeyError"),
        (["user_models:picky"], "cannot guess inputs of Picky: forward(x) failed on all"),
        (
            ["user_models:healthy", "--input", "tokens int64"],
            '<50257" or "x:float32[2,16,64]", got \'tokens int64\'',
        ),
        (["user_models:healthy", "--input", "t:int9[2]"], "got 'int9' in 't:int9[2]'"),
        (
            ["user_models:healthy", "--input", "a:bool[2]", "--input", "bool[2]"],
            "expected names for all inputs or for none",
        ),
        (["user_models:healthy", "--input", "a:bool[2]", "--input", "a:bool[2]"], "distinct names"),
        (["user_models:healthy", "--input", "x:float32[2,3]"], "could not be run on these"),
        (["user_models:healthy", "--depth", "2"], "--depth: expected an hf: target, got"),
        (["user_models:healthy", "--fail-on", "warnin"], "did you mean 'warning'?"),
        (["user_models:healthy", "--stress", "--lr", "0"], "lr: expected a positive number"),
        (["user_models:healthy", "--loss", "mse"], "--loss mse requires --stress; add --stress or"),
        (["user_models:healthy", "--loss", "mes"], "unknown loss 'mes'; did you mean 'mse'"),
        (["user_models:model", "--loss", "user_models:IDS"], "has no 'IDS'"),
        (["user_models:model", "--loss", "user_models:torch"], "callable that accepts the model's"),
        (
            ["user_models:healthy", "--optimizer", "adam"],
            "expected package.module:callable that accepts the model, got 'adam'",
        ),
        (["user_models:model", "--optimizer", "user_models:number"], "takes 0 positional"),
        (
            ["user_models:model", "--optimizer", "user_models:torch"],
            "--optimizer: expected a callable",
        ),
        (
            ["user_models:model", "--optimizer", "builtins:type"],
            "expected an optimizer, got an obj",
        ),
        (["user_models:healthy", "--config", "none.yaml"], "cannot read 'none.yaml'"),
        (["user_models:healthy", "--config", "list.yaml"], "expected options by name such as"),
        (["user_models:healthy", "--config", "some.yaml"], "unknown option 'a'; expected none"),
        (["user_models:optioned", "--config", "typo.yaml"], "option 'dept'; did you mean 'dep"),
        (["user_models:optioned", "--config", "odd.yaml"], "check the options depth"),
        (["user_models:healthy", "--lr", "0.01"], "--lr 0.01 requires --stress; add --stress or"),
        (["./missing.py:healthy"], "expected folder/file.py:callable, got no file 'missing.py'"),
        (["user_models:model", "--config", "some.yaml"], "--config: expected a callable"),
        (["hf:bert", "--config", "some.yaml"], "--config: expected a package.module:callable"),
        (["hf:brt"], "unknown Hugging Face family 'brt'; did you mean 'bert'"),
        (["hf:./missing.json"], "cannot read 'missing.json'"),
    ],
)
def test_invalid_arguments_exit_with_2_and_one_line(arguments, message, capsys):
    assert main(["doctor", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.peer
@pytest.mark.filterwarnings("ignore")
def test_hugging_face_family_and_config(tmp_path, capsys):
    config = {"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50,
              "num_attention_heads": 4, "intermediate_size": 48}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["doctor", "hf:./config.json"]) == 0
    assert "2 x [self-attention, feed-forward], Pre-LN with RMSNorm" in capsys.readouterr().out
    assert main(["doctor", "hf:bert", "--depth", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["arrangement"] == "post_ln"


def test_help_warns_that_user_code_runs(capsys):
    assert main(["doctor", "--help"]) == 0
    assert "runs its code" in " ".join(capsys.readouterr().out.split())


def test_text_shows_evidence_and_stream_metrics(capsys):
    main(["doctor", "user_models:faulty", "--input", IDS])
    out = capsys.readouterr().out
    assert "  evidence: " in out
    for metric in ("dependency sum", "growth", "similarity rise", "max logit", "attention entropy"):
        assert metric in out


@pytest.mark.parametrize("width", [60, 80, 200])
def test_text_is_not_truncated_at_any_width(width):
    """Every label and number is printed in full, in one table or in two."""
    torch.manual_seed(0)
    report = addnorm.doctor(Model(stack(PreBlock)), ids())
    stress_row = {"lr": 1e-3, "warmup": 10, "steps": 40, "first_loss": 3.25, "last_loss": 1.125,
            "largest_gradient": 2.375, "finite": True}  # fmt: skip
    out = io.StringIO()
    console = Console(file=out, width=width, markup=False, highlight=False)
    console.print(*_render_report(replace(report, stress=(stress_row,)), console), sep="\n")
    text = out.getvalue()
    assert "\u2026" not in text and max(map(len, text.splitlines())) <= width
    words = text.split()
    for block in report.blocks:
        assert {block.path, block.branch, block.kind, block.wiring} <= set(words)
        for name in ("dependency", "stream_variance", "gradient_norm", "token_similarity"):
            assert f"{block.measurements[name]:.3g}" in words
    assert {"3.25", "1.12", "2.38", "True"} <= set(words)
    assert ("closest arrangement: pre_ln (gpt2, vit), but for missing_final_norm" in
            " ".join(words))  # fmt: skip
