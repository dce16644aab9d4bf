"""Recipes of benchmarks/reproductions: they are valid, and have the published sizes."""

import runpy

import pytest
import yaml

from addnorm.comparison.parse import parse_comparison
from addnorm.models import build
from addnorm.models.tabular import TableConfig, build_table_model
from addnorm.tabular import TabularTransformerClassifier
from addnorm.train.recipe import read_recipe
from tests.source_tree import ROOT

FOLDER = ROOT / "benchmarks" / "reproductions"
ATTENTION, FEED_FORWARD, NORM = 4 * 128 * 129, 256 * 129 + 128 * 257, 2 * 128
PUBLISHED_PARAMETERS = {
    # nanoGPT without biases: blocks, norms, characters (ours have four special tokens), positions
    "shakespeare_char": (64 + 4, 4 * 12 * 128**2 + 9 * 128 + (64 + 4 + 64) * 128),
    # fairseq's transformer_tiny with a dictionary of 9,712 types
    "multi30k_post_ln": (
        9712,
        9712 * 128
        + 4 * (ATTENTION + FEED_FORWARD + 2 * NORM)
        + 4 * (2 * ATTENTION + FEED_FORWARD + 3 * NORM),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED_PARAMETERS)
def test_recipes_have_the_published_sizes(name, tmp_path):
    recipe = read_recipe(None, FOLDER / f"{name}.yaml", [f"data={tmp_path}"])
    vocab, parameters = PUBLISHED_PARAMETERS[name]
    model = build(recipe.build_config(vocab=vocab))
    assert sum(weight.numel() for weight in model.parameters()) == parameters


def test_comparison_of_wirings_has_the_keys_of_the_recipe(tmp_path):
    recipe = read_recipe(None, FOLDER / "multi30k_post_ln.yaml", [f"data={tmp_path}"])
    values = yaml.safe_load((FOLDER / "multi30k_wirings.yaml").read_text())
    spec = parse_comparison(values | {"data": str(tmp_path)})
    flat = recipe.to_flat_dict()
    assert {name: flat[name] for name in spec.keys} == spec.keys
    assert spec.steps == recipe.steps


def test_settings_of_tables_are_parameters_of_the_estimators():
    settings = runpy.run_path(str(FOLDER / "tabular.py"))["SETTINGS"]
    arms = {name: value for name, value in settings.items() if isinstance(value, dict)}
    for options in arms.values():
        assert set(options) <= set(TabularTransformerClassifier().get_params())
    assert arms["ft_published"]["dim"] == 192


def test_table_model_has_the_published_size():
    """The released results of California housing name 893,179 parameters."""
    settings = yaml.safe_load((FOLDER / "tabular.yaml").read_text())["ft_published"]
    fields = {name: value for name, value in settings.items() if name in TableConfig.model_fields}
    model = build_table_model(TableConfig(numbers=8, outputs=1, **fields))
    missing = 8 * 192  # our tokens of missing numbers
    assert sum(weight.numel() for weight in model.parameters()) == 893_179 + missing
