"""Demo corpora: phrase pairs, Python's help topics and docstrings of the standard library."""

import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
from babel import Locale

from addnorm.core.errors import UnknownNameError, UserError
from addnorm.data.demo import classify, lm, translate
from addnorm.data.demo.datetimes import _has_same_fields, build_datetime_kinds
from addnorm.data.demo.list_phrases import build_listing
from addnorm.data.demo.phrases import Phrase, normalize_spaces, unambiguous_forms
from addnorm.tasks import get_task

SMALL = {"train": 1500, "valid": 60, "test": 60}
PAIRS = [
    ("en", "de"),
    ("en", "fr"),
    ("de", "ja"),
    ("en", "ar"),
    ("fr", "zh"),
    ("pt_BR", "en"),
]


def sources(splits, part):
    return [record["source"] for record in splits[part]]


@pytest.mark.parametrize("languages", PAIRS, ids="-".join)
def test_phrase_pairs(languages):
    splits, about = translate.make(0, languages, sizes=SMALL)
    records = [record for part in splits.values() for record in part]
    assert [len(splits["valid"]), len(splits["test"])] == [60, 60]
    assert len(splits["train"]) >= 1400
    assert len({record["source"] for record in records}) == len(records)  # splits do not overlap
    for record in records:
        for text in record.values():
            assert text and text == normalize_spaces(text) and len(text.splitlines()) == 1
    assert about["languages"] == list(languages)
    totals = sum((Counter(parts) for parts in about["phrases"].values()), Counter())
    assert totals == {part: len(chosen) for part, chosen in splits.items()}
    assert {"date", "time", "number", "currency", "unit", "name", "list"} <= set(about["phrases"])


@pytest.mark.slow
@pytest.mark.parametrize("languages", PAIRS, ids="-".join)
def test_source_has_one_target_across_seeds(languages):
    target = {}
    for seed in range(3):
        splits, _ = translate.make(seed, languages, sizes=SMALL)
        for record in splits["train"] + splits["valid"] + splits["test"]:
            assert target.setdefault(record["source"], record["target"]) == record["target"]


