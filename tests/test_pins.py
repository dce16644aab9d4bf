"""Names and values that stored files, hashes and random draws depend on have not changed."""

import json
from itertools import islice

import pytest

from tools.pins import PINS, SECTIONS, compute_section, find_differences

STORED = json.loads(PINS.read_text(encoding="utf-8"))
MAX_SHOWN = 12


def test_every_section_is_stored():
    assert sorted(STORED) == sorted(SECTIONS), "run `python tools/pins.py`"


@pytest.mark.parametrize("name", SECTIONS)
def test_section_is_unchanged(name):
    differences = list(find_differences(STORED.get(name), compute_section(name)))
    if differences:
        shown = "\n  ".join(islice(differences, MAX_SHOWN))
        pytest.fail(
            f"section {name!r} of tests/pins.json has {len(differences)} differences:\n  {shown}\n"
            "Stored files, hashes or random draws depend on these names. If you only added a "
            "member, run `python tools/pins.py`. If a name changed or is gone, restore it, unless "
            "the change is meant.",
            pytrace=False,
        )


def test_differences_are_found():
    stored = {"same": 1, "value": 1, "gone": [1], "names": ["a", "b"], "order": ["a", "b"]}
    computed = {"same": 1, "value": 2, "new": None, "names": ["a", "c"], "order": ["b", "a"]}
    assert list(find_differences(stored, computed)) == [
        "gone: is gone, was [1]",
        'names: is gone, "b"',
        'names: is new, "c"',
        "new: is new, null",
        "order: the order or the count changed",
        "value: was 1, is 2",
    ]
