"""Corpus builder: splits, duplicates, output folders and interrupted builds."""

import json
import subprocess
import sys

import pytest

from addnorm.core.errors import UserError
from addnorm.core.files import HOST
from addnorm.data.corpus import Corpus
from addnorm.data.corpus_builder import SPOOL_FOLDER, SplitPlan, build_corpus, check_output_folder
from addnorm.data.record_counts import RecordCounts
from addnorm.data.splitting import HoldoutSize

NONE = HoldoutSize(count=0)


def pairs(*numbers):
    return [{"source": f"source {n}", "target": f"Ziel {n}\u2028\u00e4"} for n in numbers]


def build(folder, parts, *, task="translate", **plan):
    counts = RecordCounts()
    counts.add_read(sum(map(len, parts.values())))
    plan = SplitPlan(**{"valid": NONE, "test": NONE, **plan})
    about = {"source": "test"}
    return build_corpus(
        folder, task, records_by_split=parts, counts=counts, plan=plan, about=about
    ), counts


def test_given_splits_are_kept(tmp_path):
    parts = {"train": pairs(1, 2, 3), "valid": pairs(4), "test": pairs(5, 6)}
    corpus, counts = build(tmp_path / "corpus", parts)
    opened = Corpus.open(tmp_path / "corpus")
    assert {split: list(opened.records(split)) for split in parts} == parts
    assert corpus.counts == opened.counts == {"train": 3, "valid": 1, "test": 2}
    assert opened.about["report"] == counts.to_dict()
    assert opened.about["source"] == "test" and opened.about["seed"] == 0
    assert sorted(path.name for path in (tmp_path / "corpus").iterdir()) == [
        *("corpus.json", "test.jsonl", "train.jsonl", "valid.jsonl")
    ]


def test_missing_splits_are_held_out_by_sentence_in_order(tmp_path):
    records = [{"source": f"S {n // 2}", "target": str(n)} for n in range(400)]
    records = [
        r | {"source": r["source"].upper() if n % 2 else r["source"]} for n, r in enumerate(records)
    ]
    corpus, _ = build(
        tmp_path, {"train": records}, valid=HoldoutSize(count=20), test=HoldoutSize(count=40)
    )
    splits = {split: list(corpus.records(split)) for split in corpus.counts}
    assert corpus.counts == {"train": 340, "valid": 20, "test": 40}
    sources = {split: {r["source"].lower() for r in split_} for split, split_ in splits.items()}
    assert not sources["train"] & sources["valid"] | sources["valid"] & sources["test"]
    for split in splits.values():
        assert [int(r["target"]) for r in split] == sorted(int(r["target"]) for r in split)


