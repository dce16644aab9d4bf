"""Cards: everything one can know about a norm or a wiring without building it."""

import inspect
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

DEPARTURE_TAG = "NOTE[DIFF]:"


@dataclass(frozen=True)
class Option:
    """One option of a member."""

    default: Any
    """What it is when nobody says."""
    choices: tuple[Any, ...] = ()
    """The only values it takes; empty where a type decides."""
    type: Any = None
    """The annotation, by which a value is checked."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """The record of one member; its options, symbols and departures are read from its code."""

    name: str
    """The name by which it is chosen."""
    title: str
    """The name the papers use."""
    formula: str
    """What it computes, in plain text."""
    paper: str
    """Authors, title, year, arXiv number."""
    summary: str
    """What it is for, in a sentence."""
    needs: tuple[str, ...] = ()
    """What it wants from outside: mask, cond, a calibration batch, a call after each step."""
    reduces_to: tuple[tuple[str, str], ...] = ()
    """Pairs of call strings that are equal at start, on equal sub-layers; tests build both."""
    undefined: str = ""
    """What the paper leaves open, and what is done here."""
    options: dict[str, Option] | None = None
    """Its options, from the constructor."""
    symbols: tuple[tuple[str, str], ...] = ()
    """Each symbol with its shape and start value, from the docstring."""
    departures: tuple[str, ...] = ()
    """Where the code leaves the paper, from the tagged comments."""

    @property
    def year(self) -> int | None:
        """Year of the paper."""
        found = re.search(r"\b(?:19|20)\d\d\b(?!\.\d)", self.paper)
        return int(found.group()) if found else None

    @property
    def arxiv(self) -> str | None:
        """arXiv number of the paper; None where it has none."""
        found = re.search(r"arXiv (\d{4}\.\d{4,5})", self.paper)
        return found.group(1) if found else None

    def with_details_from(self, member: type) -> "Card":
        """The same card with what the member's own code says filled in."""
        return replace(
            self,
            options=_read_options(member),
            symbols=_parse_symbols(inspect.getdoc(member) or ""),
            departures=_read_departures(member),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        options = {name: option.default for name, option in (self.options or {}).items()}
        choices = {
            name: list(option.choices)
            for name, option in (self.options or {}).items()
            if option.choices
        }
        plain = asdict(replace(self, options=None))
        return plain | {
            "options": options,
            "choices": choices,
            "year": self.year,
            "arxiv": self.arxiv,
        }


def _read_options(member: type) -> dict[str, Option]:
    """Keyword-only arguments of the constructor, with their defaults."""
    hints = get_type_hints(member.__init__, include_extras=True)  # type: ignore[misc]
    found = {}
    for name, parameter in inspect.signature(member).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if name not in hints or parameter.default is parameter.empty:
                raise TypeError(
                    f"option {name!r} of {member.__name__} needs a type and a default, such as "
                    f"{name}: bool = True"
                )
            hint = hints[name]
            choices = get_args(hint) if get_origin(hint) is Literal else ()
            found[name] = Option(parameter.default, choices, hint)
    return found


def _parse_symbols(doc: str) -> tuple[tuple[str, str], ...]:
    """The docstring's paragraph of lines `symbol: shape, start value`; other lines go on."""
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
    """Tagged comments of the member's file, those inside other classes left out; a departure runs
    on over the comment lines below it.
    """
    try:
        source = Path(inspect.getfile(member)).read_text(encoding="utf-8")
    except (OSError, TypeError):  # typed at a prompt or in a notebook: there is no file
        return ()
    ours = {cls.__name__ for cls in member.__mro__}
    around = None  # the class a line stands in
    notes: list[str] = []
    inside = False
    for line in source.splitlines():
        if opened := re.match(r"class (\w+)|[@\w#]", line):
            around = opened.group(1)
        comment = re.search(r"#\s?(.*)$", line)
        alone = line.lstrip().startswith("#")
        if around and around not in ours:
            inside = False
        elif comment and DEPARTURE_TAG in comment.group(1):
            notes.append(comment.group(1).split(DEPARTURE_TAG, 1)[1].strip())
            inside = True
        elif inside and alone and comment:
            notes[-1] += " " + comment.group(1).strip()
        else:
            inside = False
    return tuple(notes)
