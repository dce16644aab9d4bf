"""Phrases that are names: countries, languages, currencies, months and days."""

from collections.abc import Iterable
from random import Random

from babel import Locale
from babel.numbers import get_currency_name

from addnorm.data.demo.numbers import CURRENCY_CODES
from addnorm.data.demo.phrases import Form, Pair, PhraseKind, unambiguous_forms

TERRITORIES = (
    "AR AT AU BD BE BG BO BR CA CH CL CN CO CR CU CY CZ DE DK DZ EC EE EG ES ET FI FR GB GE GR HR"
    " HU ID IE IL IN IQ IR IS IT JM JO JP KE KH KR LB LT LU LV LY MA MN MT MX MY NG NL NO NP NZ PE"
    " PH PK PL PT RO RS RU SA SE SG SI SK SN SY TH TN TR UA US UY VE VN ZA"
)
LANGUAGES = (
    "ar bg bn ca cs da de el en es et eu fa fi fr ga he hi hr hu id is it ja ka ko la lt lv mn nb"
    " nl pl pt ro ru sk sl sr sv sw ta th tr uk ur vi zh"
)
NAME_CODES = {
    "territory": TERRITORIES.split(),
    "language": LANGUAGES.split(),
    "currency_name": CURRENCY_CODES,
    "month": [str(number) for number in range(1, 13)],
    "weekday": [str(number) for number in range(7)],
}


def build_name_kinds(pair: Pair) -> dict[str, PhraseKind]:
    """Return the kinds of names that both locales have and that are unambiguous."""
    forms = [(code, group) for group, codes in NAME_CODES.items() for code in codes]
    known = unambiguous_forms(pair, _format_name, forms=forms, probes=[None])
    return {
        group: PhraseKind(group, [form for form in known if form[1] == group], _format_name)
        for group in NAME_CODES
    }


def build_place_kind(pair: Pair) -> PhraseKind:
    """Return the kind of phrases such as "German (Austria)"."""
    known = build_name_kinds(pair)
    spoken, lands = known["language"].forms, known["territory"].forms

    def sample(rng: Random, form: Form) -> tuple[Form, Form]:
        return rng.choice(spoken), rng.choice(lands)

    return PhraseKind(
        "place", [("language",)] if spoken and lands else [], _format_place, sample, _place_parts
    )


def _format_name(form: Form, value: None, locale: Locale) -> str:
    code, group = form
    match group:
        case "territory":
            return locale.territories[code]
        case "language":
            return locale.languages[code]
        case "currency_name":
            name = get_currency_name(code, locale=locale)
            if name == code:
                raise KeyError(code)  # the locale has none
            return name
        case "month":
            return locale.months["stand-alone"]["wide"][int(code)]
        case _:
            return locale.days["stand-alone"]["wide"][int(code)]


def _format_place(form: Form, value: tuple[Form, Form], locale: Locale) -> str:
    language, territory = value
    return f"{_format_name(language, None, locale)} ({_format_name(territory, None, locale)})"


def _place_parts(form: Form, value: tuple[Form, Form]) -> Iterable[str]:
    return [f"{group} {code} {group}" for code, group in value]
