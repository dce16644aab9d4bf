"""Files of a run: changed corpora, lost rows, full disks, the growth of a long run."""

import json
import resource

import pytest
import torch
from safetensors.torch import load_file

from addnorm.core.errors import UserError
from addnorm.core.rows import read_rows
from addnorm.data.corpus import Corpus
from addnorm.report.run_page import write_training_report
from addnorm.train.run_folder import read_run_rows
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train
from tests.train.cases import RecordingCallback, digest, make_recipe, write_number_corpus


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_number_corpus(tmp_path_factory.mktemp("lm"), "lm").folder


def replace_once(path, old, new):
    text = path.read_text()
    assert len(old) == len(new) and old in text
    path.write_text(text.replace(old, new, 1))


def rows_without_speed(folder):
    return [row for row in read_rows(folder / "rows.jsonl") if row["name"] != "tokens_per_second"]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_word_replaced_in_the_corpus_is_noticed_on_resume(tmp_path, split):
    corpus = write_number_corpus(tmp_path / "corpus", "lm")
    recipe = make_recipe(corpus.folder, "lm")
    train(recipe, tmp_path / "run", until=6)
    record = next(corpus.records(split))["text"]
    replace_once(corpus.path(split), record, record[::-1])
    with pytest.raises(UserError, match=rf"{split}.jsonl has changed since it was written"):
        train(recipe, tmp_path / "run")


def test_corpus_without_checksums_is_noticed_by_its_digest(tmp_path):
    corpus = write_number_corpus(tmp_path / "corpus", "lm")
    card = json.loads((corpus.folder / "corpus.json").read_text())
    del card["checksum"], card["files"]
    (corpus.folder / "corpus.json").write_text(json.dumps(card))
    recipe = make_recipe(corpus.folder, "lm")
    train(recipe, tmp_path / "run", until=6)
    record = next(corpus.records("train"))["text"]
    replace_once(corpus.path("train"), record, record[::-1])
    with pytest.raises(UserError, match=r"corpus .* has changed since this run started"):
        train(recipe, tmp_path / "run")


def test_average_of_checkpoints_ignores_those_of_interruptions(data, tmp_path):
    recipe = make_recipe(data, "lm", steps=9, save_every=2, keep=9)
    for name, stops in (("whole", ()), ("interrupted", (3, 7))):
        for stop in stops:
            train(recipe, tmp_path / name, until=stop)
        train(recipe, tmp_path / name)
    assert (tmp_path / "interrupted" / "checkpoints" / "step-7").exists()
    runs = [TrainedRun.open(tmp_path / name, average=3) for name in ("whole", "interrupted")]
    steps = [
        load_file(tmp_path / "whole" / "checkpoints" / f"step-{step}" / "model.safetensors")
        for step in (6, 8, 9)
    ]
    for run in runs:
        for name, value in run.model.state_dict().items():
            assert torch.allclose(value, sum(weights[name] for weights in steps) / 3, atol=1e-7)
    with pytest.raises(UserError, match=r"average: expected at most 5, the number of .*, got 6"):
        TrainedRun.open(tmp_path / "whole", average=6)
    with pytest.raises(UserError, match=r"average: expected a number of checkpoints from 1, got 0"):
        TrainedRun.open(tmp_path / "whole", average=0)


@pytest.mark.parametrize("damage", ["empty", "truncated", "changed", "deleted"])
def test_lost_rows_are_noticed_by_report_and_resume(data, tmp_path, damage):
    recipe = make_recipe(data, "lm")
    train(recipe, tmp_path / "run", until=6)
    path = tmp_path / "run" / "rows.jsonl"
    rows = path.read_bytes()
    damaged = {"empty": b"", "truncated": rows[:-50], "changed": rows.replace(b"4", b"5", 1)}
    path.unlink() if damage == "deleted" else path.write_bytes(damaged[damage])
    message = {"empty": "truncated", "truncated": "truncated", "changed": "checksum differs"}
    for use in (write_training_report, lambda folder: train(recipe, folder)):
        with pytest.raises(UserError, match=message.get(damage, "cannot be read")) as error:
            use(tmp_path / "run")
        assert "\n" not in str(error.value)
    path.write_bytes(rows)
    assert train(recipe, tmp_path / "run").ending == "done"


def test_last_row_of_a_diverged_run_is_covered(data, tmp_path):
    recipe = make_recipe(data, "lm", lr=1e30, clip=None, schedule="none")
    assert train(recipe, tmp_path / "run").ending == "diverged"
    path = tmp_path / "run" / "rows.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(UserError, match="is truncated"):
        read_run_rows(tmp_path / "run")


