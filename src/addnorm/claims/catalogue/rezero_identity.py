"""Claim: ReZero starts as the identity and passes every signal unchanged."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from addnorm.claims.checks import Check
from addnorm.claims.claim import ChartSpec, register
from addnorm.claims.init_claims import (
    BudgetSettings,
    InitClaim,
    estimate_per_seed,
    make_budget_table,
    make_encoder,
    make_row,
    max_value,
    min_value,
    reseed,
    select_rows,
)
from addnorm.core.cards import Card
from addnorm.core.rows import Row

TOLERANCE = 1e-6
PRESERVED_RANGE, MAX_PRESERVED_FRACTION = (0.5, 2.0), 0.5
"""Singular values of directions that are neither halved nor doubled; and half of all directions."""


@register(
    Card(
        name="rezero_identity",
        title="ReZero is the identity",
        formula="x_L = x_0 and all singular values of d x_L / d x_0 are 1, at the start",
        paper=(
            "Bachlechner et al., ReZero is All You Need: Fast Convergence at Large Depth, 2020, "
            "arXiv 2003.04887"
        ),
        summary=(
            "ReZero starts as the identity at any depth and propagates signals perfectly, forward "
            "and backward; Transformers with norms do not."
        ),
    )
)
class RezeroIdentity(InitClaim):
    """Output and Jacobian of whole stacks.

    error = |x_L - x_0| / |x_0|
    J = d x_L / d x_0

    x_0, x_L: (1, L, dim), input and output of the stack
    J: (L * dim, L * dim), described by its singular values
    """

    paper_location = "sections 3 and 4"
    about = ("rezero", "pre_ln", "post_ln")
    finding = (
        "ReZero keeps all singular values at {rezero: largest singular value, any depth} at any"
        " depth; 48 layers keep {pre_ln: share of singular values that keep a signal at 48 "
        "layers} of them in Pre-LN and {post_ln: share of singular values that keep a signal at"
        " 48 layers} in Post-LN"
    )
    measured_on = "untrained stacks of up to 48 layers of width 32"
    reach = "at initialization only, where ReZero is the identity by construction"
    experiment = (
        "Untrained stacks read a short sequence of Gaussian vectors. The output is compared with "
        "the input, and the singular values of the full Jacobian are computed. Post-LN and "
        "Pre-LN are shown beside ReZero."
    )
    rule = (
        f"ReZero at every depth: the error is {TOLERANCE:g} or less, and the smallest and the "
        f"largest singular value are within {TOLERANCE:g} of 1. Pre-LN and Post-LN at the largest "
        f"depth: less than {MAX_PRESERVED_FRACTION:g} of the singular values are within "
        f"{PRESERVED_RANGE[0]:g} to {PRESERVED_RANGE[1]:g}."
    )
    pilot = (
        "a first run by another rule, which a reviewer found to be wrong: it wanted a "
        "smallest singular value that any last norm makes 0. Whoever wrote the rule of "
        "today had seen those rows."
    )
    corrected = True
    chart = ChartSpec(
        name="singular", x="depth", y="singular values of the Jacobian",
        group_by=("arm", "which"), log_x=True, log_y=True,
    )  # fmt: skip
    budgets = make_budget_table(
        seeds=(2, 5, 10),
        depths=([1, 3], [3, 6, 12, 24, 48], [3, 6, 12, 24, 48, 96]),
        dim=(16, 32, 64),
        length=(3, 8, 12),
    )

    def measure(self, settings: BudgetSettings) -> Iterator[Row]:
        for wiring in ("rezero", "pre_ln", "post_ln"):
            for depth in settings["depths"]:
                reseed(settings["seed"])
                x = torch.randn(1, settings["length"], settings["dim"])
                stack = make_encoder(wiring, depth, settings["dim"])

                def run(flat: Tensor, stack: torch.nn.Module = stack, like: Tensor = x) -> Tensor:
                    y: Tensor = stack(flat.view_as(like))
                    return y.flatten()

                with torch.no_grad():
                    error = (run(x.flatten()) - x.flatten()).norm() / x.norm()
                jacobian = torch.autograd.functional.jacobian(run, x.flatten(), vectorize=True)
                values = torch.linalg.svdvals(jacobian)
                yield make_row("error", error, arm=wiring, depth=depth)
                kept = (
                    ((values > PRESERVED_RANGE[0]) & (values < PRESERVED_RANGE[1])).double().mean()
                )
                yield make_row("kept", kept, arm=wiring, depth=depth)
                for which, value in (("smallest", values[-1]), ("largest", values[0])):
                    yield make_row("singular", value, arm=wiring, depth=depth, which=which)

    def checks(self, rows: Sequence[Row]) -> list[Check]:
        deep = max((each["depth"] for each in rows), default=0)
        own = {"arm": "rezero"}
        checks = [
            Check(
                "rezero: largest error of the output",
                estimate_per_seed(select_rows(rows, "error", **own), max_value),
                high=TOLERANCE,
            )
        ]
        for which, statistic in (("smallest", min_value), ("largest", max_value)):
            singular = select_rows(rows, "singular", which=which, **own)
            checks.append(
                Check(
                    f"rezero: {which} singular value, any depth",
                    estimate_per_seed(singular, statistic),
                    1 - TOLERANCE,
                    1 + TOLERANCE,
                )
            )
        for arm in ("pre_ln", "post_ln"):
            kept = select_rows(rows, "kept", arm=arm, depth=deep)
            what = f"{arm}: share of singular values that keep a signal at {deep} layers"
            checks.append(
                Check(what, estimate_per_seed(kept, max_value), high=MAX_PRESERVED_FRACTION)
            )
        return checks
