"""Pins: the names and values that stored files, hashes or random draws depend on.

python tools/pins.py          write tests/pins.json
python tools/pins.py --bits   print checksums of trained weights, for comparison on one machine

tests/test_pins.py compares tests/pins.json with the code. Rewrite the file only if the change is
intended: files that users have saved depend on these names. The modules of tools/pinned compute
the sections.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

# `python tools/pins.py` puts tools/ on the path, but not the root of the repository.
sys.path.insert(0, str(Path(__file__).parents[1]))

from tools.pinned.files import (
    pin_claim_files,
    pin_comparison_files,
    pin_comparison_keys,
    pin_estimator_files,
    pin_model_files,
)
from tools.pinned.hashed_names import (
    pin_call_strings,
    pin_cell_names,
    pin_claim_settings,
    pin_claim_tables,
    pin_comparison_digests,
    pin_demo_corpora,
    pin_derived_seeds,
    pin_seed_path_literals,
    pin_signatures,
)
from tools.pinned.names import (
    pin_claim_ids,
    pin_commands,
    pin_doctor_rules,
    pin_families,
    pin_public_names,
)
from tools.pinned.runs import pin_recipe_keys, pin_row_names, pin_run_files
from tools.pinned.state_dict_names import (
    pin_layer_weights,
    pin_model_weights,
    pin_operators,
    pin_stack_weights,
    pin_table_model_weights,
)
from tools.pinned.trained_weights import print_all_weight_checksums, print_weight_checksums

PINS = Path(__file__).parents[1] / "tests" / "pins.json"

SECTIONS: dict[str, Callable[[], Any]] = {
    "call_strings": pin_call_strings,
    "cell_names": pin_cell_names,
    "claim_files": pin_claim_files,
    "claim_ids": pin_claim_ids,
    "claim_settings": pin_claim_settings,
    "claim_tables": pin_claim_tables,
    "commands": pin_commands,
    "comparison_digests": pin_comparison_digests,
    "comparison_files": pin_comparison_files,
    "comparison_keys": pin_comparison_keys,
    "demo_corpora": pin_demo_corpora,
    "derived_seeds": pin_derived_seeds,
    "doctor_rules": pin_doctor_rules,
    "estimator_files": pin_estimator_files,
    "families": pin_families,
    "layer_weights": pin_layer_weights,
    "model_files": pin_model_files,
    "model_weights": pin_model_weights,
    "operators": pin_operators,
    "public_names": pin_public_names,
    "recipe_keys": pin_recipe_keys,
    "row_names": pin_row_names,
    "run_files": pin_run_files,
    "seed_path_literals": pin_seed_path_literals,
    "signatures": pin_signatures,
    "stack_weights": pin_stack_weights,
    "table_model_weights": pin_table_model_weights,
}


def compute_section(name: str) -> Any:
    """Return the pins of one section as JSON data."""
    return json.loads(json.dumps(SECTIONS[name](), default=str))


def find_differences(stored: Any, computed: Any, path: str = "") -> Iterable[str]:
    """Yield a line for each place where two values of JSON data differ."""
    if isinstance(stored, dict) and isinstance(computed, dict):
        for key in sorted({*stored, *computed}):
            where = f"{path} / {key}" if path else key
            if key not in computed:
                yield f"{where}: is gone, was {_shorten(stored[key])}"
            elif key not in stored:
                yield f"{where}: is new, {_shorten(computed[key])}"
            else:
                yield from find_differences(stored[key], computed[key], where)
    elif isinstance(stored, list) and isinstance(computed, list) and stored != computed:
        old, new = (list(map(json.dumps, each)) for each in (stored, computed))
        changed = [f"is gone, {each}" for each in old if each not in new]
        changed += [f"is new, {each}" for each in new if each not in old]
        yield from (f"{path}: {each}" for each in changed or ["the order or the count changed"])
    elif stored != computed:
        yield f"{path}: was {_shorten(stored)}, is {_shorten(computed)}"


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else text[:157] + "..."


def write_pins() -> None:
    """Write tests/pins.json."""
    pins = {name: compute_section(name) for name in SECTIONS}
    text = json.dumps(pins, indent=1, sort_keys=True, ensure_ascii=False)
    PINS.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    """Write the pins, or print checksums of trained weights."""
    parser = argparse.ArgumentParser(description="Write tests/pins.json.")
    parser.add_argument("--bits", action="store_true", help="print checksums of trained weights")
    parser.add_argument("--bits-here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bits:
        print_all_weight_checksums()
    elif arguments.bits_here:
        print_weight_checksums()
    else:
        write_pins()


if __name__ == "__main__":
    main()
