"""What the claims have in common that say: this trains where deep Post-LN does not."""

from collections.abc import Sequence

from addnorm.claims.base import Drawing
from addnorm.claims.training import GUIDE, PROGRESS, TRAINS, tuned
from addnorm.claims.verdict import Check, over_seeds
from addnorm.core.rows import Row

EXPERIMENT = (
    "Encoder and decoder of twelve layers each (eighteen in the full budget) learn to translate "
    "dates, all without warm-up, over one ladder of learning rates. " + PROGRESS
)
RULE = (
    f"At its best learning rate {{arm}} makes progress of {TRAINS:g} or more, and Post-LN at its "
    f"best of {TRAINS:g} or less."
)
PROGRESS_BY_LR = Drawing(name="progress", x="lr", y="progress", log_x=True, guides=GUIDE)


def remedy_checks(rows: Sequence[Row], arm: str) -> list[Check]:
    """The arm trains; Post-LN does not."""
    return [
        Check(f"progress of {arm}", over_seeds(tuned(rows, arm=arm)), low=TRAINS),
        Check("progress of post_ln", over_seeds(tuned(rows, arm="post_ln")), high=TRAINS),
    ]
