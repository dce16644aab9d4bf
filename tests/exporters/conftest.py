"""Runs of a few steps, trained once."""

import pytest

from addnorm.train import read_recipe, train
from tests.tasks.sample_runs import make_run

TASKS = ("translate", "lm", "classify", "mlm")
KEYS = ("dim=16", "depth=1", "heads=2", "steps=4", "batch_tokens=200", "max_length=40")


@pytest.fixture(scope="session", name="run_folder")
def run_folder_fixture(tmp_path_factory):
    """Return a function that trains a small run of a task and returns its folder."""
    folders = {}

    def get(task, *keys):
        if (task, keys) not in folders:
            data = tmp_path_factory.mktemp(f"{task}_data")
            make_run(task, data)  # writes a corpus
            folder = tmp_path_factory.mktemp(f"{task}_run")
            arguments = (f"data={data}", "tokenizer=char", *KEYS, *keys)
            train(read_recipe(task, None, arguments), folder)
            folders[task, keys] = folder
        return folders[task, keys]

    return get
