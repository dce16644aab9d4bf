"""How often does a comparison of equal arms call one of them worse?

    python benchmarks/comparison_errors.py --repeats 1000

Losses are normal numbers with the same mean for all arms, plus a part that all arms share by seed.
The rules are those of `addnorm compare`: differences to the arm with the lowest mean, paired by
seed; `--until decided` gives half as many seeds again to the best arm and those too close to it,
up to a budget of added cells. "corrected" counts comparisons in which an arm is worse also by the
interval for all pairs together; the verdict names the arms that are not.
"""

import argparse
import random

from addnorm.comparison.statistics import (
    CONFIDENCE_LEVEL,
    Estimate,
    paired_difference,
    sequential_level,
    simultaneous_half_width,
)

SHARED_DEVIATION = 0.5
"""Standard deviation of the part that arms share, relative to the rest."""
CASES = ((2, 3, 0), (4, 3, 0), (8, 3, 0), (2, 3, 60), (4, 3, 12), (8, 3, 24))
"""Arms, seeds, and cells that may be added."""


class EqualArms:
    """Losses of equal arms, drawn when they are needed."""

    def __init__(self, num_arms: int, seeds: int, rng: random.Random) -> None:
        self.rng = rng
        self.shared: dict[int, float] = {}
        self.losses: list[dict[int, float]] = [{} for _ in range(num_arms)]
        for arm in range(num_arms):
            self.add_seeds(arm, seeds)

    def add_seeds(self, arm: int, total: int) -> None:
        """Train an arm with seeds 0 to `total` - 1, unless it has them."""
        for seed in range(len(self.losses[arm]), total):
            shared = self.shared.setdefault(seed, self.rng.gauss(0, SHARED_DEVIATION))
            self.losses[arm][seed] = shared + self.rng.gauss(0, 1)

    def find_best(self) -> int:
        """Return the arm with the lowest mean loss."""
        means = [sum(each.values()) / len(each) for each in self.losses]
        return means.index(min(means))

    def differences(self, level: float) -> dict[int, Estimate]:
        """Return the difference of each other arm to the best one."""
        best = self.find_best()
        estimates = {
            arm: paired_difference(own, self.losses[best], level=level)
            for arm, own in enumerate(self.losses)
            if arm != best
        }
        return {arm: each for arm, each in estimates.items() if each is not None}


def compare_equal_arms(
    num_arms: int, seeds: int, budget: int, rng: random.Random
) -> tuple[bool, bool]:
    """Return whether an arm is called worse, and whether one still is after the correction."""
    arms, looks = EqualArms(num_arms, seeds, rng), 0
    while budget:
        differences = arms.differences(sequential_level(looks))
        close = [arm for arm, each in differences.items() if not each.excludes_zero]
        if not close:
            break
        group = [arms.find_best(), *close]
        count = max(len(arms.losses[arm]) for arm in group)
        for total in range(count + max(1, count // 2), count, -1):
            cost = sum(max(0, total - len(arms.losses[arm])) for arm in group)
            if cost <= budget:
                break
        else:
            break
        for arm in group:
            arms.add_seeds(arm, total)
        budget, looks = budget - cost, looks + 1
    level = sequential_level(looks) if looks else CONFIDENCE_LEVEL
    half = simultaneous_half_width(arms.losses, level=level)
    worse = [abs(each.mean) for each in arms.differences(level).values() if each.excludes_zero]
    return bool(worse), half is not None and any(gap > half for gap in worse)


def main() -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1000, help="comparisons of each case")
    repeats = parser.parse_args().repeats
    rng = random.Random(0)
    print("arms  seeds  added cells  called worse  corrected")
    for num_arms, seeds, budget in CASES:
        results = [compare_equal_arms(num_arms, seeds, budget, rng) for _ in range(repeats)]
        plain, corrected = (sum(column) / repeats for column in zip(*results, strict=True))
        print(f"{num_arms:4}  {seeds:5}  {budget:11}  {plain:12.3f}  {corrected:9.3f}", flush=True)


if __name__ == "__main__":
    main()
