"""From records to a corpus: what is written, what is not, and what is left behind."""

import json

import pytest

from addnorm.core.errors import UserError
from addnorm.data.corpus import Corpus
from addnorm.data.corpus_builder import SPOOL_FOLDER, SplitPlan, build_corpus, check_output_folder
from addnorm.data.record_counts import RecordCounts
from addnorm.data.splitting import HoldoutSize

NONE = HoldoutSize(count=0)


def pairs(*numbers):
    return [{"source": f"source {n}", "target": f"Ziel {n}\u2028\u00e4"} for n in numbers]


def made(folder, parts, *, task="translate", **plan):
    counts = RecordCounts()
    counts.add_read(sum(map(len, parts.values())))
    plan = SplitPlan(**{"valid": NONE, "test": NONE, **plan})
    about = {"source": "test"}
    return build_corpus(
        folder, task, records_by_split=parts, counts=counts, plan=plan, about=about
    ), counts


def test_parts_that_are_given_stay_as_they_are(tmp_path):
    parts = {"train": pairs(1, 2, 3), "valid": pairs(4), "test": pairs(5, 6)}
    corpus, counts = made(tmp_path / "corpus", parts)
    opened = Corpus.open(tmp_path / "corpus")
    assert {split: list(opened.records(split)) for split in parts} == parts
    assert corpus.counts == opened.counts == {"train": 3, "valid": 1, "test": 2}
    assert opened.about["report"] == counts.to_dict()
    assert opened.about["source"] == "test" and opened.about["seed"] == 0
    assert sorted(path.name for path in (tmp_path / "corpus").iterdir()) == [
        *("corpus.json", "test.jsonl", "train.jsonl", "valid.jsonl")
    ]


def test_what_is_missing_is_split_off_by_sentence_in_the_given_order(tmp_path):
    records = [{"source": f"S {n // 2}", "target": str(n)} for n in range(400)]
    records = [
        r | {"source": r["source"].upper() if n % 2 else r["source"]} for n, r in enumerate(records)
    ]
    corpus, _ = made(
        tmp_path, {"train": records}, valid=HoldoutSize(count=20), test=HoldoutSize(count=40)
    )
    splits = {split: list(corpus.records(split)) for split in corpus.counts}
    assert corpus.counts == {"train": 340, "valid": 20, "test": 40}
    sources = {split: {r["source"].lower() for r in split_} for split, split_ in splits.items()}
    assert not sources["train"] & sources["valid"] | sources["valid"] & sources["test"]
    for split in splits.values():
        assert [int(r["target"]) for r in split] == sorted(int(r["target"]) for r in split)


def test_equal_input_and_seed_give_equal_bytes_and_another_seed_others(tmp_path):
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        made(
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


def test_records_that_come_twice_go_if_asked_across_parts(tmp_path):
    parts = {"train": pairs(1, 2, 1, 3), "test": pairs(3)}
    corpus, counts = made(tmp_path, parts, unique=True)
    assert corpus.counts == {"train": 2, "test": 1}
    assert counts.dropped == {"duplicate": 2}


def test_sentences_of_train_that_are_held_out_too_are_told(tmp_path):
    _, counts = made(tmp_path, {"train": pairs(1, 2, 1), "valid": pairs(1)})
    assert counts.notes == {"train records whose sentence is in the given valid or test": 2}


def test_nothing_to_train_on_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match=r"an empty corpus: expected .* got none of 0 \(no text\)"):
        made(tmp_path / "new", {"train": []})
    with pytest.raises(UserError, match="all 9 are held out, because records with the same sent"):
        made(tmp_path / "new", {"train": pairs(*[1] * 9)}, valid=HoldoutSize(), test=HoldoutSize())
    assert list(tmp_path.iterdir()) == []


def test_an_error_on_the_way_leaves_the_old_corpus_alone(tmp_path):
    made(tmp_path, {"train": pairs(1, 2)})
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


def test_a_part_of_the_corpus_before_does_not_survive(tmp_path):
    made(tmp_path, {"train": pairs(1), "test": pairs(2)})
    made(tmp_path, {"train": pairs(3)})
    assert not (tmp_path / "test.jsonl").exists()
    assert json.loads((tmp_path / "corpus.json").read_text())["counts"] == {"train": 1}


def test_only_new_and_empty_folders_are_written_to_and_corpora_by_force(tmp_path):
    check_output_folder(tmp_path / "new")
    check_output_folder(tmp_path)
    (tmp_path / SPOOL_FOLDER).mkdir()  # left by a killed run
    check_output_folder(tmp_path)
    made(tmp_path, {"train": pairs(1)})
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


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_is_read(
    tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    words = "got .*deep, which cannot be made, .*file is a file"
    with pytest.raises(UserError, match=words):
        check_output_folder(tmp_path / "file" / "deep")
    asked = []
    monkeypatch.setattr("os.access", lambda path, mode: asked.append(path))
    with pytest.raises(UserError, match=r"expected a writable folder, got .*b; .* is read-only"):
        check_output_folder(tmp_path / "a" / "b")
    assert asked == [tmp_path]  # the nearest that is there


def test_a_given_part_without_a_record_is_refused_and_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match=r"test: expected at least one usable record .* --test 0"):
        made(tmp_path / "corpus", {"train": pairs(1), "test": []})
    assert not (tmp_path / "corpus").exists()


def test_a_tally_that_does_not_add_up_is_a_bug():
    counts = RecordCounts()
    counts.add_read(3)
    counts.drop("empty", number=2)
    with pytest.raises(AssertionError, match="a record was lost"):
        counts.to_dict()