def test_files_depend_on_input_and_seed_only(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        build(
            tmp_path / name,
            {"train": pairs(*range(100))},
            valid=HoldoutSize(),
            test=HoldoutSize(),
            seed=seed,
        )
    files = {
        name: [(tmp_path / name / file).read_bytes() for file in ("valid.jsonl", "corpus.json")]
        for name in "abc"
    }
    assert files["a"] == files["b"] != files["c"]
    assert files["a"][0] != files["c"][0]


def test_unique_drops_duplicates_across_splits(tmp_path):
    parts = {"train": pairs(1, 2, 1, 3), "test": pairs(3)}
    corpus, counts = build(tmp_path, parts, unique=True)
    assert corpus.counts == {"train": 2, "test": 1}
    assert counts.dropped == {"duplicate": 2}


def test_train_sentences_in_held_out_splits_are_counted(tmp_path):
    _, counts = build(tmp_path, {"train": pairs(1, 2, 1), "valid": pairs(1)})
    assert counts.notes == {"train records whose sentence is in the given valid or test": 2}


def test_empty_training_split_is_rejected_without_output(tmp_path):
    with pytest.raises(UserError, match=r"an empty corpus: expected .* got none of 0 \(no text\)"):
        build(tmp_path / "new", {"train": []})
    with pytest.raises(UserError, match="all 9 are held out, because records with the same sent"):
        build(tmp_path / "new", {"train": pairs(*[1] * 9)}, valid=HoldoutSize(), test=HoldoutSize())
    assert list(tmp_path.iterdir()) == []


def test_failed_build_keeps_previous_corpus(tmp_path):
    build(tmp_path, {"train": pairs(1, 2)})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def broken():
        yield from pairs(7)
        raise UserError("a bad line")

    with pytest.raises(UserError, match="a bad line"):
        build_corpus(
            *(tmp_path, "translate"),
            records_by_split={"train": broken()},
            counts=RecordCounts(),
            plan=SplitPlan(),
            about={},
        )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_rebuild_removes_splits_of_previous_corpus(tmp_path):
    build(tmp_path, {"train": pairs(1), "test": pairs(2)})
    build(tmp_path, {"train": pairs(3)})
    assert not (tmp_path / "test.jsonl").exists()
    assert json.loads((tmp_path / "corpus.json").read_text())["counts"] == {"train": 1}


def test_output_folder_must_be_new_or_empty_unless_forced(tmp_path):
    check_output_folder(tmp_path / "new")
    check_output_folder(tmp_path)
    (tmp_path / SPOOL_FOLDER).mkdir()  # left by a killed run
    check_output_folder(tmp_path)
    build(tmp_path, {"train": pairs(1)})
    with pytest.raises(UserError, match="already contains a corpus; use --force to replace it"):
        check_output_folder(tmp_path)
    check_output_folder(tmp_path, force=True)
    (tmp_path / "corpus.json").unlink()
    for force in (False, True):
        with pytest.raises(UserError, match="which contains other files"):
            check_output_folder(tmp_path, force=force)
    with pytest.raises(UserError, match=r"expected a new or empty folder, got .*, which is a file"):
        check_output_folder(tmp_path / "train.jsonl")


def test_leftovers_of_an_interrupted_build_are_accepted(tmp_path):
    (tmp_path / SPOOL_FOLDER).mkdir()
    for name in (".corpus.json.123", ".train.jsonl.123", "train.jsonl", "valid.jsonl"):
        (tmp_path / name).write_text("")
    check_output_folder(tmp_path)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="contains other files"):
        check_output_folder(tmp_path)


def test_unwritable_output_folder_is_rejected(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    message = "got .*deep, which cannot be made, .*file is a file"
    with pytest.raises(UserError, match=message):
        check_output_folder(tmp_path / "file" / "deep")
    checked_paths = []
    monkeypatch.setattr("os.access", lambda path, mode: checked_paths.append(path))
    with pytest.raises(UserError, match=r"expected a writable folder, got .*b; .* is read-only"):
        check_output_folder(tmp_path / "a" / "b")
    assert checked_paths == [tmp_path]  # the nearest existing ancestor


def test_empty_given_split_is_rejected_without_output(tmp_path):
    with pytest.raises(UserError, match=r"test: expected at least one usable record .* --test 0"):
        build(tmp_path / "corpus", {"train": pairs(1), "test": []})
    assert not (tmp_path / "corpus").exists()


def test_inconsistent_counts_raise_assertion_error():
    counts = RecordCounts()
    counts.add_read(3)
    counts.drop("empty", number=2)
    with pytest.raises(AssertionError, match="a record was lost"):
        counts.to_dict()


def test_leftovers_of_a_killed_build_are_removed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    owner = f"{HOST}-{process.pid}"
    for name in ("train.jsonl", "valid.jsonl", "test.jsonl", "corpus.json"):
        (tmp_path / f".{name}.{owner}").write_text("half")
    check_output_folder(tmp_path)
    build(tmp_path, {"train": pairs(1)})
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.json", "train.jsonl"}


def test_killed_build_leaves_nothing_after_the_next_one(tmp_path):
    code = (
        "import os, signal, sys; from addnorm.data.corpus import write_corpus\n"
        "def records():\n"
        "    yield {'text': 'a'}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_corpus(sys.argv[1], 'lm', splits={'train': [{'text': 'b'}], 'valid': records()})\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert len(list(tmp_path.iterdir())) == 2  # temporary files of train and valid
    build(tmp_path, {"train": pairs(1)})
    assert {path.name for path in tmp_path.iterdir()} == {"corpus.json", "train.jsonl"}
