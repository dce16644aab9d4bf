"""Keys of commands that describe a model as `addnorm.build` does: fields of its config."""

from collections.abc import Iterable
from typing import Any


def parse_model_keys(
    keys: Iterable[str], *, extra: Iterable[str] = (), raw: Iterable[str] = ()
) -> dict[str, Any]:
    """Parse `key=value` arguments whose names are fields of a model's config.

    Args:
        keys: the arguments
        extra: further names that the command knows
        raw: names whose values stay text; 0x16 is a number otherwise

    Raises:
        UserError: a name is unknown or is given twice
    """
    from addnorm.core.errors import UserError, unknown_name_message
    from addnorm.core.key_values import parse_key_values
    from addnorm.models import Config

    keys, known = list(keys), (*extra, *Config.model_fields)
    values = parse_key_values(keys)
    for name in values:
        if name not in known:
            raise UserError(unknown_name_message("key", name, known, choices="see addnorm.Config"))
    texts = dict(key.split("=", 1) for key in keys)
    return values | {name: texts[name].strip() for name in raw if name in texts}