@pytest.mark.slow
def test_default_size_and_length():
    splits, _ = get_task("translate").make_demo()
    assert len(splits["train"]) >= 20_000 and len(splits["valid"]) == len(splits["test"]) == 500
    lengths = sorted(len(source.split()) for source in sources(splits, "train"))
    assert 5 <= lengths[len(lengths) // 2] <= 10


def test_known_translations():
    pair = (Locale("en"), Locale("de"))
    kinds = {kind.name: kind for kind in translate.build_phrase_kinds(pair)}
    moment = kinds["date"].sample(random.Random(0), ())
    moment = moment.replace(year=2024, month=5, day=5, hour=15, minute=5)

    def render(kind, form, value):
        phrase = kinds[kind].render_phrase(form, value, pair)
        return phrase.source, phrase.target

    assert render("date", ("length", "long"), moment) == ("May 5, 2024", "5. Mai 2024")
    assert render("time", ("short",), moment) == ("3:05 PM", "15:05")
    assert render("relative", ("day", "long"), -3) == ("3 days ago", "vor 3 Tagen")
    assert render("number", ("long",), 1_200_000) == ("1.2 million", "1,2 Millionen")
    assert render("currency", ("EUR", "name"), 3) == ("3 euros", "3 Euro")
    assert render("unit", ("length-mile", "long"), 1) == ("1 mile", "1 Meile")
    interval = moment, moment.replace(hour=18)
    assert render("interval", ("hm",), interval) == (
        "3:05 \u2013 6:05 PM",
        "15:05\u201318:05 Uhr",
    )
    names = {phrase.source: phrase.target for phrase in translate.name_pairs(pair)}
    assert names["Austria"] == "Österreich" and names["Tuesday"] == "Dienstag"


def test_held_out_phrases_consist_of_parts_seen_in_training():
    phrases = [Phrase(f"s{n}", f"t{n}", "k", ("often", f"group {n % 7}")) for n in range(400)]
    phrases[3] = Phrase("rare", "r", "k", ("often", "once"))
    parts = translate.split_phrases(phrases, valid=20, test=20)
    seen = Counter(part for phrase in parts["train"] for part in phrase.parts)
    held_out = parts["valid"] + parts["test"]
    assert len(held_out) == 40 and phrases[3] in parts["train"]
    assert all(
        seen[part] >= translate.MIN_TRAIN_OCCURRENCES
        for phrase in held_out
        for part in phrase.parts
    )
    assert sorted(p.source for p in held_out + parts["train"]) == sorted(p.source for p in phrases)


def test_source_with_two_targets_is_dropped():
    one, two, other = (Phrase(s, t, "k", ()) for s, t in (("a", "x"), ("a", "y"), ("b", "z")))
    assert translate._drop_ambiguous({"k": [one, two, other]}, []) == [other]


def test_ambiguous_and_lossy_forms_are_dropped():
    pair = (Locale("en"), Locale("es"))

    def render(form, value, locale):
        if form == ("missing",):
            raise KeyError(form)
        if locale.language == "en":
            return str(value // 10 if form == ("lossy",) else value)
        return f"{form[0] != 'same' and form[0]} {value}"

    forms = [("lossy",), ("missing",), ("first",), ("second",)]
    assert unambiguous_forms(pair, render, forms=forms, probes=[10, 11]) == [("first",)]


def test_abbreviated_spanish_months_are_dropped():
    kinds = {kind.name: kind for kind in build_datetime_kinds((Locale("en"), Locale("es")))}
    assert ("length", "long") in kinds["date"].forms
    assert ("skeleton", "yMMMd") not in kinds["date"].forms


def test_both_sides_have_the_same_fields(monkeypatch):
    patterns = {"en": "MMMM d, y", "de": "EEEE, d. MMMM y", "fr": "d LLLL y G"}
    monkeypatch.setattr(
        "addnorm.data.demo.datetimes.get_date_format",
        lambda length, locale: SimpleNamespace(pattern=patterns[locale.language]),
    )
    form = ("length", "long")
    assert not _has_same_fields((Locale("en"), Locale("de")), form)  # weekday on one side only
    assert _has_same_fields((Locale("en"), Locale("fr")), form)
    assert not _has_same_fields((Locale("en"), Locale("fr")), ("skeleton", "no such skeleton"))


def test_lists_have_equal_length_on_both_sides():
    pair = (Locale("en"), Locale("de"))
    kinds = {kind.name: kind for kind in build_datetime_kinds(pair)}
    lists = build_listing("list", [(kinds["date"], 1), (kinds["time"], 1)], pair)
    rng = random.Random(0)
    phrases = [phrase for _ in range(300) if (phrase := lists.sample_phrase(rng, pair))]
    assert len(phrases) > 50
    for phrase in phrases:
        english = re.split(", and |, or | and | or |, ", phrase.source)
        german = re.split(" und | oder |, ", phrase.target)
        assert 2 <= len(english) == len(german) <= 4


@pytest.mark.parametrize(
    "languages, message",
    [
        (("en", "en"), "languages: expected two different locales, got 'en' on both sides"),
        (("pt_BR", "pt-br"), "on both sides"),
        (("en", "german"), "unknown locale 'german'; did you mean 'de'? Expected one of the "),
        (("en", "de_XX"), "unknown locale 'de_XX'; did you mean 'de"),
        (("", "de"), "unknown locale ''; expected one of the "),
        (("en",), "languages: expected two locales, got ('en',)"),
        ("en", "languages: expected two locales, got 'en'; try languages=('en', 'de')"),
    ],
)
def test_invalid_languages_are_rejected(languages, message):
    with pytest.raises(UserError) as problem:
        get_task("translate").make_demo(languages=languages)
    assert message in str(problem.value) and "\n" not in str(problem.value)


def test_locales_with_too_few_phrases_are_rejected(monkeypatch):
    monkeypatch.setattr(translate, "build_phrase_kinds", lambda pair: [])
    with pytest.raises(UserError, match="1000 common phrases, got 177 for en and de"):
        get_task("translate").make_demo()


def test_unknown_task_is_rejected():
    with pytest.raises(UnknownNameError, match="unknown task 'translat'; did you mean 'translate'"):
        get_task("translat").make_demo()


def test_topics_are_complete_and_splits_share_no_paragraph():
    splits, about = get_task("lm").make_demo()
    texts = {part: [record["text"] for record in splits[part]] for part in splits}
    paragraphs = {
        part: {" ".join(p.split()) for text in texts[part] for p in text.split("\n\n")}
        for part in texts
    }
    for one, two in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert all(
            len(text) < lm.MIN_SHARED_CHARACTERS for text in paragraphs[one] & paragraphs[two]
        )
    from pydoc_data.topics import topics

    def lines(text):
        return [line.rstrip() for line in text.strip("\n").splitlines()]

    every = [lines(text) for part in texts.values() for text in part]
    assert sorted(every) == sorted(lines(text) for text in topics.values())
    total = sum(about["characters"].values())
    assert 0.8 < about["characters"]["train"] / total < 0.97
    assert about["characters"]["valid"] and about["characters"]["test"]
    assert about["python"] == ".".join(map(str, sys.version_info[:3]))


def test_missing_topics_module_is_rejected(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match=r"no pydoc_data\.topics, the text of the lm demo; try"):
        get_task("lm").make_demo()


def write_library(folder, packages):
    """Write packages with the given numbers of docstrings, and files that the reader ignores."""
    for name, count in packages.items():
        (folder / name).mkdir(parents=True)
        body = "".join(
            f'def f{n}():\n    """Docstring {n} of\n    {name}, the end."""\n\n'
            for n in range(count)
        )
        (folder / name / "code.py").write_text(
            '"""The same text in all of these packages."""\n'
            'def short():\n    """Too short."""\n' + body + "raise SystemExit('imported')\n"
        )
        (folder / name / "again.py").write_text(body)
        (folder / name / "broken.py").write_text("def (:")
    for name in ("test", "site-packages"):
        (folder / name).mkdir()
        (folder / name / "code.py").write_text(
            (folder / next(iter(packages)) / "code.py").read_text()
        )
    return folder


def test_docstrings_by_package(tmp_path):
    folder = write_library(tmp_path, {"email": 120, "json": 100, "small": 99})
    splits, about = classify.make(0, folder=folder)
    assert {part: len(records) for part, records in splits.items()} == {
        "train": 176,
        "valid": 22,
        "test": 22,
    }
    for part, share in (("train", 96), ("valid", 12), ("test", 12)):
        assert Counter(r["label"] for r in splits[part]) == {"email": share, "json": share * 5 // 6}
    texts = [record["text"] for records in splits.values() for record in records]
    assert len(set(texts)) == len(texts)
    assert "Docstring 7 of json, the end." in texts
    assert about["classes"] == {"email": 120, "json": 100}
    assert about["majority"] == {"label": "email", "share": 0.5455}
    assert about["shared_texts_left_out"] == 1


def test_library_without_sources_is_rejected(tmp_path, monkeypatch):
    stub = SimpleNamespace(get_path=lambda name: str(tmp_path / "python311.zip"))
    monkeypatch.setattr(classify, "sysconfig", stub)
    with pytest.raises(UserError) as problem:
        get_task("classify").make_demo()
    assert "expected at least 2 packages with 100 or more docstrings, got 0" in str(problem.value)
    assert "zipped, compiled or stripped" in str(problem.value)


@pytest.mark.slow
def test_docstrings_of_running_python():
    splits, about = get_task("classify").make_demo()
    assert len(about["classes"]) >= 10 and sum(about["classes"].values()) >= 2500
    assert about["majority"]["share"] < 0.3
    for records in splits.values():
        assert {record["label"] for record in records} == set(about["classes"])
        assert all(len(record["text"].split()) >= 5 for record in records)
        assert all(len(record["text"].splitlines()) == 1 for record in records)


def test_seed_changes_selection(tmp_path):
    folder = write_library(tmp_path, {"email": 120, "json": 100})
    for make in (lm.make, lambda seed: classify.make(seed, folder=folder)):
        assert make(1) == make(1)
        assert make(1)[0]["test"] != make(2)[0]["test"]


@pytest.mark.slow
def test_seed_changes_phrases():
    one, two = (translate.make(seed, ("en", "de"), sizes=SMALL)[0] for seed in (1, 2))
    assert len(set(sources(one, "train")) & set(sources(two, "train"))) < 800


SCRIPT = """
import hashlib, json
from addnorm.data.demo import lm, translate
sizes = {"train": 1500, "valid": 60, "test": 60}
corpora = [translate.make(3, ("en", "de"), sizes=sizes), lm.make(3)]
print(hashlib.sha256(json.dumps(corpora).encode()).hexdigest())
"""


@pytest.mark.slow
def test_corpora_do_not_depend_on_environment():
    corpora = [translate.make(3, ("en", "de"), sizes=SMALL), lm.make(3)]
    expected = hashlib.sha256(json.dumps(corpora).encode()).hexdigest()
    for hashseed, zone, language in (
        ("1", "Asia/Tokyo", "C"),
        ("77", "America/Lima", "de_DE.UTF-8"),
    ):
        process = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ
            | {"PYTHONHASHSEED": hashseed, "TZ": zone, "LC_ALL": language, "LANG": language},
            capture_output=True,
            text=True,
            check=True,
        )
        assert process.stdout.strip() == expected
