"""Dropout behind the last norm."""

from collections.abc import Iterator

from addnorm.doctor.graph.ops import DROPOUT
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule
from addnorm.doctor.rules.missing_final_norm import find_last_blocks
from addnorm.doctor.rules.probing.perturb import trace_in_train_mode


@rule("dropout_after_norm")
def dropout_after_norm(context: RuleContext) -> Iterator[Finding]:
    """The head reads a normalized stream from which features were dropped and the rest scaled."""
    context = trace_in_train_mode(context) or context  # some dropout is only called in training
    graph = context.graph
    for last, _ in find_last_blocks(context):
        ends = [*last.final_norms, *([last.post_norm] if last.post_norm >= 0 else [])]
        for index in ends:
            for kid in sorted(graph.forward_reach(index)):
                node = graph[kid]
                rate = node.detail.get("rate", 0)
                if node.op in DROPOUT and rate and node.size == graph[index].size:
                    yield Finding(
                        "dropout_after_norm", "info", node.path or context.norms[index].path,
                        f"dropout of {rate:g} stands behind the last norm, so that the head sees "
                        "another size in training than in use; put it before the norm or take it "
                        "out",
                        {"norm": context.norms[index].path, "rate": rate},
                    )  # fmt: skip
                    break
