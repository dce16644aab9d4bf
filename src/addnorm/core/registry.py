"""Registries: classes of one family, chosen by call string, each with its card.

    registry.resolve("rms(eps=1e-6, share=1.0)")  ->  Call("rms")     options at defaults removed
    registry.make("rms(eps=1e-5)", 512)           ->  RMSNorm(512, eps=1e-5)

The keyword-only arguments of a member's constructor are its options. Their annotations are checked
by pydantic in strict mode. Positional arguments are passed by the caller of `make`.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from addnorm.core.calls import Call
from addnorm.core.cards import Card, Option, sort_by_group
from addnorm.core.errors import (
    UnknownNameError,
    UserError,
    closest_names,
    suggest_names,
    unknown_name_message,
)
from addnorm.core.validation import expected_value

T = TypeVar("T")
M = TypeVar("M")

# Annotations for options. A constructor with `eps: Positive` needs no check of its own. The upper
# bounds reject mistakes: beyond them float32 overflows, or memory and time are not bounded.
MAX_FACTOR = 1e6
MAX_COUNT = 2**20
Positive = Annotated[float, Field(gt=0, le=MAX_FACTOR, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, le=MAX_FACTOR, allow_inf_nan=False)]
Finite = Annotated[float, Field(ge=-MAX_FACTOR, le=MAX_FACTOR, allow_inf_nan=False)]
Epsilon = Annotated[float, Field(ge=1e-37, le=1)]
"""Addend of a divisor that can be zero; float32 rounds less to zero."""
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=MAX_COUNT)]
Width = Annotated[int, Field(ge=1, le=2**17)]
Rank = Annotated[int, Field(ge=1, le=2**10)]
"""Rank of a product of two thin matrices; a larger one is no saving."""
NonNegativeInt = Annotated[int, Field(ge=0, le=2**53)]
Base = Annotated[float, Field(gt=1, le=1e15)]
"""Base of the wavelengths of positions; models for long texts use large ones."""
INNER_CALL_MARKER = "call string of the same registry"
InnerCall = Annotated[str, INNER_CALL_MARKER]
"""Option that names another member of the same registry, as in `drop_path(pre_ln)`."""


PLUGIN_GROUP = "addnorm.plugins"
"""Group of the entry points by which installed packages register members."""


class Registry(Generic[T]):
    """Members of one family, by the groups of their cards, then in order of registration."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.base: type[T] | None = None
        """Base class of the members, for `register`; None if members of one's own are not meant."""
        REGISTRIES.append(self)
        self._members: dict[str, type[T]] = {}
        self._cards: dict[str, Card] = {}

    def register(self, card: Card) -> Callable[[type[T]], type[T]]:
        """Return a class decorator that registers the class under the name of `card`."""

        def add(member: type[T]) -> type[T]:
            if not card.name.isidentifier():
                raise ValueError(
                    f"name of a {self.family}: expected letters, digits and underscores, such as "
                    f"post_ln, got {card.name!r}"
                )
            known = self._members.get(card.name)
            # A notebook cell may be run again, and a module may be reloaded.
            if known is not None and _full_name(known) != _full_name(member):
                raise ValueError(f"{self.family} {card.name!r} is registered twice")
            self._members[card.name] = member
            self._cards[card.name] = card.with_details_from(member)
            return member

        return add

    def __iter__(self) -> Iterator[str]:
        return iter([card.name for card in self.cards()])

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        if name not in self._members:
            load_entry_points()
        return name in self._members

    def accepts(self, member: object) -> bool:
        """Return whether an object belongs to this family, so that `register` adds it here."""
        is_class = isinstance(member, type) and self.base is not None
        return is_class and issubclass(member, self.base)  # type: ignore[arg-type]

    def member(self, name: str) -> type[T]:
        """Return the registered class; raise UnknownNameError for an unknown name."""
        self._check_known(name)
        return self._members[name]

    def card(self, name: str) -> Card:
        """Return the card, with the options and departures read from the class."""
        self._check_known(name)
        return self._cards[name]

    def cards(self) -> list[Card]:
        """Return all cards, in the order of their groups and years."""
        return sort_by_group(list(self._cards.values()))

    def resolve(self, call: str | Call) -> Call:
        """Return the canonical form of a call.

        Options are validated, put in the order of their declaration, and removed if they equal the
        default. Two calls with the same canonical form build the same member.

        Raises:
            UserError: unknown name or option, or an invalid value
        """
        if isinstance(call, str) and "(" not in call:
            self._check_known(call.strip())  # `post-ln` gets a suggestion, not a syntax error
        call = Call.parse(call, self.family)
        options = self.card(call.name).options or {}
        if len(call.positional) > len(options):
            raise UserError(
                f"{call} passes more values than {self.family} {call.name!r} has options; "
                f"{_format_options(options)}"
            )
        passed = dict(zip(options, call.positional, strict=False))
        for name, value in call.options.items():
            if name not in options:
                raise UserError(
                    suggest_names(
                        f"{self.family} {call.name!r} has no option {name!r}",
                        closest_names(name, options)[:1],
                        _format_options(options),
                    )
                )
            if name in passed:
                raise UserError(f"{call} passes {name!r} twice; remove one of them")
            passed[name] = value
        checked = {
            name: self._validate_option(call.name, name, options[name], passed[name])
            for name in options
            if name in passed
        }
        return Call(
            call.name,
            {
                name: value
                for name, value in checked.items()
                if not _equals_default(value, options[name].default)
            },
        )

    def can_resolve(self, call: str | Call) -> bool:
        """Return whether a call names a registered member with valid options."""
        try:
            self.resolve(call)
        except UserError:
            return False
        return True

    def make(self, call: str | Call, *args: Any) -> T:
        """Build the member that a call string names.

        Args:
            call: name with options
            args: positional arguments of the member's constructor
        """
        call = self.resolve(call)
        options = {
            name: str(value) if isinstance(value, Call) else value
            for name, value in call.options.items()
        }
        return self._members[call.name](*args, **options)

    def _check_known(self, name: str) -> None:
        if name not in self:
            raise UnknownNameError(unknown_name_message(self.family, name, list(self)))

    def _validate_option(self, member: str, name: str, option: Option, value: Any) -> Any:
        if INNER_CALL_MARKER in getattr(option.type, "__metadata__", ()):
            inner = self.resolve(value)
            return inner if inner.options else inner.name
        try:
            return TypeAdapter(option.type).validate_python(value, strict=True)
        except ValidationError as problem:
            expected = (
                f"one of {', '.join(map(str, option.choices))}"
                if option.choices
                else _describe_expected(problem)
            )
            passed = str(value) if isinstance(value, Call) else repr(value)
            raise UserError(
                f"option {name!r} of {self.family} {member!r}: expected {expected}, got {passed} "
                f"(default {option.default})"
            ) from None


