"""Names of countries, languages, currencies, months and days."""

from collections.abc import Iterable
from random import Random

from babel import Locale
from babel.numbers import get_currency_name

from addnorm.data.demo.numbers import MONEY
from addnorm.data.demo.phrases import Form, Kind, Pair, agreeing

TERRITORIES = (
    "AR AT AU BD BE BG BO BR CA CH CL CN CO CR CU CY CZ DE DK DZ EC EE EG ES ET FI FR GB GE GR HR"
    " HU ID IE IL IN IQ IR IS IT JM JO JP KE KH KR LB LT LU LV LY MA MN MT MX MY NG NL NO NP NZ PE"
    " PH PK PL PT RO RS RU SA SE SG SI SK SN SY TH TN TR UA US UY VE VN ZA"
)
LANGUAGES = (
    "ar bg bn ca cs da de el en es et eu fa fi fr ga he hi hr hu id is it ja ka ko la lt lv mn nb"
    " nl pl pt ro ru sk sl sr sv sw ta th tr uk ur vi zh"
)
INVENTORY = {
    "territory": TERRITORIES.split(),
    "language": LANGUAGES.split(),
    "currency_name": MONEY,
    "month": [str(number) for number in range(1, 13)],
    "weekday": [str(number) for number in range(7)],
}


def names(pair: Pair) -> dict[str, Kind]:
    """Names by group; one that both locales know, and that means one thing only."""
    forms = [(code, group) for group, codes in INVENTORY.items() for code in codes]
    known = agreeing(pair, _name, forms=forms, probes=[None])
    return {
        group: Kind(group, [form for form in known if form[1] == group], _name)
        for group in INVENTORY
    }


def places(pair: Pair) -> Kind:
    """Languages of countries: "German (Austria)"."""
    known = names(pair)
    spoken, lands = known["language"].forms, known["territory"].forms

    def sample(rng: Random, form: Form) -> tuple[Form, Form]:
        return rng.choice(spoken), rng.choice(lands)

    return Kind("place", [("language",)] if spoken and lands else [], _place, sample, _parts)


def _name(form: Form, value: None, locale: Locale) -> str:
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


def _place(form: Form, value: tuple[Form, Form], locale: Locale) -> str:
    language, territory = value
    return f"{_name(language, None, locale)} ({_name(territory, None, locale)})"


def _parts(form: Form, value: tuple[Form, Form]) -> Iterable[str]:
    return [f"{group} {code} {group}" for code, group in value]
