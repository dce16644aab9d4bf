"""Claims on real data: what they read, and what happens without the data."""

import gzip
import lzma

import pytest

from addnorm.claims import ClaimsCallback, registry, run_claims
from addnorm.claims.external_datasets import (
    CALIFORNIA,
    CORPORA,
    find_missing_data,
    make_external_corpus,
    read_california,
)
from addnorm.claims.table_datasets import TABLES
from addnorm.core.errors import UserError
from addnorm.data.corpus import Corpus

REAL = ["deep_post_ln_fails_on_multi30k", "ft_transformer_first_norm_on_california"]
REAL += ["post_ln_needs_warmup_on_multi30k", "rms_norm_equals_layer_norm_on_wikitext"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Return a folder with a few lines of every external data set."""
    folder = tmp_path / "external"
    for corpus in CORPORA.values():
        for name in corpus.files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = gzip.open if path.suffix == ".gz" else lzma.open
            with opened(path, "wt", encoding="utf-8") as file:
                file.write(" = Heading = \n\n A dog runs . \n Zwei Hunde \n")
    (folder / CALIFORNIA).parent.mkdir(parents=True)
    with gzip.open(folder / CALIFORNIA, "wt") as file:
        file.write("longitude,median_house_value,ocean_proximity\n-1.5,100,INLAND\n")
    monkeypatch.setenv("ADDNORM_DATA", str(folder))
    return folder


def test_corpora_are_read_from_the_data_folder(data, tmp_path):
    pairs = Corpus.open(make_external_corpus(tmp_path, "multi30k"), "translate")
    assert pairs.counts == {"train": 4, "valid": 4}
    text = Corpus.open(make_external_corpus(tmp_path, "wikitext-2"), "lm")
    assert [record["text"] for record in text.records("train")] == ["A dog runs .", "Zwei Hunde"]


def test_california_has_the_target_column(data):
    assert list(read_california().columns) == ["longitude", "target", "ocean_proximity"]


def test_every_external_data_set_is_found(data):
    assert not any(map(find_missing_data, (*CORPORA, "california")))


@pytest.mark.parametrize("name", REAL)
def test_only_larger_budgets_need_external_data(name, monkeypatch):
    claim = registry.member(name)()
    monkeypatch.delenv("ADDNORM_DATA", raising=False)
    assert claim.find_missing_data("smoke") == ""
    reason = r"ADDNORM_DATA: expected a folder that contains \S+, got nothing; see docs"
    for budget in ("standard", "full"):
        with pytest.raises(UserError, match=reason):
            raise UserError(claim.find_missing_data(budget))


def test_claim_without_data_is_a_user_error(tmp_path, monkeypatch):
    monkeypatch.setenv("ADDNORM_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"ADDNORM_DATA: .*multi30k/train.en.gz, got /"):
        run_claims([REAL[0]], tmp_path / "claims")


def test_claim_without_data_is_skipped_beside_others(tmp_path, monkeypatch):
    monkeypatch.delenv("ADDNORM_DATA", raising=False)
    messages = []
    callback = ClaimsCallback()
    callback.on_message = messages.append
    results = run_claims([REAL[0], "layer_norm_length"], tmp_path / "claims", callback=callback)
    assert list(results) == ["layer_norm_length"]
    assert any(message.startswith(f"{REAL[0]} is skipped: ADDNORM_DATA") for message in messages)


def test_digits_has_classes_and_64_columns():
    frame = TABLES["digits"]()
    assert frame.shape == (1797, 65) and frame["target"].nunique() == 10
