"""Recipes: flat keys, defaults, error messages."""

import pytest
import yaml

from addnorm.core.errors import UserError
from addnorm.train.recipe import Recipe, list_recipe_keys, read_recipe
from tests.train.cases import make_recipe


def make_lm_recipe(**values):
    return Recipe.from_dict({"task": "lm", "data": "c", **values})


def test_defaults_depend_on_task_and_wiring():
    defaults = make_recipe("c", wiring="post_ln")
    assert defaults.label_smoothing == 0.1
    assert defaults.schedule == "inverse_sqrt(warmup=0.2)"
    assert make_recipe("c", "lm").label_smoothing == 0.0
    assert make_recipe("c", wiring="pre_ln", encoder_wiring="post_ln").schedule == defaults.schedule
    assert make_recipe("c", schedule="none").schedule == "none"


def test_saved_recipe_round_trips(tmp_path):
    first = make_recipe("c", "lm", window=(3, None), preset="gpt2", norm="rms(eps=1e-6)")
    first.save(tmp_path / "config.yaml")
    restored = read_recipe(None, tmp_path / "config.yaml", ())
    assert restored.to_flat_dict() == first.to_flat_dict()
    assert restored.build_config(vocab=9) == first.build_config(vocab=9)
    assert yaml.safe_load(first.to_yaml())["norm"] == "rms(eps=1e-6)"


def test_keys_override_preset():
    preset_recipe = make_recipe("c", preset="transformer-base", wiring="deepnorm", dim=512)
    config = preset_recipe.build_config(vocab=100)
    assert (config.wiring, config.dim, config.heads) == ("deepnorm", 512, 2)


def test_arguments_override_file(tmp_path):
    (tmp_path / "a.yaml").write_text("data: c\ndim: 64\nlr: 1e-4\nwindow: [4, null]\n")
    recipe = read_recipe("lm", tmp_path / "a.yaml", ["dim=32", "lr=5e-3", "norm=rms(eps=1e-5)"])
    assert recipe.model["dim"] == 32
    assert recipe.lr == 0.005
    assert recipe.model["norm"] == "rms(eps=1e-5)"
    assert recipe.model["window"] == (4, None)


def test_data_path_is_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert read_recipe("lm", None, ["data=./c/"]).data == str(tmp_path / "c")


def test_every_key_is_described():
    assert all(description for _, _, description in list_recipe_keys())
    assert {"data", "dim", "on_spike", "wiring"} <= {name for name, _, _ in list_recipe_keys()}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wirng": "b2t"}, "a recipe has no 'wirng'; did you mean 'wiring'?"),
        ({"vocabulary_of_mine": 1}, "a recipe has no 'vocabulary_of_mine'"),
        ({"kind": "lm"}, "a recipe has no 'kind'"),
        ({"wiring": "postln"}, "unknown wiring 'postln'; did you mean 'post_ln'"),
        ({"steps": 0}, "steps: expected a number greater than or equal to 1, got 0"),
        ({"steps": 2.5}, "steps: expected a valid integer, got 2.5"),
        ({"lr": "fast"}, "lr: expected a valid number, got 'fast'"),
        ({"lr": float("inf")}, "lr: expected a finite number, got inf"),
        ({"keep": 1}, "keep: expected a number greater than or equal to 2, got 1"),
        ({"dropout": 1.0}, "dropout: expected a number less than 1, got 1.0"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'?"),
        ({"schedule": "constant(warmup=99)", "steps": 9}, "a warm-up of 99 steps is longer than"),
        ({"optimizer": "adamw(beta=1)"}, "optimizer 'adamw' has no option 'beta'"),
        ({"on_spike": "panic"}, "on_spike: expected 'log', 'skip' or 'rewind', got 'panic'"),
        ({"tokenizer": "words"}, "tokenizer: expected bpe, unigram, char, word or the path of"),
        (
            {"max_length": 9, "batch_tokens": 8},
            "batch_tokens: expected at least max_length=9, got 8",
        ),
        ({"schedule": False}, "schedule: expected a valid string, got False"),
        ({"optimizer": False}, "optimizer: expected a valid string, got False"),
        ({"preset": 3}, "preset: expected one of transformer-base"),
        ({"preset": "gpt9"}, "unknown preset 'gpt9'"),
        (
            {"preset": "transformer-base"},
            "preset: expected a lm for this task, got 'transformer-base'",
        ),
        ({"encoder_depth": 2}, "encoder_depth: expected kind seq2seq, got kind 'lm'"),
        (
            {"stream": "bfloat16"},
            "dtype: expected bfloat16, as stream, got float32",
        ),
    ],
)
def test_invalid_values_are_rejected(values, message):
    with pytest.raises(UserError) as error:
        make_lm_recipe(**values)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (None, ["dim"], "cannot parse 'dim'; expected key=value, such as dim=128"),
        (None, ["data=c", "dim=3", "dim=4"], "dim is passed twice; remove one of them"),
        (None, ["=3"], "cannot parse '=3'; expected key=value"),
        (None, ["dim=["], "cannot parse 'dim=['; expected key=value"),
        (None, ["dim=3"], "data: expected a corpus folder, got none; add data=FOLDER"),
        ("dim: [", [], "is not YAML"),
        ("- a", [], "contains no keys; expected lines such as `dim: 128`"),
        ("", [], "contains no keys"),
        ("1: 2", [], "contains no keys"),
        ("task: lm\ndata: c", [], "expected a recipe for 'translate', got one for 'lm'"),
    ],
)
def test_unreadable_recipes_are_rejected(tmp_path, text, arguments, message):
    file = None
    if text is not None:
        file = tmp_path / "a.yaml"
        file.write_text(text)
    with pytest.raises(UserError) as error:
        read_recipe("translate", file, arguments)
    assert message in str(error.value)


def test_missing_file_is_rejected(tmp_path):
    with pytest.raises(UserError, match=r"no recipe at .*: there is no such file; expected a YAML"):
        read_recipe("lm", tmp_path / "a.yaml", ())
