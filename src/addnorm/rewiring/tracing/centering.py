"""Which LayerNorms may be RMSNorms after the weights that write to their streams are centered.

LN(x) = RMS(P x), P = I - 1 1^T / d. P may be applied to the writers of x (`mean_terms.py`) if all
that reads what they write is a LayerNorm, to which a mean does not matter.
"""

from dataclasses import dataclass, field

from torch import Tensor, nn

from addnorm.rewiring.batches import Batch
from addnorm.rewiring.norm_laws import NormLaw, NormSite
from addnorm.rewiring.tracing.mean_terms import METADATA, StreamTerms, TermWalk, Writer
from addnorm.rewiring.tracing.recorder import NORM, Op, Recorder, Value, live_ops, record


@dataclass
class CenteringPlan:
    """Result of the analysis."""

    exact: list[NormSite] = field(default_factory=list)
    """LayerNorms whose input has no mean once `writers` are centered."""
    refused: dict[str, str] = field(default_factory=dict)
    """Reasons of the others, by path."""
    writers: set[Writer] = field(default_factory=set)
    untied: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Modules that get a weight of their own, by the name of a tied weight."""
    copies: dict[str, nn.Parameter] = field(default_factory=dict)
    """These weights, once `untie_weights` has made them."""


def plan_centering(model: nn.Module, batch: Batch, sites: list[NormSite]) -> CenteringPlan:
    """Return which norms of a float64 model can be converted exactly, and how.

    Args:
        model: the model, which is not changed
        batch: inputs of one forward pass
        sites: all its norms of single tokens
    """
    recorder = record(model, batch, [site.path for site in sites])
    laws = {site.path: site.law for site in sites}
    live = live_ops(recorder)
    walk = TermWalk()
    terms: dict[str, StreamTerms] = {}
    for op in recorder.ops:
        if op.name == NORM and laws[op.path].kind == "layer":
            terms[op.path] = walk.find_terms(op.args[0], laws[op.path].dim)
    plan = CenteringPlan()
    bad = _find_leaks(recorder, walk, live, sites)
    plan.untied = _find_ties(model, recorder, walk, live, bad)
    _find_conflicts(terms, bad)
    for site in sites:
        if site.law.kind != "layer":
            continue
        reason = _find_reason(terms.get(site.path), laws, bad)
        if reason:
            plan.refused[site.path] = reason
        else:
            plan.exact.append(site)
            plan.writers |= terms[site.path].writers
    plan.untied = {
        name: paths
        for name, paths in plan.untied.items()
        if name in {writer.name for writer in plan.writers}
    }
    return plan


def _find_reason(terms: StreamTerms | None, laws: dict[str, NormLaw], bad: dict[str, str]) -> str:
    """Return why a norm cannot be converted; an empty string if it can."""
    if terms is None:
        return "it was not called"
    if terms.problems:
        return f"its input comes from {terms.problems[0]}"
    for path in sorted(terms.norms):
        law = laws[path]
        has_no_mean = law.kind == "layer" and law.has_constant_gain
        if not has_no_mean or abs(float(law.bias.mean())) > 1e-12:
            return f"its input contains the output of {path}, whose gains or biases give it a mean"
    reasons = [bad[writer.name] for writer in sorted(terms.writers, key=str) if writer.name in bad]
    return reasons[0] if reasons else ""


def _find_leaks(
    recorder: Recorder, walk: TermWalk, live: set[int], sites: list[NormSite]
) -> dict[str, str]:
    """Return weights whose mean something reads that is not a LayerNorm, with the reason."""
    laws = {site.path: site.law for site in sites}
    bad: dict[str, str] = {}
    for value, writers in walk.values.values():
        if value.weight is not None:
            continue
        leak = "the model returns it" if id(value) in recorder.outputs else ""
        for op in value.uses:
            if id(op) not in live or op.name in METADATA:
                continue
            if (id(op), id(value)) in walk.edges:
                leak = leak or _find_other_part(op, walk, live, recorder)
                continue
            law = laws.get(op.path) if op.name == NORM else None
            if law is not None and law.kind == "layer" and _is_whole(value, writers, law.dim):
                continue
            leak = f"{op.name}{f' in {op.path}' if op.path else ''} reads it"
        if leak:
            for writer in writers:
                bad.setdefault(
                    writer.name,
                    f"the stream that {writer.name} writes has a mean that counts: {leak}",
                )
    return bad


def _find_other_part(op: Op, walk: TermWalk, live: set[int], recorder: Recorder) -> str:
    """Return what happens to a part of a split value that no norm reads, such as fused values."""
    for part in op.outputs:
        is_used = id(part) in recorder.outputs or any(id(use) in live for use in part.uses)
        if is_used and id(part) not in walk.values:
            where = f" in {op.path}" if op.path else ""
            return f"{op.name}{where} splits off a part of it that no norm reads"
    return ""


def _is_whole(value: Value, writers: set[Writer], dim: int) -> bool:
    """Return whether a norm over `dim` features covers the groups that are centered."""
    return value.shape[-1] == dim and all(writer.axis.size == dim for writer in writers)


def _find_ties(
    model: nn.Module, recorder: Recorder, walk: TermWalk, live: set[int], bad: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return modules that need a copy of a tied weight; add those that cannot get one to `bad`."""
    owners: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for weight in (*module._parameters.values(), *module._buffers.values()):
            if weight is not None:
                owners.setdefault(id(weight), []).append(path)
    ties: dict[str, tuple[str, ...]] = {}
    for value, _ in walk.values.values():
        if value.weight is None:
            continue
        uses = [op for op in value.uses if id(op) in live]
        writing = [op for op in uses if (id(op), id(value)) in walk.edges]
        reading = [op for op in uses if op not in writing and op.name not in METADATA]
        if not reading:
            continue
        holders = set(owners.get(id(value.tensor), ()))
        writers, readers = {op.path for op in writing}, {op.path for op in reading}
        if writers <= holders and readers <= holders and not writers & readers:
            ties[value.weight] = tuple(sorted(writers))
        else:
            bad[value.weight] = (
                f"the tied weight {value.weight} is also read by {reading[0].name} in "
                f"{reading[0].path or 'the model itself'}; untie it first"
            )
    return ties


