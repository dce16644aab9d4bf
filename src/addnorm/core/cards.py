"""Cards: facts about a registered member, available without building it.

The decorator `@register(Card(...))` states name, title, formula, paper and summary. The registry
reads the rest from the member's own code:

- options from the keyword-only arguments of the constructor;
- symbols from the docstring paragraph whose lines have the form `symbol: shape, start value`;
- departures from the paper from comments that start with `NOTE[DIFF]:`.
"""

import inspect
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

DEPARTURE_TAG = "NOTE[DIFF]:"
GROUPS = (
    *("", "classic", "placement", "variants", "scaled", "norm-free", "learned", "dynamic"),
    *("dense", "multi-stream", "batch", "conditional", "random depth"),
)
"""Headings of lists, in a didactic order."""


@dataclass(frozen=True)
class Option:
    """One option of a member."""

    default: Any
    """Default value."""
    choices: tuple[Any, ...] = ()
    """Allowed values of a `Literal`; empty for other types."""
    type: Any = None
    """Annotation, used to validate values."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """Facts about one registered member."""

    name: str
    """Name in call strings."""
    title: str
    """Name used in papers."""
    formula: str
    """What it computes, in plain text."""
    paper: str
    """Authors, title, year, arXiv number."""
    summary: str
    """Purpose, in one sentence."""
    group: str = ""
    """Heading under which lists show it, one of `GROUPS`; empty if its family has none."""
    folds_to: str = ""
    """Plain wiring that it folds into with its defaults, for export; empty if there is none."""
    needs: tuple[str, ...] = ()
    """What the caller must provide: mask, cond, a calibration batch, a call after each step."""
    reduces_to: tuple[tuple[str, str], ...] = ()
    """Pairs of call strings that are equal at initialization; tests build and compare both."""
    undefined: str = ""
    """What the paper leaves unspecified, and the choice made here."""
    options: dict[str, Option] | None = None
    """Options, from the constructor."""
    symbols: tuple[tuple[str, str], ...] = ()
    """Each symbol with its shape and initial value, from the docstring."""
    departures: tuple[str, ...] = ()
    """Departures from the paper, from the tagged comments."""
    warmup: float | None = None
    """Fraction of a run that the recommended schedule of a wiring spends on warm-up; None for other
    families."""

    @property
    def year(self) -> int | None:
        """Year of the paper."""
        match = re.search(r"\b(?:19|20)\d\d\b(?!\.\d)", self.paper)
        return int(match.group()) if match else None

    @property
    def arxiv(self) -> str | None:
        """arXiv number of the paper, if it has one."""
        match = re.search(r"arXiv (\d{4}\.\d{4,5})", self.paper)
        return match.group(1) if match else None

    def with_details_from(self, member: type) -> "Card":
        """Return a copy with options, symbols and departures read from the member's code."""
        return replace(
            self,
            options=_read_options(member),
            symbols=_parse_symbols(inspect.getdoc(member) or ""),
            departures=_read_departures(member),
            warmup=_read_warmup(member),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the card as JSON data."""
        options = {name: option.default for name, option in (self.options or {}).items()}
        choices = {
            name: list(option.choices)
            for name, option in (self.options or {}).items()
            if option.choices
        }
        return asdict(replace(self, options=None)) | {
            "options": options,
            "choices": choices,
            "year": self.year,
            "arxiv": self.arxiv,
        }


def sort_by_group(cards: "list[Card]") -> "list[Card]":
    """Return cards in the order of `GROUPS`, those of a group by year; others stay in order."""
    order = {group: index for index, group in enumerate(GROUPS)}
    return sorted(
        cards,
        key=lambda card: (
            order.get(card.group, len(order)),
            (card.year or 0) if card.group else 0,
        ),
    )


def _read_warmup(member: type) -> float | None:
    """Return the warm-up of the schedule that a member recommends; None if it recommends none."""
    schedule = getattr(member, "schedule", None)
    if not isinstance(schedule, str):
        return None
    match = re.search(r"warmup=([0-9.]+)", schedule)
    return float(match.group(1)) if match else 0.0


def _read_options(member: type) -> dict[str, Option]:
    """Return the keyword-only arguments of the constructor."""
    hints = get_type_hints(member.__init__, include_extras=True)  # type: ignore[misc]
    options = {}
    for name, parameter in inspect.signature(member).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if name not in hints or parameter.default is parameter.empty:
                raise TypeError(
                    f"option {name!r} of {member.__name__} requires a type and a default, such as "
                    f"{name}: bool = True"
                )
            hint = hints[name]
            choices = get_args(hint) if get_origin(hint) is Literal else ()
            options[name] = Option(parameter.default, choices, hint)
    return options


def _parse_symbols(doc: str) -> tuple[tuple[str, str], ...]:
    """Return the symbols of a docstring.

    They are the first paragraph, after the summary, that starts with `symbol: text`. Indented lines
    and lines without a colon continue the line before.
    """
    for paragraph in doc.split("\n\n")[1:]:
        lines = paragraph.splitlines()
        if not re.match(r"[\w|^()., ]+?:\s", lines[0]):
            continue
        symbols: list[tuple[str, str]] = []
        for line in lines:
            if symbols and (line.startswith(" ") or ":" not in line):
                symbols[-1] = (symbols[-1][0], f"{symbols[-1][1]} {line.strip()}")
            else:
                name, _, text = line.partition(":")
                symbols.append((name.strip(), text.strip()))
        return tuple(symbols)
    return ()


def _read_departures(member: type) -> tuple[str, ...]:
    """Return the tagged comments of the member's file, without those of unrelated classes.

    A departure continues over the comment lines directly below it.
    """
    try:
        source = Path(inspect.getfile(member)).read_text(encoding="utf-8")
    except (OSError, TypeError):  # defined at a prompt or in a notebook
        return ()
    own_classes = {cls.__name__ for cls in member.__mro__}
    current_class = None  # the class that contains the line
    notes: list[str] = []
    in_note = False
    for line in source.splitlines():
        if top_level := re.match(r"class (\w+)|[@\w#]", line):
            current_class = top_level.group(1)
        comment = re.search(r"#\s?(.*)$", line)
        is_comment_line = line.lstrip().startswith("#")
        if current_class and current_class not in own_classes:
            in_note = False
        elif comment and DEPARTURE_TAG in comment.group(1):
            notes.append(comment.group(1).split(DEPARTURE_TAG, 1)[1].strip())
            in_note = True
        elif in_note and is_comment_line and comment:
            notes[-1] += " " + comment.group(1).strip()
        else:
            in_note = False
    return tuple(notes)
