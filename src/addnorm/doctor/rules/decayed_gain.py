"""Weight decay on the parameters of norms."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule


@rule("decayed_gain")
def decayed_gain(context: RuleContext) -> Iterator[Finding]:
    """Decay pulls a gain towards zero, not towards one."""
    if context.optimizer is None:
        return
    names = {id(w): n for n, w in context.weights.items()}
    ours = {name for norm in context.iter_norms() for name in context.norm_weights(norm)}
    found: dict[str, float] = {}
    for group in context.optimizer.param_groups:
        for weight in group["params"]:
            name = names.get(id(weight), "")
            if group.get("weight_decay", 0) and name in ours:
                found[name] = group["weight_decay"]
    if found:
        first = next(iter(found))
        yield Finding(
            "decayed_gain", "warning", first.rpartition(".")[0],
            f"weight decay of {found[first]:g} pulls {len(found)} gains and biases of norms to "
            "zero; put them into a group with weight_decay=0",
            {"weights": sorted(found)[:8], "count": len(found)},
        )  # fmt: skip
