"""Write what the doctor sees in each of our wirings: python tools/signatures.py

To be run again when a wiring or the doctor's names change; tests/doctor/test_matching.py says so.
"""

import json
from pathlib import Path

from addnorm.doctor.matching import DEPTH, KINDS, SIGNATURES_FILE, wiring_signature
from addnorm.wirings.base import registry

PATH = Path(__file__).parent.parent / "src" / "addnorm" / "doctor" / SIGNATURES_FILE


def signatures() -> dict[str, dict[str, object]]:
    """By kind of model and depth, then by wiring."""
    return {
        f"{kind} {depth}": {name: wiring_signature(name, kind, depth) for name in sorted(registry)}
        for kind in KINDS
        for depth in range(1, DEPTH + 1)
    }


if __name__ == "__main__":
    import addnorm.wirings

    assert addnorm.wirings.registry is registry  # all of them are registered
    groups = []
    for group, found in sorted(signatures().items()):
        lines = ",\n".join(f"  {json.dumps(n)}: {json.dumps(found[n])}" for n in sorted(found))
        groups.append(f" {json.dumps(group)}: {{\n{lines}\n }}")
    PATH.write_text("{\n" + ",\n".join(groups) + "\n}\n", encoding="utf-8")
