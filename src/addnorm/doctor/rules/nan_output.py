"""Rule `nan_output`: outputs that are not numbers."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.probing.first_nan import (
    FirstNan,
    find_first_nan,
    is_masked_after_softmax,
)
from addnorm.doctor.trace.tensors import iter_tensors


@rule("nan_output")
def nan_output(context: RuleContext) -> Iterator[Finding]:
    """Report models whose output is NaN although their inputs are finite.

    Infinite outputs may be masked scores, and are only noted.
    """
    trace = context.trace
    outputs = [t for t in iter_tensors(trace.output) if t.is_floating_point()]
    count = sum(int(t.isnan().sum()) for t in outputs)
    inputs = [t for t in iter_tensors((trace.args, trace.kwargs)) if t.is_floating_point()]
    if not count or not all(bool(t.isfinite().all()) for t in inputs):
        return
    bad = [n for n, w in context.weights.items() if not bool(w.detach().isfinite().all())]
    blind = [a.path for a in trace.recording.stats.attentions if a.has_blind_query]
    first = None if bad or blind else find_first_nan(context)
    cause = (
        f"the weight {bad[0]} is not finite" if bad else
        f"the mask of the attention in {blind[0] or 'the model itself'} hides every token from a "
        "query, whose softmax is then 0 / 0; let each query see at least one token" if blind else
        _explain(first) if first else
        "search the first operation that returns NaN with torch.autograd.detect_anomaly or hooks"
    )  # fmt: skip
    path = blind[0] if blind and not bad else first.path if first else ""
    yield Finding(
        "nan_output", "error", path,
        f"{count:,} of {sum(t.numel() for t in outputs):,} values of the output are NaN: {cause}",
        {"nan": count, "weights": bad[:4], "attentions without visible token": blind[:4]},
    )  # fmt: skip


def _explain(first: FirstNan) -> str:
    """Return where the first NaN comes from."""
    place = f"the first one comes from {first.op} in {first.path or 'the model itself'}"
    if is_masked_after_softmax(first):
        return (
            f"{place}, which multiplies weights that were masked by -inf after the softmax; mask "
            "the scores before the softmax"
        )
    if first.makers:
        return f"{place}, whose input is infinite as {first.makers[0]} returned it"
    return place