def _find_conflicts(terms: dict[str, StreamTerms], bad: dict[str, str]) -> None:
    """Add weights that would have to be centered in two ways."""
    known: dict[str, Writer] = {}
    for writer in (each for found in terms.values() for each in found.writers):
        if known.setdefault(writer.name, writer) != writer:
            bad.setdefault(writer.name, f"{writer.name} writes to streams in two ways")
        for scale in writer.scales:
            if any(scale == other.name for found in terms.values() for other in found.writers):
                bad.setdefault(writer.name, f"{scale} is both a gain and a table")


def apply_centering(model: nn.Module, plan: CenteringPlan) -> list[str]:
    """Center the writers of a plan in place; return the names of tensors that changed.

    Gains per feature behind a writer are moved into it first, and are 1 afterwards.
    """
    untie_weights(model, plan)
    changed, gains = [], set()
    for writer in sorted(plan.writers, key=str):
        weight: Tensor | None = plan.copies.get(writer.name)
        weight = _get_tensor(model, writer.name) if weight is None else weight
        data = weight.data
        for scale in writer.scales:
            gain = _get_tensor(model, scale).data.flatten()
            shape = [1] * data.ndim
            shape[writer.axis.index] = -1
            data = data * gain.view(shape)
            gains.add(scale)
        weight.data = center(data, writer.axis.index, writer.axis.size)
        changed.append(writer.name)
    for scale in sorted(gains):
        _get_tensor(model, scale).data.fill_(1.0)
        changed.append(scale)
    return changed


def center(data: Tensor, axis: int, size: int) -> Tensor:
    """Subtract the mean of each group of `size` neighbors along an axis."""
    groups = data.unflatten(axis, (-1, size))
    return (groups - groups.mean(axis + 1, keepdim=True)).flatten(axis, axis + 1)


def _get_tensor(model: nn.Module, name: str) -> Tensor:
    path, _, own = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(path), own)
    return tensor


def describe_ties(plan: CenteringPlan) -> list[str]:
    """Return a note for each weight that modules no longer share."""
    return [
        f"{name} was tied; {' and '.join(paths)} {'has' if len(paths) == 1 else 'have'} a centered "
        "copy now, the other modules keep the old one"
        for name, paths in plan.untied.items()
    ]


def untie_weights(model: nn.Module, plan: CenteringPlan) -> None:
    """Give the writers of a plan weights of their own, in place; a second call does nothing."""
    for name, paths in plan.untied.items():
        if name not in plan.copies:
            plan.copies[name] = _untie(model, name, paths)


def _untie(model: nn.Module, name: str, paths: tuple[str, ...]) -> nn.Parameter:
    """Give the modules at some paths a common copy of a weight, and return it."""
    tied = _get_tensor(model, name)
    own = nn.Parameter(tied.data.clone(), requires_grad=tied.requires_grad)
    for path in paths:
        module = model.get_submodule(path)
        for attribute, weight in list(module._parameters.items()):
            if weight is tied:
                setattr(module, attribute, own)
    return own