REGISTRIES: list[Registry[Any]] = []
"""All registries that were imported."""


def register(card: Card | str) -> Callable[[M], M]:
    """Return a function that registers a wiring, norm, schedule, optimizer, task or preset.

    @addnorm.register("scaled_sum")
    class ScaledSum(addnorm.Wiring):
        ...

    addnorm.register("my_gpt")(addnorm.Config(kind="lm", ...))  # a preset

    Args:
        card: facts about the member, or only its name
    """

    def add(member: M) -> M:
        summary = (member.__doc__ or "").strip().partition("\n")[0]
        facts = (
            Card(name=card, title=card, formula="", paper="", summary=summary)
            if isinstance(card, str)
            else card
        )
        registry: Any = find_registry(member)
        added: M = registry.register(facts)(member)
        return added

    return add


def find_registry(member: object) -> Registry[Any]:
    """Return the registry of the family that a class is derived from; of presets for a config."""
    for registry in REGISTRIES:
        if registry.accepts(member):
            return registry
    bases = ", ".join(each.base.__name__ for each in REGISTRIES if each.base)
    raise UserError(f"register: expected a class derived from one of {bases}, got {member!r}")


def load_entry_points() -> None:
    """Import the plugins of installed packages, once: entry points of `addnorm.plugins`."""
    pending = _find_entry_points()
    while pending:  # removed before it is loaded, because a plugin may ask for members
        entry_point = pending.pop(0)
        try:
            entry_point.load()
        except Exception as error:  # a broken package must not break every command
            warnings.warn(
                f"plugin {entry_point.name} ({entry_point.value}) could not be loaded: "
                f"{type(error).__name__}: {error}",
                stacklevel=2,
            )


@cache
def _find_entry_points() -> list[EntryPoint]:
    return list(entry_points(group=PLUGIN_GROUP))


def _full_name(member: type) -> tuple[str, str]:
    return member.__module__, member.__qualname__


def _equals_default(value: Any, default: Any) -> bool:
    if isinstance(value, Call):
        return str(value) == default
    return type(value) is type(default) and value == default


def _describe_expected(problem: ValidationError) -> str:
    return " or ".join(dict.fromkeys(expected_value(error) for error in problem.errors()))


def _format_options(options: dict[str, Option]) -> str:
    if not options:
        return "it takes no options"
    return "options: " + ", ".join(f"{name}={option.default}" for name, option in options.items())
