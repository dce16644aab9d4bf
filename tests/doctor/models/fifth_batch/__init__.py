"""Fifth batch: historic bugs of public issues, collected without knowledge of the rules.

Every broken model was written in our own words from the report named beside it, together with its
repaired twin and with what a finding must say, before the doctor was run on any of them. No report
occurs in an earlier batch. Left out were reports whose broken and repaired models are both
published designs (scores divided by d as in the maximal update parametrization, a norm after the
embeddings as in BLOOM, norms of queries over all heads as in OLMo 2), because no statement about
the model alone can tell them apart.

Counted as found: a finding of severity warning or error that states what `expect` says; for initial
magnitudes ("huge init") a remark with the number counts too, as a number at the start is no
verdict. A false alarm: any finding of severity warning or error on a repaired twin or on a healthy
model. `python -m tests.doctor.models.fifth_batch` prints all findings.
"""

from . import attention, masks, norms, options, residuals
from .healthy import HEALTHY
from .parts import Case, Healthy

CASES: list[Case] = norms.CASES + masks.CASES + residuals.CASES + attention.CASES + options.CASES

__all__ = ["CASES", "HEALTHY", "Case", "Healthy"]
