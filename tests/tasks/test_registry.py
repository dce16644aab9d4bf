"""The registry of tasks, and the interface that every task implements."""

import pytest

from addnorm.cli.main import COMMANDS
from addnorm.comparison.tasks import get_task as get_comparison_task
from addnorm.core.errors import UnknownNameError, UserError
from addnorm.data import write_corpus
from addnorm.data.corpus import Corpus
from addnorm.models.build import MODELS
from addnorm.tasks import find_task, get_task, registry
from addnorm.train.recipe import list_recipe_keys
from tests.tasks.sample_runs import make_run, records


@pytest.mark.parametrize("name", registry)
def test_every_task_is_complete(name):
    task = get_task(name)
    card = registry.card(name)
    assert (task.name, task.title) == (name, card.title)
    assert card.formula and card.summary and card.year and card.symbols
    assert task.model_kind in MODELS
    assert task.command in COMMANDS
    assert get_comparison_task(name).noun == task.noun
    assert task.primary_score.label and task.primary_score.note.endswith("better.")
    described = dict(card.symbols)
    assert all(option in described for option in card.options)
    assert {option for option in card.options} <= {key for key, _, _ in list_recipe_keys(name)}


@pytest.mark.parametrize("name", registry)
def test_comparison_examples_and_samples(tmp_path, name):
    task, run = get_task(name), make_run(name, tmp_path)
    sample_records = list(records(name, 3, seed=4))
    samples = task.generate_samples(run, sample_records)
    assert len(samples) == 3 and all(isinstance(sample, str) for sample in samples)
    examples = [task.to_example(record) for record in sample_records]
    assert all(example.input for example in examples)
    assert not task.is_correct("something else entirely", examples[0].target or "x")


@pytest.mark.parametrize("name", registry)
def test_corpus_with_other_columns_is_rejected(tmp_path, name):
    write_corpus(tmp_path, name, splits={"train": [{"other": "a"}]})
    with pytest.raises(UserError, match=r"expected records with .*, got other"):
        get_task(name).check_corpus(Corpus.open(tmp_path))


def test_find_task_by_columns():
    assert find_task(("label", "text")) == "classify"
    assert find_task(["source", "target"]) == "translate"
    assert find_task({"text"}) == "lm"
    for columns in ((), ("source",), ("label",), ("source", "target", "text")):
        with pytest.raises(UserError, match="columns: expected text and label or"):
            find_task(columns)


def test_unknown_names_and_options_are_rejected():
    with pytest.raises(UnknownNameError, match="unknown task 'translat'; did you mean 'translate'"):
        get_task("translat")
    with pytest.raises(UserError, match="task 'lm' has no option 'mask_rate'"):
        get_task("lm", {"mask_rate": 0.1})
