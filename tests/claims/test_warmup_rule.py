"""Warm-up is judged at the largest learning rate that trains with it."""

from addnorm.claims.catalogue.post_ln_needs_warmup import PostLnNeedsWarmup
from tests.claims.synthetic_rows import cells

WARM = "post_ln: progress with warm-up, at the largest rate"
COLD = "post_ln: progress without, at the same rate"
BEST = "post_ln: with warm-up minus without, each at its best rate"


def rows(cold):
    """Post-LN with warm-up trains up to 4e-3; `cold` is its progress without, by learning rate."""
    warm = {1e-3: 0.5, 2e-3: 0.8, 4e-3: 0.4, 8e-3: 0.1}
    for lr, value in warm.items():
        yield from cells({"post_ln": value}, study="post_ln", warmup=40, lr=lr)
        yield from cells({"post_ln": cold[lr]}, study="post_ln", lr=lr)
    yield from cells({"pre_ln": 1.0}, study="pre_ln")
    yield from cells({"pre_ln": 1.0}, study="pre_ln", warmup=40)


def judge(cold):
    verdict = PostLnNeedsWarmup().judge(list(rows(cold)))
    return verdict.answer, {check.what: check for check in verdict.checks}


def test_failure_at_the_largest_rate_is_held_although_a_lower_rate_works():
    answer, checks = judge({1e-3: 0.5, 2e-3: 0.78, 4e-3: 0.1, 8e-3: 0.0})
    assert answer == "held"
    assert round(checks[WARM].found.mean, 6) == 0.4
    assert round(checks[COLD].found.mean, 6) == 0.1
    assert round(checks[BEST].found.mean, 6) == 0.02
    assert checks[BEST].answer == "not judged"


def test_training_without_warmup_at_the_largest_rate_is_not_held():
    answer, checks = judge({1e-3: 0.5, 2e-3: 0.6, 4e-3: 0.35, 8e-3: 0.0})
    assert answer == "not held" and checks[COLD].answer == "not held"


def test_the_rate_of_a_seed_is_chosen_by_the_others():
    """A seed that happens to train at 8e-3 is judged at the rate that works for the others."""
    own = [
        {**row, "value": 0.5} if (row["lr"], row["warmup"], row["seed"]) == (8e-3, 40, 0) else row
        for row in rows({1e-3: 0.5, 2e-3: 0.78, 4e-3: 0.1, 8e-3: 0.0})
    ]
    checks = {check.what: check for check in PostLnNeedsWarmup().judge(own).checks}
    assert round(checks[WARM].found.mean, 6) == 0.4


def test_pre_ln_that_gains_by_warmup_is_not_held():
    cold = {1e-3: 0.5, 2e-3: 0.6, 4e-3: 0.0, 8e-3: 0.0}
    own = [row for row in rows(cold) if (row["arm"], row["warmup"]) != ("pre_ln", 0)]
    own += cells({"pre_ln": 0.7}, study="pre_ln")
    assert PostLnNeedsWarmup().judge(own).answer == "not held"
