"""Signatures of all wirings, with which the doctor recognizes the wiring of a model.

python tools/signatures.py   write them

Run it again when a wiring or a name used by the doctor changes; tests/doctor/test_matching.py fails
otherwise.
"""

import json
from pathlib import Path

from addnorm.doctor.matching import DEPTH, KINDS, SIGNATURES_FILE, wiring_signature
from addnorm.wirings.base import registry

PATH = Path(__file__).parent.parent / "src" / "addnorm" / "doctor" / SIGNATURES_FILE


def compute_signatures() -> dict[str, dict[str, object]]:
    """Return the signatures by kind of model and depth, then by wiring."""
    return {
        f"{kind} {depth}": {name: wiring_signature(name, kind, depth) for name in sorted(registry)}
        for kind in KINDS
        for depth in range(1, DEPTH + 1)
    }


if __name__ == "__main__":
    import addnorm.wirings

    assert addnorm.wirings.registry is registry  # importing the package registers all wirings
    groups = []
    for group, signatures in sorted(compute_signatures().items()):
        lines = ",\n".join(
            f"  {json.dumps(n)}: {json.dumps(signatures[n])}" for n in sorted(signatures)
        )
        groups.append(f" {json.dumps(group)}: {{\n{lines}\n }}")
    PATH.write_text("{\n" + ",\n".join(groups) + "\n}\n", encoding="utf-8")
