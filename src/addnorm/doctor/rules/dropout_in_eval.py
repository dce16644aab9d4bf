"""Rules `dropout_in_eval` and `high_dropout`: dropout in the wrong mode, or of the wrong share."""

from collections.abc import Iterator

from torch.nn.modules.dropout import _DropoutNd

from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.graph.ops import DROPOUT
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule

HIGH_RATE = 0.8
"""Rate from which dropout leaves too little to train with."""


@rule("dropout_in_eval")
def dropout_in_eval(context: RuleContext) -> Iterator[Finding]:
    """Report dropout that drops in eval mode, as `F.dropout(x, p)` without `training` does."""
    if context.trace.training:
        return
    active = [node for node in context.graph if _drops(node)]
    if active:
        node = active[0]
        is_attention = node.op not in DROPOUT
        argument = (
            "dropout_p=p if self.training else 0" if is_attention else "training=self.training"
        )
        yield Finding(
            "dropout_in_eval", "warning", node.path,
            f"{len(active)} dropouts are active in eval mode, so predictions are random; pass "
            f"{argument}, or use nn.Dropout",
            {"rate": node.detail["rate"], "dropouts": len(active)},
        )  # fmt: skip


def _drops(node: Node) -> bool:
    """Return whether a node of a graph in eval mode drops values."""
    rate = node.detail.get("rate", 0)
    if not isinstance(rate, float | int) or not 0 < rate < 1:
        return False
    if node.op == "scaled_dot_product_attention":
        return True
    return node.op in DROPOUT and node.detail.get("training") is True


@rule("high_dropout")
def high_dropout(context: RuleContext) -> Iterator[Finding]:
    """Report dropout that drops almost everything, as if the rate were the share that is kept."""
    calls = context.trace.recording.call_counts
    modules = [
        (path, module.p)
        for path, module in context.trace.model.named_modules()
        if isinstance(module, _DropoutNd) and module.p >= HIGH_RATE and calls.get(path)
    ]
    if modules:
        path, rate = modules[0]
        yield Finding(
            "high_dropout", "warning", path,
            f"{len(modules)} dropouts drop {rate:.0%} of the values; the rate of nn.Dropout is the "
            "share that is dropped, not the one that is kept",
            {"rate": rate, "dropouts": len(modules)},
        )  # fmt: skip
