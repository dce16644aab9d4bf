"""What is visited: code of others that fails or leaves, and families of Hugging Face."""

import json
import sys

import pytest
from torch import nn

from addnorm.core.errors import UserError
from addnorm.doctor.loading.example_inputs import guess_inputs, parse_input_specs
from addnorm.doctor.loading.targets import build_optimizer, build_target

MODULE = """
import sys
from torch import nn
model = nn.Linear(2, 2)
def leaves(*given):
    sys.exit(7)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "visited_ok.py").write_text(MODULE)
    (tmp_path / "visited_script.py").write_text("import sys; sys.exit(0)")
    (tmp_path / "visited_needy.py").write_text("import surely_not_installed")
    (tmp_path / "odd.json").write_text('{"model_type": "bert", "num_hidden_layers": "two"}')
    return tmp_path


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("visited_script:x", "importing 'visited_script' failed: SystemExit: 0"),
        ("visited_ok:leaves", r"visited_ok:leaves\(\) failed: SystemExit: 7"),
        ("visited_needy:x", "importing 'visited_needy' failed: ModuleNotFoundError: No module"),
        ("visited_none:x", "cannot import 'visited_none'.*try from the folder"),
        (":build", "got ':build'; wanted package.module:callable"),
        ("", "got ''; wanted package.module:callable"),
        ("hf:", "unknown Hugging Face family ''"),
        ("hf:odd.json", "the config of 'bert' is refused: .*num_hidden_layers"),
    ],
)
def test_what_cannot_be_built_is_one_line(folder, target, words):
    with pytest.raises(UserError, match=words):
        build_target(target)


def test_an_optimizer_that_leaves_the_program_is_one_line_too(folder):
    with pytest.raises(UserError, match=r"visited_ok:leaves\(model\) failed: SystemExit: 7"):
        build_optimizer("visited_ok:leaves", nn.Linear(2, 2))


def test_a_module_takes_no_options(folder):
    with pytest.raises(UserError, match="visited_ok:model is a module already; --config wants"):
        build_target("visited_ok:model", options={"depth": 2})


def test_layers_of_the_configs_inside_are_set(folder):
    small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    sides = {"text_config": small | {"vocab_size": 9}, "vision_config": small}
    (folder / "clip.json").write_text(json.dumps({"model_type": "clip", **sides}))
    model, _ = build_target("hf:clip.json", layers=1)
    assert [len(side.encoder.layers) for side in (model.text_model, model.vision_model)] == [1, 1]


def test_layers_that_would_change_nothing_are_refused(folder):
    with pytest.raises(UserError, match="--layers 2 changes nothing in 'swin'"):
        build_target("hf:swin", layers=2)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ids:int64[2,8]<0", "a limit from 1 on for whole numbers only"),
        ("x:float32[0,5,16]", "wanted sizes from 1 on"),
        ("x:float32[2,5]<3", "a limit from 1 on for whole numbers only"),
        ("x:float32[1000000,1000000,16]", "there is no memory for 'x:float32"),
    ],
)
def test_inputs_that_cannot_be_are_refused(spec, words):
    with pytest.raises(UserError, match=words):
        parse_input_specs([spec])


def test_where_no_guess_runs_the_model_itself_is_quoted():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            raise KeyError("my own failure")

    with pytest.raises(UserError, match=r"guesses \(the last one: KeyError: 'my own failure'\)"):
        guess_inputs(Failing())


def test_inputs_that_are_taken_by_name_only_are_guessed_by_name():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, *, tokens):
            return self.table(tokens)

    assert list(guess_inputs(Named())) == ["tokens"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def build(width): pass", "argument: 'width'; wanted a callable that needs no arguments,"),
        ("def build(): raise ValueError('odd')", "ValueError: odd"),
    ],
)
def test_why_a_callable_failed_is_told_truly(folder, text, said):
    (folder / "fails.py").write_text(text)
    try:
        with pytest.raises(UserError) as problem:
            build_target("fails.py:build")
    finally:
        sys.modules.pop("fails")
    assert said in str(problem.value)
    assert ("needs no arguments" in str(problem.value)) is ("width" in text)
