"""`addnorm data`: corpora from every source, consistent counts and one-line errors."""

import gzip
import json

import pytest
import typer

from addnorm.cli import main as commands
from addnorm.cli.commands.data import data as group
from addnorm.data.corpus import Corpus


@pytest.fixture
def data(addnorm, tmp_path, monkeypatch):
    """Return a function that runs `addnorm data` in a temporary folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: addnorm("data", *map(str, arguments))


@pytest.fixture
def pair_options(tmp_path):
    """Write two parallel files of 100 lines and return the options that name them."""
    for name, word in (("train.en", "word"), ("train.de", "Wort")):
        (tmp_path / name).write_text("".join(f"{word} {n}\n" for n in range(100)))
    return ("--source", "train.en", "--target", "train.de")


def records(folder, split="train"):
    return list(Corpus.open(folder).records(split))


def check_counts(report):
    assert report["read"] == sum(report["kept"].values()) + sum(report["dropped"].values())
    assert report["kept"] == report["counts"]
    return report


def test_pairs_of_files_are_split_and_reported(data, pair_options):
    result = data(
        "files",
        *pair_options,
        "--source-lang",
        "en",
        "--target-lang",
        "de",
        "-o",
        "corpus",
        "--json",
    )
    assert result.code == 0
    report = check_counts(json.loads(result.out))
    assert report["counts"] == {"train": 90, "valid": 5, "test": 5}
    corpus = Corpus.open("corpus", "translate")
    assert corpus.about["languages"] == ["en", "de"]
    assert corpus.about["files"] == {"train": ["train.en", "train.de"]}
    everything = [r for split in corpus.counts for r in corpus.records(split)]
    assert sorted(int(r["source"].split()[1]) for r in everything) == list(range(100))
    assert all(r["source"].split()[1] == r["target"].split()[1] for r in everything)


def test_report_goes_to_standard_error(data, pair_options):
    result = data("files", *pair_options, "--valid", "7", "--test", "0", "-o", "corpus")
    assert (result.code, result.out) == (0, "")
    lines = [" ".join(line.split()) for line in result.err.splitlines()]
    assert lines == [
        *("addnorm: a corpus for 'translate' in corpus", "read 100", "kept, train 93"),
        "kept, valid 7",
    ]


def test_given_splits_and_compressed_files(data, pair_options, tmp_path):
    (tmp_path / "test.en").write_bytes(gzip.compress(b"word\n\nlast\n"))
    (tmp_path / "test.de").write_bytes(b"Wort\nleer\nletztes\n")
    result = data(
        *("files", *pair_options, "--valid", "0.1"),
        *("--test-source", "test.en", "--test-target", "test.de"),
        *("-o", "corpus", "--json"),
    )
    report = check_counts(json.loads(result.out))
    assert report["dropped"] == {"empty": 1} and report["first"] == {"empty": "test.en, line 2"}
    assert [r["target"] for r in records("corpus", "test")] == ["Wort", "letztes"]


def test_equal_commands_write_equal_bytes(data, pair_options, tmp_path):
    contents = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        data("files", *pair_options, "--seed", seed, "-o", name)
        contents.append([path.read_bytes() for path in sorted((tmp_path / name).iterdir())])
    assert contents[0] == contents[1] != contents[2]


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (("--lines",), ["one", "two", "three"]),
        (("--task", "mlm"), ["one", "two", "three"]),
        (("--paragraphs",), ["one\ntwo", "three"]),
        (("--document",), ["one\ntwo\n\nthree\n"]),
        (("--document", "--task", "mlm"), ["one\ntwo\n\nthree\n"]),
        ((), ["one\ntwo\n\nthree\n"]),
    ],
)
def test_unit_of_a_text(data, tmp_path, options, texts):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n")
    data("files", "--text", "a.txt", "--valid", 0, "--test", 0, *options, "-o", "corpus")
    assert [r["text"] for r in records("corpus")] == texts


def test_the_end_of_several_documents_is_held_out(data, tmp_path):
    (tmp_path / "a.txt").write_text("ab\n" * 10)
    (tmp_path / "b.txt").write_text("")
    (tmp_path / "c.txt").write_text("cd\n" * 10)
    texts = ("--text", "a.txt", "--text", "b.txt", "--text", "c.txt")
    result = data("files", *texts, "--valid", "0.25", "--test", 6, "-o", "corpus", "--json")
    report = check_counts(json.loads(result.out))
    assert report["dropped"] == {"empty": 1} and report["first"] == {"empty": "b.txt"}
    assert report["notes"] == {
        "documents": 2,
        **{"characters, train": 39, "characters, valid": 15, "characters, test": 6},
    }
    assert [r["text"] for r in records("corpus")] == ["ab\n" * 10, "cd\n" * 3]
    assert [r["text"] for r in records("corpus", "valid")] == ["cd\n" * 5]
    assert [r["text"] for r in records("corpus", "test")] == ["cd\n" * 2]


def test_columns_with_held_out_file_and_size(data, tmp_path):
    (tmp_path / "a.tsv").write_text("".join(f"text {n}\t{'ab'[n % 2]}\n" for n in range(50)))
    (tmp_path / "b.tsv").write_text("held out\tb\n")
    result = data(
        *("columns", "a.tsv", "--text", 0, "--label", 1, "--test", "b.tsv", "--valid", 5),
        *("-o", "corpus", "--json"),
    )
    assert check_counts(json.loads(result.out))["counts"] == {"train": 45, "valid": 5, "test": 1}
    assert Corpus.open("corpus", "classify").labels == ("a", "b")
    assert records("corpus", "test") == [{"text": "held out", "label": "b"}]


@pytest.mark.parametrize("task", ["translate", "lm", "classify", "mlm"])
def test_demo_corpora(data, monkeypatch, task):
    record = {
        "translate": {"source": "one", "target": "eins"},
        "lm": {"text": "one\ntwo"},
        "mlm": {"text": "one\ntwo"},
        "classify": {"text": "one", "label": "x"},
    }[task]

    def make_demo(self, *, seed, languages):
        facts = {"languages": list(languages)}
        return {split: [record] * seed for split in ("train", "valid", "test")}, facts

    monkeypatch.setattr("addnorm.tasks.TextTask.make_demo", make_demo)
    result = data(
        "demo", "--task", task, "--target-lang", "fr", "--seed", 3, "-o", "corpus", "--json"
    )
    assert check_counts(json.loads(result.out))["counts"] == {"train": 3, "valid": 3, "test": 3}
    assert records("corpus") == [record] * 3
    assert Corpus.open("corpus", task).about["languages"] == ["en", "fr"]


FILES = ("files", "--source", "train.en", "--target", "train.de", "-o", "corpus")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("files", "-o", "corpus"),
            "--target for translation, or --text for a language model, got none",
        ),
        (
            ("files", "--source", "train", "--target", "train.de", "-o", "c"),
            "train: expected a file, plain, .gz or .xz, got no such file; did you mean train.",
        ),
        (
            ("files", "--source", "train.en", "--target", "no/x", "-o", "c"),
            "no/x: expected a file, plain, .gz or .xz, got no such file; the folder no does",
        ),
        (
            ("files", "--text", "zzz", "-o", "c"),
            "zzz: expected a file, plain, .gz or .xz, got no such file; check the spelling",
        ),
        (
            ("files", "--text", "short", "--valid-text", "nothing", "-o", "c"),
            "nothing: expected a file, plain, .gz or .xz, got no such file",
        ),
        (
            ("files", "--source", ".", "--target", "train.de", "-o", "c"),
            ".: expected a file, plain, .gz or .xz, got a folder; name a file in it",
        ),
        (
            ("files", "--text", "train.en", "--valid-text", "empty", "-o", "c"),
            "valid: expected at least one usable record in its file, got none; leave the file out "
            "to hold out part of train, or use --valid 0",
        ),
        (
            ("files", "--text", "train.en", "--valid", "5", "--valid-text", "short", "-o", "c"),
            "--valid: expected a size or a file, got both (5); leave one out",
        ),
        (
            ("files", "--valid-text", "short", "-o", "c"),
            "expected --text for training, got held-out files only",
        ),
        (("files", "--text", "short", "-o", "short/c"), "got short/c, which cannot be made, /"),
        (("files", "--text", "short", "-o", "nowhere"), "got nowhere, which is a broken link"),
        (
            ("files", "--text", "short", "-o", "/proc/c"),
            "cannot write to /proc/c (No such file or",
        ),
        (
            (*FILES, "--valid", "0.6", "--test", "0.6"),
            "--valid and --test: expected fractions with a sum below 1, got 0.6 and 0.6; try",
        ),
        ((*FILES, "--paragraphs"), "--paragraphs: expected with --text only, got it with --source"),
        (
            ("files", "--source", "short", "--target", "train.de", "-o", "c"),
            "got short with 1 and train.de with 100",
        ),
        (
            ("files", "--text", "empty", "-o", "c"),
            "an empty corpus: expected at least one record with text, got none of 1 (empty 1); see",
        ),
        (
            ("files", "--text", "latin", "-o", "c"),
            "expected at least one record with text, got none of 1 (invalid UTF-8 1); see latin, "
            "line 1, and use iconv if it has another encoding",
        ),
        (
            ("files", "--text", "short", "--lines", "--document", "-o", "c"),
            "expected --lines, --paragraphs or --document, got --lines and --document; keep one",
        ),
        (
            ("files", "--text", "short", "--unique", "-o", "c"),
            "--unique: expected with separate texts, got it with --document; leave it out",
        ),
        (
            ("files", "--text", "short", "--valid", "0.5", "--test", "5", "-o", "c"),
            "--valid and --test: expected fewer than 9 characters, got 10; none is left",
        ),
        (
            ("files", "--text", "short", "--valid", "4", "--test", "5", "-o", "c"),
            "--valid and --test: expected fewer than 9 characters, got 9; none is left",
        ),
        ((*FILES, "--document"), "--document: expected with --text only, got it with --source"),
        ((*FILES, "--valid", "lots"), "--valid: expected a number of records such as 500"),
        ((*FILES, "--valid", "99", "--test", "9"), "expected fewer than 100 records, got 108"),
        (
            (*FILES, "--errors", "ignore"),
            "unknown --errors 'ignore'; expected one of drop, replace, str",
        ),
        (
            (*FILES, "--text", "short"),
            "--target for translation, or --text for a language model, got both",
        ),
        (("files", "--text", "short", "-o", "full"), "got full, which contains other files"),
        (("files", "--text", "short", "-o", "short"), "got short, which is a file"),
        (("files", "--text", "short"), "Missing option '--out'"),
        (("files", "--text", "cut.gz", "-o", "c"), "cut.gz is damaged or truncated"),
        (
            ("files", "--text", "latin", "--errors", "strict", "-o", "c"),
            "latin, line 1: expected UTF-8",
        ),
        (
            ("columns", "no.tsv", "--text", "0", "-o", "c"),
            "no.tsv: expected a file, plain, .gz or .xz, got no such file",
        ),
        (
            ("columns", "a.tsv", "--label", "0", "-o", "c"),
            "columns: expected text and label or text or source and target, got label",
        ),
        (
            ("columns", "a.tsv", "--text", "x", "-o", "c"),
            "unknown column 'x'; expected one of one, two",
        ),
        (
            ("columns", "full", "--text", "x", "-o", "c"),
            "full: expected a folder saved by `datasets`",
        ),
        (("columns", "b.tsv", "--text", "0", "-o", "c"), "b.tsv: expected a file"),
        (("columns", "no", "--text", "0", "-o", "c"), "no: expected a file, plain"),
        (
            ("columns", "saved", "--text", "x", "-o", "c"),
            "saved/gone.arrow: expected a file",
        ),
        (
            ("columns", "a.tsv", "--text", "one", "--valid", "lots", "-o", "c"),
            "--valid: expected a table, a number of records such as 500, or a fraction",
        ),
        (
            ("columns", "a.tsv", "--text", "one", "--test", "full", "-o", "c"),
            "0.05, got 'full', which is a folder",
        ),
        (
            ("columns", "a.jsonl", "--text", "txt", "-o", "c"),
            "a.jsonl: unknown column 'txt'; did you mean 'text'? Expected one of text, more\n",
        ),
        (
            ("columns", "list.json", "--text", "x", "-o", "c"),
            "expected JSON lines, one object per line, got a list; try jq -c '.[]'",
        ),
        (
            ("columns", "broken.csv", "--text", "0", "-o", "c"),
            "broken.csv, line 1: not CSV (new-line character seen in unquoted field); use --form",
        ),
        (
            ("demo", "--task", "sing", "-o", "c"),
            "unknown task 'sing'; expected one of classify, lm, mlm, translate",
        ),
        ((), "Missing command; try 'addnorm data --help'"),
        (("file",), "No such command 'file'"),
    ],
)
def test_invalid_arguments_are_one_line_errors_without_output(
    data, pair_options, tmp_path, arguments, message
):
    (tmp_path / "short").write_text("one line\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "latin").write_bytes("gr\u00f6\u00dfe\n".encode("latin-1"))
    (tmp_path / "a.tsv").write_text("one\ttwo\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(bytes(range(256)) * 50)[:100])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "gone.arrow"}]}')
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"more": "b"}\n')
    (tmp_path / "list.json").write_text('[{"x": 1}]')
    (tmp_path / "broken.csv").write_text("a\rb\n")
    (tmp_path / "nowhere").symlink_to("nothing")
    before = sorted(tmp_path.rglob("*"))
    result = data(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("addnorm: ") and result.err.count("\n") == 1
    assert message in result.err
    assert sorted(tmp_path.rglob("*")) == before


def test_corpus_is_replaced_only_with_force(data, pair_options, tmp_path):
    assert data(*FILES).code == 0
    card = (tmp_path / "corpus" / "corpus.json").read_bytes()
    result = data(*FILES, "--test", "0")
    assert result.code == 2 and "already contains a corpus; use --force to replace it" in result.err
    assert (tmp_path / "corpus" / "corpus.json").read_bytes() == card
    assert data(*FILES, "--test", "0", "--force").code == 0
    assert set(Corpus.open("corpus").counts) == {"train", "valid"}
    assert not (tmp_path / "corpus" / "test.jsonl").exists()


def test_help_names_every_source(data):
    result = data("--help")
    assert result.code == 0
    for verb in ("files", "columns", "demo"):
        assert verb in result.out
        assert data(verb, "--help").code == 0


def test_data_is_a_command_group():
    assert isinstance(group, typer.Typer)
    assert commands.COMMANDS["data"] is group


@pytest.mark.slow
def test_memory_does_not_grow_with_file_size(tmp_path):
    """Five times as many lines need about the same peak memory, traced by tracemalloc."""
    import tracemalloc

    from addnorm.cli.main import main

    peaks = []
    for size in (4_000, 20_000):
        for name in ("a", "b"):
            with (tmp_path / name).open("w") as file:
                file.writelines(f"{name} {n} {'word ' * 20}\n" for n in range(size))
        out = tmp_path / str(size)
        tracemalloc.start()
        try:
            arguments = [
                "--source",
                str(tmp_path / "a"),
                "--target",
                str(tmp_path / "b"),
                "-o",
                str(out),
            ]
            assert main(["data", "files", *arguments, "--valid", "500", "--test", "500"]) == 0
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0] + 1_000_000
