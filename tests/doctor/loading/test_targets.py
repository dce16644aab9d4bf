"""Targets and example inputs: user code that fails or exits, and Hugging Face families."""

import json
import resource
import sys

import pytest
import torch
from torch import nn

from addnorm.core.errors import UserError
from addnorm.doctor.loading.example_inputs import guess_inputs, parse_input_specs
from addnorm.doctor.loading.hugging_face import build_hf_model, set_layers
from addnorm.doctor.loading.targets import build_optimizer, build_target, read_options

MODULE = """
import sys
from torch import nn
model = nn.Linear(2, 2)
def exits(*args):
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
    ("target", "message"),
    [
        ("visited_script:x", "importing 'visited_script' failed: SystemExit: 0"),
        ("visited_ok:exits", r"visited_ok:exits\(\) failed: SystemExit: 7"),
        ("visited_needy:x", "importing 'visited_needy' failed: ModuleNotFoundError: No module"),
        ("visited_none:x", "cannot import 'visited_none'.*run the command in the folder"),
        (":build", "expected package.module:callable, .*, got ':build'"),
        ("", "expected package.module:callable, .*, got ''"),
        ("hf:", "unknown Hugging Face family ''"),
        ("hf:odd.json", "invalid config of 'bert': .*num_hidden_layers"),
    ],
)
def test_invalid_target_raises_one_line_error(folder, target, message):
    with pytest.raises(UserError, match=message):
        build_target(target)


def test_optimizer_that_exits_raises_one_line_error(folder):
    with pytest.raises(UserError, match=r"visited_ok:exits\(model\) failed: SystemExit: 7"):
        build_optimizer("visited_ok:exits", nn.Linear(2, 2))


def test_options_require_a_callable(folder):
    with pytest.raises(UserError, match="--config: expected a callable that builds a model"):
        build_target("visited_ok:model", options={"depth": 2})


def test_depth_is_set_in_nested_configs(folder):
    small = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    configs = {"text_config": small | {"vocab_size": 9}, "vision_config": small}
    (folder / "clip.json").write_text(json.dumps({"model_type": "clip", **configs}))
    model, _ = build_target("hf:clip.json", depth=1)
    assert [len(part.encoder.layers) for part in (model.text_model, model.vision_model)] == [1, 1]


@pytest.mark.parametrize(
    ("family", "depth", "kinds"),
    [("qwen3_5_text", 2, 2), ("gemma3_text", 1, 1), ("bamba", 2, 1), ("jamba", 2, 1)],
)
def test_depth_of_hybrid_models(family, depth, kinds):
    """Types of layers that a config computes are left alone; others keep all kinds."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[family]()
    assert set_layers(config, depth)
    assert config.num_hidden_layers == len(config.layer_types) == depth
    assert len(set(config.layer_types)) == kinds


def test_config_that_computes_its_depth_is_left_alone():
    from transformers import FunnelConfig

    config = FunnelConfig(block_sizes=[1, 1])
    set_layers(config, 3)
    assert config.block_sizes == [1, 1]


class SizesFromIds(nn.Module):
    """Reads its second input as sizes, as models of images with a grid do."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(97, 4)

    def forward(self, x, grid):
        if grid.dtype == torch.int64:
            torch.empty(3 * 2**28, dtype=torch.uint8)  # never written, so no memory is used
        return self.table(x)


def test_guess_that_needs_too_much_memory_is_rejected(monkeypatch):
    limits = resource.getrlimit(resource.RLIMIT_AS)
    monkeypatch.setattr("addnorm.doctor.loading.memory_limit._available_bytes", lambda: 2**30)
    _, grid = guess_inputs(SizesFromIds())
    assert grid.dtype == torch.bool  # the ids would have needed 3 / 4 of the memory
    assert resource.getrlimit(resource.RLIMIT_AS) == limits


def test_depth_without_effect_is_rejected(folder):
    with pytest.raises(UserError, match="--depth 2 has no effect on 'swin'"):
        build_target("hf:swin", depth=2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("ids:int64[2,8]<0", "a positive limit for integers only"),
        ("x:float32[0,5,16]", "expected positive sizes"),
        ("x:float32[2,5]<3", "a positive limit for integers only"),
        ("x:float32[1000000,1000000,16]", "not enough memory for 'x:float32"),
    ],
)
def test_invalid_input_specs_are_rejected(spec, message):
    with pytest.raises(UserError, match=message):
        parse_input_specs([spec])


def test_failed_guess_quotes_the_error_of_the_model():
    class Failing(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            raise KeyError("my own failure")

    with pytest.raises(UserError, match=r"guesses \(last error: KeyError: 'my own failure'\)"):
        guess_inputs(Failing())


def test_keyword_only_inputs_are_guessed_by_name():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, *, tokens):
            return self.table(tokens)

    assert list(guess_inputs(Named())) == ["tokens"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(width): pass", "argument: 'width'; pass its arguments with --config"),
        ("def build(): raise ValueError('odd')", "ValueError: odd"),
    ],
)
def test_failed_callable_explains_why(folder, text, message):
    (folder / "fails.py").write_text(text)
    try:
        with pytest.raises(UserError) as problem:
            build_target("fails.py:build")
    finally:
        sys.modules.pop("fails")
    assert message in str(problem.value)
    assert ("pass its arguments" in str(problem.value)) is ("width" in text)


@pytest.mark.parametrize(
    ("name", "text"),
    [("c.json", '{"eps": 1e-05, "depth": 2}'), ("c.yaml", "eps: 1e-05\ndepth: 2\n")],
)
def test_numbers_without_a_point_are_numbers(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    assert read_options(tmp_path / name) == {"eps": 1e-05, "depth": 2}


@pytest.mark.parametrize("name", ["deep.json", "deep.yaml"])
def test_deeply_nested_files_are_one_line(tmp_path, name):
    (tmp_path / name).write_text("[" * 100_000)
    with pytest.raises(UserError, match="nested too deeply"):
        read_options(tmp_path / name)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"model_type": "bert", "num_hidden_layers": 100000000000}', "at most 10000"),
        ('{"model_type": "t5", "num_decoder_layers": 100000000000}', "at most 10000"),
        ('{"model_type": "bert", "num_hidden_layers": 9999}', "that fit into the memory"),
        ('{"model_type": "bert", "vocab_size": 100000000000}', "that fit into the memory"),
    ],
)
def test_absurd_hugging_face_config_is_one_line(tmp_path, config, message):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(UserError, match=message) as caught:
        build_hf_model(str(tmp_path / "config.json"))
    assert "\n" not in str(caught.value)
