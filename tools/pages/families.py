"""Hugging Face families by wiring and norm, for the pages of the catalogue.

python -m tools.pages.families   read the default config of every family that `from_hf` supports

The result, docs/catalogue/families.json, is committed: reading it again imports transformers.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

FAMILIES_FILE = Path(__file__).parents[2] / "docs" / "catalogue" / "families.json"


def read_default_arrangement(model_type: str) -> dict[str, str] | None:
    """Return wiring and norm of a family's default config; None if it cannot be converted.

    Some default configs describe no model, or one with a part that only some releases have.
    """
    import torch
    import transformers

    from addnorm.interop import FAMILIES, convert_config

    for name in FAMILIES[model_type].variants:
        try:
            with torch.device("meta"):
                model = getattr(transformers, name)(transformers.AutoConfig.for_model(model_type))
            config = convert_config(model)
        except (TypeError, ValueError):  # UserError is a ValueError
            continue
        return {"wiring": config.wiring, "norm": config.norm}
    return None


def write_families() -> None:
    """Read all families and write the file."""
    from addnorm.interop import FAMILIES

    known = {name: read_default_arrangement(name) for name in sorted(FAMILIES)}
    lines = [f"{json.dumps(name)}: {json.dumps(known[name])}" for name in known]
    FAMILIES_FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


@cache
def read_families() -> dict[str, Any]:
    """Return the recorded arrangements by `model_type`."""
    return json.loads(FAMILIES_FILE.read_text(encoding="utf-8"))


def families_with(field: str, member: str) -> list[str]:
    """Return the families whose `wiring` or `norm` is a member, whatever its options are."""
    return [
        name
        for name, arrangement in read_families().items()
        if arrangement and arrangement[field].partition("(")[0] == member
    ]


if __name__ == "__main__":
    write_families()
