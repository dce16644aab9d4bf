"""Every rule has a test and every finding says what it is based on."""

from pathlib import Path

from addnorm.doctor.rules import RULES


def test_every_rule_is_named_in_a_test_of_rules():
    tests = (
        path for path in Path(__file__).parent.glob("test_*.py") if path.name != "test_registry.py"
    )
    texts = "\n".join(path.read_text(encoding="utf-8") for path in tests)
    assert [name for name in RULES if f'"{name}"' not in texts] == []
