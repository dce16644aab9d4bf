"""Rule `decayed_gain`: weight decay on the parameters of norms."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


@rule("decayed_gain")
def decayed_gain(context: RuleContext) -> Iterator[Finding]:
    """Report gains and biases in a parameter group with weight decay.

    Decay pulls a gain towards 0, although its neutral value is 1.
    """
    if context.optimizer is None:
        return
    names = {id(w): n for n, w in context.weights.items()}
    norm_weights = {name for norm in context.iter_norms() for name in context.norm_weights(norm)}
    decayed: dict[str, float] = {}
    for group in context.optimizer.param_groups:
        for weight in group["params"]:
            name = names.get(id(weight), "")
            if group.get("weight_decay", 0) and name in norm_weights:
                decayed[name] = group["weight_decay"]
    if decayed:
        first = next(iter(decayed))
        yield Finding(
            "decayed_gain", "warning", first.rpartition(".")[0],
            f"weight decay of {decayed[first]:g} applies to {len(decayed)} gains and biases of "
            "norms and pulls them towards 0; move them to a parameter group with weight_decay=0",
            {"weights": sorted(decayed)[:8], "count": len(decayed)},
        )  # fmt: skip
