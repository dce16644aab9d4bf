"""Rule `dropout_after_norm`: dropout after the last norm."""

from collections.abc import Iterator

from addnorm.doctor.graph.ops import DROPOUT
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.missing_final_norm import find_last_blocks
from addnorm.doctor.rules.probing.model_runs import trace_in_train_mode


@rule("dropout_after_norm")
def dropout_after_norm(context: RuleContext) -> Iterator[Finding]:
    """Report dropout between the last norm of a stream and the head.

    It drops features of a normalized vector and rescales the rest, so that the variance that the
    head reads differs between training and evaluation.
    """
    context = trace_in_train_mode(context) or context  # in eval mode some models skip dropout
    graph = context.graph
    for last, _ in find_last_blocks(context):
        ends = [*last.final_norms, *([last.post_norm] if last.post_norm is not None else [])]
        for index in ends:
            for user in sorted(graph.forward_reach(index)):
                node = graph[user]
                rate = node.detail.get("rate", 0)
                if node.op in DROPOUT and rate and node.size == graph[index].size:
                    yield Finding(
                        "dropout_after_norm", "info", node.path or context.norms[index].path,
                        f"dropout with rate {rate:g} follows the last norm, so the variance that "
                        "the head reads differs between training and evaluation; move it in front "
                        "of the norm or remove it",
                        {"norm": context.norms[index].path, "rate": rate},
                    )  # fmt: skip
                    break
