"""Rule `dropout_in_eval`: dropout that `model.eval()` does not switch off."""

from collections.abc import Iterator

from addnorm.doctor.graph.nodes import Node
from addnorm.doctor.graph.ops import DROPOUT
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule


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
