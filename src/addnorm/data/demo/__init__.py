"""Demo corpora made from what is installed already: nothing is downloaded."""

import platform
from collections.abc import Callable, Sequence
from typing import Any

from addnorm.core.errors import UnknownNameError, UserError, unknown_name_message

Splits = dict[str, list[dict[str, str]]]
SOURCES = {
    "translate": "phrases formatted in two locales by babel (Unicode CLDR)",
    "lm": "documentation topics of the running Python (pydoc_data.topics)",
    "classify": "docstrings of the running Python's standard library, labelled by package",
}


def make_demo(
    task: str, *, seed: int = 0, languages: Sequence[str] = ("en", "de")
) -> tuple[Splits, dict[str, Any]]:
    """The records of train, valid and test, and plain facts about them.

    The same seed gives the same records under the same versions of Python and babel; another seed
    another selection. `languages` are two of babel's locales, for translation only.
    """
    if task not in SOURCES:
        raise UnknownNameError(unknown_name_message("demo task", task, SOURCES))
    splits, facts = _get_maker(task, languages)(seed)
    about = {
        "source": SOURCES[task],
        "seed": seed,
        "python": platform.python_version(),
        **facts,
    }
    return splits, about


def _get_maker(
    task: str, languages: Sequence[str]
) -> Callable[[int], tuple[Splits, dict[str, Any]]]:
    from addnorm.data.demo import classify, lm, translate

    if task == "translate":
        if isinstance(languages, str) or len(languages) != 2:
            raise UserError(
                f"got languages {languages!r}, wanted two locales; try languages=('en', 'de')"
            )
        return lambda seed: translate.make(seed, (languages[0], languages[1]))
    return {"lm": lm.make, "classify": classify.make}[task]


__all__ = ["SOURCES", "Splits", "make_demo"]
