"""Rule `nan_output`: outputs that are not numbers."""

from collections.abc import Iterator

from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import RuleContext, rule
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
    blind = [a.path for a in trace.recorder.stats.attentions if a.has_blind_query]
    cause = (
        f"the weight {bad[0]} is not finite" if bad else
        f"the mask of the attention in {blind[0] or 'the model itself'} hides every token from a "
        "query, whose softmax is then 0 / 0; let each query see at least one token" if blind else
        "search the first operation that returns NaN with torch.autograd.detect_anomaly or hooks"
    )  # fmt: skip
    yield Finding(
        "nan_output", "error", blind[0] if blind and not bad else "",
        f"{count:,} of {sum(t.numel() for t in outputs):,} values of the output are NaN: {cause}",
        {"nan": count, "weights": bad[:4], "attentions without visible token": blind[:4]},
    )  # fmt: skip