def test_rows_after_the_last_checkpoint_may_be_incomplete(data, tmp_path):
    recipe = make_recipe(data, "lm", save_every=100, valid_every=0)
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "run", until=6)
    with (tmp_path / "run" / "rows.jsonl").open("a") as file:  # by a process that was killed
        file.write('{"step": 7, "name": "loss", "value": 1.0}\n{"step": 8, "na')
    assert [row["step"] for row in read_run_rows(tmp_path / "run")][-1] == 7
    train(recipe, tmp_path / "run")
    rows = rows_without_speed(tmp_path / "run")
    assert [row for row in rows if row.get("ending") != "interrupted"] == rows_without_speed(
        tmp_path / "whole"
    )


def test_damaged_state_falls_back_to_the_older_checkpoint(data, tmp_path):
    recipe = make_recipe(data, "lm")
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "run", until=10)
    (tmp_path / "run" / "checkpoints" / "step-10" / "state.json").write_text("[]")
    assert TrainedRun.open(tmp_path / "run", which="last").step == 8
    callback = RecordingCallback()
    train(recipe, tmp_path / "run", callback=callback)
    assert callback.messages == ["ignoring the damaged checkpoint of step 10"]
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


@pytest.mark.parametrize("limit", [300, 1_000, 3_000, 8_000, 12_000])
def test_resumed_after_a_full_disk_with_the_same_bits(data, tmp_path, limit):
    """The limit on the size of files stops rows, checkpoints and other files at odd places."""
    recipe = make_recipe(data, "lm")
    train(recipe, tmp_path / "whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        with pytest.raises((UserError, OSError), match="File too large"):
            train(recipe, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / "run").rglob(".*.[0-9]*"))
    assert train(recipe, tmp_path / "run").ending == "done"
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")
    assert rows_without_speed(tmp_path / "run") == rows_without_speed(tmp_path / "whole")


def test_hand_edited_config_is_noticed_and_can_be_accepted(data, tmp_path):
    train(make_recipe(data, "lm"), tmp_path / "run")
    path = tmp_path / "run" / "config.yaml"
    replace_once(path, "lr: 0.01", "lr: 0.02")
    with pytest.raises(UserError, match=r"config.yaml has changed .* delete its first line"):
        TrainedRun.open(tmp_path / "run")
    path.write_text(path.read_text().partition("\n")[2])
    assert TrainedRun.open(tmp_path / "run").recipe.lr == 0.02


def test_tokenizer_of_an_interrupted_start_is_not_trusted(data, tmp_path):
    recipe = make_recipe(data, "lm")
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "run", until=0)
    for checkpoint in (tmp_path / "run" / "checkpoints").glob("step-*"):
        for path in checkpoint.iterdir():
            path.unlink()
        checkpoint.rmdir()
    path = tmp_path / "run" / "tokenizer.json"
    replace_once(path, '"5"', '"x"')
    train(recipe, tmp_path / "run")
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_long_run_logs_ever_more_rarely(data, tmp_path, monkeypatch):
    monkeypatch.setattr("addnorm.train.trainer.MAX_DENSE_LOGS", 4)
    monkeypatch.setattr("addnorm.measure.monitor.MAX_DENSE_STEPS", 2)
    keys = {"steps": 41, "monitor_every": 2, "valid_every": 0, "save_every": 9}
    recipe = make_recipe(data, "lm", **keys)
    train(recipe, tmp_path / "run")
    rows = rows_without_speed(tmp_path / "run")
    logged = [row["step"] for row in rows if row["name"] == "loss"]
    assert logged == [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 41]
    monitored = sorted({row["step"] for row in rows if row["name"] == "update_ratio"})
    assert monitored == [1, 2, 4, 6, 8, 12, 16, 24, 32]
    for until in (17, None):
        train(recipe, tmp_path / "parts", until=until)
    parts = [row for row in rows_without_speed(tmp_path / "parts") if row["name"] != "ended"]
    assert parts == [row for row in rows if row["name"] != "ended"]


def test_digest_covers_every_record(tmp_path):
    digests = set()
    for number, change in enumerate([None, "train", "valid"]):
        corpus = write_number_corpus(tmp_path / str(number), "lm")
        if change:
            record = next(corpus.records(change))["text"]
            replace_once(corpus.path(change), record, record[::-1])
        digests.add(Corpus.open(corpus.folder).digest)
    assert len(digests) == 3
