"""Print the second stage of the comparison of all wirings: each at its best rate, with fresh seeds.

    python benchmarks/all_wirings_best_rates.py all_wirings/rates > all_wirings/best_rates.yaml

The rate of each arm is chosen on the seed of the first stage; the seeds printed here are others, so
that the choice does not make an arm look better than it is.
"""

import sys

import yaml

from addnorm.comparison.analysis.study import Study

SEEDS = 3


def build_second_stage(study: Study) -> dict[str, object]:
    """Return the spec as flat keys; arms that no rate trained keep the rate of the lowest loss."""
    spec = study.spec.without_extensions()
    grids = []
    for line in study.summary:
        best = line.best or line.closest
        if best is None:
            print(f"left out, no finished cell: {line.arm.name}", file=sys.stderr)
            continue
        grids.append(
            {
                "wiring": [line.arm.wiring],
                "norm": [line.arm.norm],
                "depth": [line.depth],
                "warmup": [best.warmup],
                "lr": [best.lr],
            }
        )
    keys = ("task", "data", "steps", "schedule", "score")
    common = {key: getattr(spec, key) for key in keys}
    first_seed = spec.first_seed + spec.seeds
    return common | {"seeds": SEEDS, "first_seed": first_seed, "grids": grids} | spec.keys


if __name__ == "__main__":
    yaml.safe_dump(build_second_stage(Study.open(sys.argv[1])), sys.stdout, sort_keys=False)
