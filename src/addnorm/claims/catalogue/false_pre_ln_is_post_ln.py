"""Claim: a wrong Pre-LN, whose skip starts after the norm, behaves like Post-LN."""

from collections.abc import Mapping, Sequence

from addnorm.claims.checks import Check, estimate_over_seeds
from addnorm.claims.claim import Budget, register
from addnorm.claims.deep_training_claims import (
    VeryDeepClaim,
    check_post_ln_fails,
    describe_very_deep_experiment,
)
from addnorm.claims.experiments import very_deep_comparison
from addnorm.claims.progress_scale import best_setting_values
from addnorm.claims.training_claims import TRAINED_THRESHOLD
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
class FalsePreLnIsPostLn(VeryDeepClaim):
    """The wrong Pre-LN compared with Pre-LN and with Post-LN."""

    attributed_to = "ours, on the code of Somepalli et al., 2021"
    paper_location = "the released code of SAINT; issue 61165 of PyTorch"
    about = ("false_pre_ln", "pre_ln", "post_ln")
    finding = (
        "the wrong Pre-LN reaches {progress of false_pre_ln} of Pre-LN's progress and Post-LN "
        "{progress of post_ln}"
    )
    measured_on = "dates, 18+18 layers of width 32, 120 steps"
    reach = "not tested: longer training and wider models"
    experiment = describe_very_deep_experiment(
        "The wrong Pre-LN is tuned as Post-LN is; the right one runs without warm-up and"
    )
    rule = (
        f"Premise, a statement about this depth: Post-LN at its best makes progress below "
        f"{TRAINED_THRESHOLD:g}. So does the wrong Pre-LN, which stays more than "
        f"{TRAINED_THRESHOLD:g} below the right one, seed by seed. Its difference to Post-LN is "
        "told and not judged: whether it is below 0.05 would take fifteen seeds."
    )

    def comparisons(self, budget: Budget) -> Mapping[str, Comparison]:
        return {
            "deep": very_deep_comparison(
                budget, ["post_ln", "false_pre_ln"], arms_without_warmup=["pre_ln"]
            )
        }

    def findings(self, rows: Sequence[Row]) -> list[Check]:
        post, pre, false = (
            best_setting_values(rows, arm=a) for a in ("post_ln", "pre_ln", "false_pre_ln")
        )
        return [
            check_post_ln_fails(rows, premise=True),
            Check("progress of false_pre_ln", estimate_over_seeds(false), high=TRAINED_THRESHOLD),
            Check(
                "false_pre_ln minus pre_ln",
                paired_difference(false, pre),
                high=-TRAINED_THRESHOLD,
            ),
            Check("false_pre_ln minus post_ln", paired_difference(false, post)),
        ]
