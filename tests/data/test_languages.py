"""Languages as people write them, and which catalogue serves which wish."""

import pytest

from addnorm.core.errors import UserError
from addnorm.data.languages import language_of, rank, wanted_language


@pytest.mark.parametrize(
    ("tag", "parts"),
    [
        ("de", ("de", "Latn", "", "")),
        ("de_AT.UTF-8", ("de", "Latn", "AT", "")),
        ("zh-cn", ("zh", "Hans", "CN", "")),
        ("zh_TW", ("zh", "Hant", "TW", "")),
        ("zh_Hant", ("zh", "Hant", "", "")),
        ("sr@latin", ("sr", "Latn", "", "")),
        ("sr", ("sr", "Cyrl", "", "")),
        ("ca@valencia", ("ca", "Latn", "", "valencia")),
        ("no", ("nb", "Latn", "", "")),
        ("es_419", ("es", "Latn", "419", "")),
    ],
)
def test_tags(tag, parts):
    assert language_of(tag) == parts


@pytest.mark.parametrize(
    "word", ["LC_MESSAGES", "locale", "po", "django", "", "d", "xx", "de_", "DE"]
)
def test_what_is_no_language(word):
    assert language_of(word) is None


def best(wanted, *tags):
    ranks = [(rank(language_of(tag), language_of(wanted)), tag) for tag in tags]
    return [tag for place, tag in sorted(pair for pair in ranks if pair[0] is not None)]


def test_the_language_itself_serves_best_then_its_usual_region_then_others():
    assert best("de", "de_AT", "fr", "de_DE", "de", "de_CH") == ["de", "de_DE", "de_AT", "de_CH"]
    assert best("de_AT", "de_CH", "de", "de_AT") == ["de_AT", "de"]
    assert best("pt", "pt_PT", "pt_BR") == ["pt_BR", "pt_PT"]
    assert best("ca", "ca@valencia", "ca_ES") == ["ca_ES", "ca@valencia"]


def test_another_script_does_not_serve():
    assert best("zh_CN", "zh_TW", "zh_HK", "zh") == ["zh"]
    assert best("zh", "zh_TW", "zh_CN", "zh_HK") == ["zh_CN"]
    assert best("sr", "sr@latin") == []
    assert best("nb", "no") == ["no"]


def test_a_wish_that_is_no_language_is_refused():
    assert wanted_language("en-US", "--from").region == "US"
    with pytest.raises(UserError, match=r"--to is 'german'; wanted the code of a language; "):
        wanted_language("german", "--to")
