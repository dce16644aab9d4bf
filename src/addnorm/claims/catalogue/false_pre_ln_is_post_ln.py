"""Claim: a wrong Pre-LN, whose skip starts after the norm, behaves like Post-LN."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, register
from addnorm.claims.deep_training_claims import (
    PROGRESS_BY_LR,
    WITH_AND_WITHOUT_WARMUP,
    describe_deep_experiment,
)
from addnorm.claims.experiments import deep_comparison
from addnorm.claims.training_claims import (
    NEGLIGIBLE_PROGRESS,
    TRAINED_THRESHOLD,
    ComparisonClaim,
    best_setting_values,
)
from addnorm.comparison.spec import Comparison
from addnorm.comparison.statistics import paired_difference
from addnorm.core.cards import Card
from addnorm.core.rows import Row


@register(
    Card(
        name="false_pre_ln_is_post_ln",
        title="The wrong Pre-LN",
        formula="u = N(x); x <- u + f(u): that is u <- N(u + f(u))",
        paper=(
            "Somepalli et al., SAINT: Improved Neural Networks for Tabular Data via Row Attention "
            "and Contrastive Pre-Training, 2021, arXiv 2106.01342 (its released code); PyTorch's "
            "first norm_first, 2021"
        ),
        summary=(
            "A Pre-LN whose skip starts after the norm, a common mistake, is Post-LN in disguise: "
            "it fails at a depth at which Post-LN fails and Pre-LN does not."
        ),
    )
)
class FalsePreLnIsPostLn(ComparisonClaim):
    """The wrong Pre-LN compared with Pre-LN and with Post-LN."""

    attributed_to = "ours, on the code of Somepalli et al., 2021"
    paper_location = "the released code of SAINT; issue 61165 of PyTorch"
    experiment = describe_deep_experiment(
        f"Post-LN and the wrong Pre-LN {WITH_AND_WITHOUT_WARMUP}, the right Pre-LN without"
    )
    rule = (
        f"Premises: Pre-LN at its best makes progress above {TRAINED_THRESHOLD:g}, and more than "
        f"{NEGLIGIBLE_PROGRESS:g} above Post-LN. The wrong Pre-LN stays more than "
        f"{NEGLIGIBLE_PROGRESS:g} below Pre-LN and differs from Post-LN by less than "
        f"{NEGLIGIBLE_PROGRESS:g}, seed by seed."
    )
    chart = PROGRESS_BY_LR

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {
            "deep": deep_comparison(
                budget, ["post_ln", "false_pre_ln"], arms_without_warmup=["pre_ln"], seeds=4
            )
        }

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        post, pre, false = (
            best_setting_values(rows, arm=a) for a in ("post_ln", "pre_ln", "false_pre_ln")
        )
        return [
            Check(
                "progress of pre_ln", estimate_over_seeds(pre), low=TRAINED_THRESHOLD, premise=True
            ),
            Check(
                "pre_ln minus post_ln",
                paired_difference(pre, post),
                low=NEGLIGIBLE_PROGRESS,
                premise=True,
            ),
            Check(
                "false_pre_ln minus pre_ln",
                paired_difference(false, pre),
                high=-NEGLIGIBLE_PROGRESS,
            ),
            Check(
                "false_pre_ln minus post_ln",
                paired_difference(false, post),
                -NEGLIGIBLE_PROGRESS,
                NEGLIGIBLE_PROGRESS,
            ),
        ]
