"""Rule `copied_embedding`: an output projection that was meant to share the embedding."""

from collections.abc import Iterator

import torch

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.cloned_layers import is_random


@rule("copied_embedding")
def copied_embedding(context: RuleContext) -> Iterator[Finding]:
    """Report projections that start with the values of an embedding and are another parameter.

    `nn.Parameter(embedding.weight.clone())` copies, so both are trained apart. Tied weights are one
    parameter.
    """
    tables: set[str] = set()
    matrices: set[str] = set()
    for node in context.graph:
        names = {o.name for o in node.operands if o.name}
        (tables if node.op == "embedding" else matrices).update(names)
    for table in sorted(tables):
        weight = context.weights.get(table)
        if weight is None or weight.dim() != 2 or not is_random(weight):
            continue
        for name in sorted(matrices - tables):
            other = context.weights.get(name)
            if other is None or not context.is_trainable(name) or not context.is_trainable(table):
                continue
            if other.shape == weight.shape and torch.equal(other, weight):
                yield Finding(
                    "copied_embedding", "warning", name,
                    f"{name} has the values of {table} and is another parameter, so the two drift "
                    "apart in training; assign the same nn.Parameter to tie them",
                    {"embedding": table, "shape": tuple(weight.shape)},
                )  # fmt: skip
