"""The comparison that `make demo` runs: deep Post-LN with and without warm-up, in four minutes."""

from typing import Any

DEMO_SPEC: dict[str, Any] = {
    "task": "translate",
    "steps": 200,
    "seeds": 1,
    "grids": [
        {"wiring": ["post_ln"], "depth": 12, "warmup": [0, 100], "lr": 1e-3},
        {"wiring": ["pre_ln", "b2t", "res_post", "deepnorm", "rezero"], "depth": 12, "lr": 1e-3},
        {"wiring": ["post_ln"], "depth": 6, "warmup": [0, 100], "lr": 3e-3},
        {"wiring": ["pre_ln"], "depth": 6, "lr": 3e-3},
    ],
}
"""Six wirings at 12+12 layers, two of them at 6+6."""
