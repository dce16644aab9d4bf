"""Registries: members of a family chosen by call string, each with its card."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from addnorm.core.calls import Call
from addnorm.core.cards import Card, Option
from addnorm.core.errors import UnknownNameError, UserError, closest_names, unknown_name_message

T = TypeVar("T")

# Words for the annotations of options. A constructor that says `eps: Positive` needs no check of
# its own.
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
INNER_CALL_MARKER = "call string of the same registry"
InnerCall = Annotated[str, INNER_CALL_MARKER]


class Registry(Generic[T]):
    """The members of one family, in the order of their registration.

    What a member's constructor takes by keyword are its options; what it takes by position is the
    family's business.
    """

    def __init__(self, family: str) -> None:
        self.family = family
        self._members: dict[str, type[T]] = {}
        self._cards: dict[str, Card] = {}

    def register(self, card: Card) -> Callable[[type[T]], type[T]]:
        """Class decorator: makes the class known under its card's name."""

        def add(member: type[T]) -> type[T]:
            if not card.name.isidentifier():
                raise ValueError(
                    f"{card.name!r} cannot be the name of a {self.family}; wanted letters, digits "
                    "and underscores, such as post_ln"
                )
            if card.name in self._members:
                raise ValueError(f"{self.family} {card.name!r} is registered twice")
            self._members[card.name] = member
            self._cards[card.name] = card.with_details_from(member)
            return member

        return add

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, name: object) -> bool:
        return name in self._members

    def member(self, name: str) -> type[T]:
        """The class of that name."""
        self._check_known(name)
        return self._members[name]

    def card(self, name: str) -> Card:
        """The card of that name."""
        self._check_known(name)
        return self._cards[name]

    def cards(self) -> list[Card]:
        """All cards, in order of registration."""
        return list(self._cards.values())

    def resolve(self, call: str | Call) -> Call:
        """The canonical form: options checked, in declared order, without those at a default."""
        if isinstance(call, str) and "(" not in call:
            self._check_known(call.strip())  # so that `post-ln` is answered with the nearest names
        call = Call.parse(call)
        options = self.card(call.name).options or {}
        if len(call.positional) > len(options):
            raise UserError(
                f"{call} has more values than {self.family} {call.name!r} has options; "
                f"{_format_options(options)}"
            )
        given = dict(zip(options, call.positional, strict=False))
        for name, value in call.options.items():
            if name not in options:
                close = closest_names(name, options)
                hint = f" did you mean {close[0]!r}?" if close else ""
                raise UserError(
                    f"{self.family} {call.name!r} has no option {name!r};{hint} {_format_options(options)}"
                )
            if name in given:
                raise UserError(f"{call} gives {name!r} twice; keep one of them")
            given[name] = value
        checked = {
            name: self._validate_option(call.name, name, options[name], given[name])
            for name in options
            if name in given
        }
        return Call(
            call.name,
            {
                name: value
                for name, value in checked.items()
                if not _equals_default(value, options[name].default)
            },
        )

    def make(self, call: str | Call, *args: Any) -> T:
        """Build the member a call string names."""
        call = self.resolve(call)
        options = {
            name: str(value) if isinstance(value, Call) else value
            for name, value in call.options.items()
        }
        return self._members[call.name](*args, **options)

    def _check_known(self, name: str) -> None:
        if name not in self._members:
            raise UnknownNameError(unknown_name_message(self.family, name, self._members))

    def _validate_option(self, member: str, name: str, option: Option, value: Any) -> Any:
        if INNER_CALL_MARKER in getattr(option.type, "__metadata__", ()):
            inner = self.resolve(value)
            return inner if inner.options else inner.name
        try:
            return TypeAdapter(option.type).validate_python(value, strict=True)
        except ValidationError as problem:
            wanted = (
                f"one of {', '.join(map(str, option.choices))}"
                if option.choices
                else _describe_expected(problem)
            )
            raise UserError(
                f"option {name!r} of {self.family} {member!r} cannot be {value!r}; wanted "
                f"{wanted} (default {option.default})"
            ) from None


def _equals_default(value: Any, default: Any) -> bool:
    if isinstance(value, Call):
        return str(value) == default
    return type(value) is type(default) and value == default


def _describe_expected(problem: ValidationError) -> str:
    messages = (error["msg"].removeprefix("Input should be ") for error in problem.errors())
    return " or ".join(dict.fromkeys(messages))


def _format_options(options: dict[str, Option]) -> str:
    if not options:
        return "It takes no options"
    return "Options: " + ", ".join(f"{name}={option.default}" for name, option in options.items())
