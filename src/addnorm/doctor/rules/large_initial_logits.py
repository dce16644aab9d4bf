"""Rule `large_initial_logits`: a first loss or attention logits far from what a start needs."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from addnorm.doctor.graph.ops import EMBEDDINGS
from addnorm.doctor.model_trace import model_loss
from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.probing.model_runs import main_output

MAX_LOSS_RATIO = 2.0
"""First loss in units of ln(vocabulary), above which it is remarked; uniform guesses have 1."""
MAX_LOGIT, MIN_ENTROPY = 25.0, 0.15
"""Attention logit above which, and relative entropy below which, an attention is saturated."""


@rule("large_initial_logits")
def large_initial_logits(context: RuleContext) -> Iterator[Finding]:
    """Remark a first loss far above ln(vocabulary), and attentions that start saturated.

    These are numbers of one batch, not mistakes: the finding is informative. Trained models are
    skipped, since their predictions are certain on purpose.
    """
    if context.has_trained_gains:
        return
    logits, vocab = _find_logits(context)
    if logits is not None:
        loss = _first_loss(context, logits)
        if math.isfinite(loss) and loss > MAX_LOSS_RATIO * math.log(vocab):
            yield Finding(
                "large_initial_logits", "info", "",
                f"the first loss is about {loss:.1f}, where uniform guesses have ln {vocab} = "
                f"{math.log(vocab):.1f}; if the weights are not trained, initialize them, the "
                "embedding and the head in particular, with a smaller deviation",
                {
                    "loss": loss,
                    "uniform": math.log(vocab),
                    "largest logit": float(logits.abs().max()),
                },
            )  # fmt: skip
            return
    saturated = [
        a
        for a in context.trace.recording.stats.attentions
        if a.max_logit > MAX_LOGIT and a.entropy < MIN_ENTROPY
    ]
    if saturated:
        largest = max(saturated, key=lambda a: a.max_logit)
        yield Finding(
            "large_initial_logits", "info", largest.path,
            f"{len(saturated)} attentions start saturated: the largest logit is "
            f"{largest.max_logit:.0f} and each token sees about one other; if the weights are not "
            "trained, initialize queries and keys with a smaller deviation",
            {"largest logit": largest.max_logit, "entropy": largest.entropy},
        )  # fmt: skip


def _find_logits(context: RuleContext) -> tuple[Tensor | None, int]:
    """Return the output over the vocabulary of the input ids, and its size."""
    out = main_output(context, context.trace.output)
    sizes = {
        operand.shape[0]
        for node in context.graph
        if node.op in EMBEDDINGS and node.active
        for operand in node.operands
        if operand.kind == "weight" and len(operand.shape) == 2
    }
    if out is None or out.dim() < 2 or out.shape[-1] not in sizes or out.shape[-1] < 3:
        return None, 0
    return out, out.shape[-1]


def _first_loss(context: RuleContext, logits: Tensor) -> float:
    """Return the loss of the model, else the mean cross entropy over uniform targets."""
    own = model_loss(context.trace.output)
    if own is not None:
        return float(own.detach())
    with torch.no_grad():
        values = logits.float()
        return float((values.logsumexp(-1) - values.mean(-1)).mean())
