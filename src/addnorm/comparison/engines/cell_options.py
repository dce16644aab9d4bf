"""Options of engines of which cells may have different values, such as `1,depth=48:4`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from addnorm.core.errors import UserError

EXCEPTION = re.compile(r"(\w+)=([^:,]+):(.+)")
"""A value for some cells: axis, value of the axis, value of the option."""


@dataclass(frozen=True)
class CellOption:
    """An option with a default, and with exceptions for cells with a certain value of an axis.

    >>> option = CellOption.parse("--gpus-per-cell", "1,depth=48:4")
    >>> option.value_for({"depth": 48}), option.value_for({"depth": 6})
    ('4', '1')
    """

    name: str
    default: str
    exceptions: tuple[tuple[str, str, str], ...] = ()
    """Axis, value of the axis, value of the option; the first that fits counts."""

    @classmethod
    def parse(cls, name: str, text: str | int) -> "CellOption":
        """Read an option.

        Args:
            name: name of the option, for errors
            text: a value, or values separated by commas, with `AXIS=VALUE:` before the exceptions
        """
        default, exceptions = [], []
        for part in (part.strip() for part in str(text).split(",")):
            match = EXCEPTION.fullmatch(part)
            if match:
                exceptions.append((match[1], match[2].strip(), match[3].strip()))
            else:
                default.append(part)
        if len(default) != 1 or not default[0]:
            raise UserError(
                f"{name}: expected one value, with AXIS=VALUE:OTHER for some cells, such as "
                f"1,depth=48:4, got {text!r}"
            )
        return cls(name, default[0], tuple(exceptions))

    def value_for(self, settings: Mapping[str, Any]) -> str:
        """Return the value for a cell.

        Args:
            settings: recipe of the cell, flat

        Raises:
            UserError: an exception names an axis that the cells do not have
        """
        for axis, expected, value in self.exceptions:
            if axis not in settings:
                raise UserError(
                    f"{self.name}: expected an axis of the comparison, such as depth, got {axis!r}"
                )
            if _equals(settings[axis], expected):
                return value
        return self.default

    def count_for(self, settings: Mapping[str, Any]) -> int:
        """Return the value for a cell as a number of at least 0."""
        value = self.value_for(settings)
        if not value.isascii() or not value.isdigit():
            raise UserError(f"{self.name}: expected an integer of 0 or more, got {value!r}")
        return int(value)


def _equals(value: Any, text: str) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(text) == value
        except ValueError:
            return False
    return str(value) == text
