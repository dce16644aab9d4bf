"""LayerNorm to RMSNorm without a change of the function, by centering.

LN(x; g, b, eps) = RMS(P x; g, b, eps), P = I - 1 1^T / d: with P applied to all that writes to a
stream, each LayerNorm on it may be an RMSNorm with the same gain, bias and eps.

Jiang et al., Pre-RMSNorm and Pre-CRMSNorm Transformers, 2023, arXiv 2305.14858.
"""

from torch import nn

from addnorm.core.calls import Call
from addnorm.rewiring.norm_laws import make_rms, set_module
from addnorm.rewiring.report import Change
from addnorm.rewiring.tracing.centering import CenteringPlan, apply_centering, describe_ties


def layer_to_rms(
    model: nn.Module, plan: CenteringPlan, calls: dict[str, Call]
) -> tuple[list[Change], list[str]]:
    """Replace LayerNorms of a float64 model by RMSNorms, in place, where that is exact.

    Args:
        model: model in float64
        plan: result of `plan_centering` for this model
        calls: the new norm of each site, by path

    Returns:
        The changes, and notes.
    """
    apply_centering(model, plan)
    changes = []
    for site in plan.exact:
        call = calls[site.path]
        set_module(model, site.path, make_rms(site.law, call))
        text = "writers of its stream centered"
        changes.append(Change(site.path, "layer", str(call), "exact", text))
    notes = describe_ties(plan)
    has_dropout = any(isinstance(each, nn.Dropout) and each.p > 0 for each in model.modules())
    if changes and has_dropout:
        notes.append("dropout gives the stream a mean in training; the models are equal in eval")
    return changes, notes
