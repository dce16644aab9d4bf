"""Runs on whole documents: resuming, validation over the held-out text, generation, comparison."""

import json

import pytest

from addnorm.comparison.parse import parse_comparison
from addnorm.comparison.tasks.text_data import write_scored_records
from addnorm.core.rows import read_rows
from addnorm.data.corpus import CONTINUES, Corpus
from addnorm.data.corpus_builder import SplitPlan, build_corpus
from addnorm.data.readers import documents
from addnorm.data.record_counts import RecordCounts
from addnorm.data.splitting import HoldoutSize
from addnorm.decode.options import DecodingOptions
from addnorm.tasks import evaluate, generate_texts
from addnorm.train.trained_run import TrainedRun
from addnorm.train.trainer import train
from tests.train.cases import digest, make_recipe

TEXT = "ROMEO:\nWhat light?\n\nJULIET:\nNone.\n\n" * 40


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("document")
    (folder / "text").write_text(TEXT)
    counts = RecordCounts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE_CHARACTERS", 100)
        records = list(documents.read_document(folder / "text", errors="drop", counts=counts))
    plan = SplitPlan(
        valid=HoldoutSize(fraction=0.1), test=HoldoutSize(fraction=0.2), is_stream=True
    )
    return build_corpus(
        folder / "corpus",
        "lm",
        records_by_split={"train": records},
        counts=counts,
        plan=plan,
        about={},
    )


@pytest.fixture(scope="module")
def run_folder(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    train(make_recipe(corpus.folder, "lm"), folder)
    return folder


def test_resumed_run_ends_with_the_same_weights(corpus, run_folder, tmp_path):
    recipe = make_recipe(corpus.folder, "lm")
    train(recipe, tmp_path, until=5)
    train(recipe, tmp_path)
    assert digest(tmp_path) == digest(run_folder)


def test_validation_loss_is_that_of_the_whole_held_out_text(corpus, run_folder):
    rows = [r for r in read_rows(run_folder / "rows.jsonl") if r.get("split") == "valid"]
    losses = {row["step"]: row["value"] for row in rows if row["name"] == "loss"}
    run = TrainedRun.open(run_folder, which="last")
    metrics = evaluate(run, "valid")
    assert metrics["predicted"] == metrics["characters"] == len(TEXT) // 10
    assert metrics["loss"] == pytest.approx(losses[run.step], rel=1e-5)


def test_texts_continue_with_line_breaks(run_folder):
    run = TrainedRun.open(run_folder)
    [[text]] = generate_texts(run, ["ROMEO:\nWhat"], DecodingOptions(max_new=200, temperature=2.0))
    assert text.text.startswith("ROMEO:\nWhat") and "\n" in text.text[len("ROMEO:\nWhat") :]


def test_scored_records_of_a_comparison_stay_pieces(corpus, tmp_path):
    spec = parse_comparison({"task": "lm", "data": str(corpus.folder), "wiring": ["pre_ln"]})
    write_scored_records(spec, corpus, tmp_path)
    expected = list(corpus.records("test"))
    assert CONTINUES in expected[1] and list(Corpus.open(tmp_path).records("test")) == expected
    assert json.loads((tmp_path / "corpus.json").read_text())["counts"]["test"] == len(expected)
