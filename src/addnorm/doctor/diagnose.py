"""The doctor's one entry: any module and an example input in, a report out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError, unknown
from addnorm.core.interrupts import check
from addnorm.doctor import build_report
from addnorm.doctor.analysis.branch_kinds import looks
from addnorm.doctor.analysis.classify import classify
from addnorm.doctor.analysis.results import Anatomy
from addnorm.doctor.analysis.typical_layer import sketches
from addnorm.doctor.graph.graph import NEAR
from addnorm.doctor.graph.ops import ADDS, mixes
from addnorm.doctor.model_trace import Visit, modes, visiting
from addnorm.doctor.report import SEVERITIES, Finding, Report, few
from addnorm.doctor.rules import RULES, Case
from addnorm.doctor.trace.errors import told
from addnorm.doctor.trace.recorder import Recorder
from addnorm.doctor.trace.state_guard import untouched


def doctor(
    model: nn.Module,
    example_inputs: Any,
    loss: Callable[[Any], Tensor] | None = None,
    *,
    optimizer: Any = None,
    config: Mapping[str, Any] | None = None,
    build: Callable[..., nn.Module] | None = None,
    rules: Sequence[str] | None = None,
) -> Report:
    """What is really wired in a model, measured at one example.

    example_inputs: a tensor, a tuple of positional or a dict of keyword inputs. loss: makes a
        scalar of what the model returns; if None, the loss that it returned itself, as .loss or
        under that name in a dict, or else a random projection of all it returned. optimizer: its
        weight decay is looked at. config, build: options and what builds a model of them, to find
        options without effect. rules: ids of audit rules; all if None.

    The model is left as it was.

    >>> from addnorm.models import build
    >>> import torch
    >>> model = build("gpt2", depth=2, dim=32, heads=4, vocab=50)
    >>> report = doctor(model, torch.arange(1, 9).reshape(2, 4))
    >>> [block.wiring for block in report.blocks]
    ['pre_ln', 'pre_ln', 'pre_ln', 'pre_ln']
    """
    _check(model, loss, optimizer=optimizer, config=config, build=build)
    chosen = _chosen(rules)
    with visiting(model, example_inputs, loss) as visit:
        case = Case(visit, optimizer=optimizer, config=config, build=build)
        findings = [finding for name in chosen for finding in _applied(name, case)]
        return _report(visit, findings)


def _check(model: Any, loss: Any, *, optimizer: Any, config: Any, build: Any) -> None:
    """Refuse what cannot be, and what would be ignored."""
    if not isinstance(model, nn.Module):
        raise UserError(f"got {type(model).__name__}; wanted a torch.nn.Module")
    if loss is not None and not callable(loss):
        raise UserError(f"got loss={loss!r}; wanted a function of the model's output; words such "
                        "as 'mse' are for a stress run")  # fmt: skip
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise UserError(f"got optimizer={optimizer!r}; wanted a torch.optim.Optimizer")
    if (config is None) != (build is None):
        got, missing = ("build", "config") if config is None else ("config", "build")
        raise UserError(f"got {got}= without {missing}=; wanted both, to try every option, or none")


def _chosen(rules: Sequence[str] | None) -> list[str]:
    if isinstance(rules, str):
        raise UserError(f"got rules={rules!r}; wanted a list of rule ids: rules=[{rules!r}]")
    for name in rules or ():
        if name not in RULES:
            raise UserError(unknown("rule", str(name), RULES))
    return list(RULES if rules is None else rules)


def _applied(name: str, case: Case) -> list[Finding]:
    """What a rule finds; a rule that fails says nothing, and that is noted."""
    check()
    try:
        return list(RULES[name](case))
    except UserError:
        raise
    except Exception as problem:
        case.visit.notes.append(f"the rule {name} could not be applied: {told(problem)}")
        return []


def glanced(model: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The signature of a model from one forward alone: nothing is measured or audited."""
    with untouched(model) as guard, torch.enable_grad():
        modes(model, False)
        recorder = Recorder(model, guard, still=False)
        recorder.run(args, {})
        return build_report.signature(classify(recorder.graph, recorder.joins))


def _report(visit: Visit, findings: list[Finding]) -> Report:
    readings = visit.anatomy.blocks()
    others = [r for r in visit.anatomy.readings if r.aside]
    made = build_report.blocks(visit, readings)
    blind = sum("gradient_norm" not in block.measurements for block in made)
    if blind and visit.weight_gradients:
        visit.notes.append(
            f"no gradient was seen at {blind} of {len(made)} adds: they were cut off, or computed "
            "again in the backward pass"
        )
    visit.notes += _blind_spots(visit)
    findings.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
    return Report(
        model=type(visit.model).__name__,
        blocks=made,
        findings=tuple(findings),
        rows=tuple(build_report.rows(visit, made)),
        norms=build_report.norm_uses(visit, readings),
        inner=build_report.blocks(visit, others),
        stacks=tuple(build_report.describe(visit, readings, made=made)),
        odd=tuple(build_report.odd_ones(made)),
        notes=tuple(visit.notes),
        signature=build_report.signature(visit.anatomy),
        sketches=sketches(visit.anatomy),
    )


def _without_block(anatomy: Anatomy) -> Iterator[str]:
    """Why there is no block, or none around an attention."""
    graph = anatomy.graph
    if not anatomy.blocks():
        sums = [node for node in graph if node.op in ADDS and len(node.ins) > 1]
        mixing = [node for node in graph if mixes(node.op)]
        if not mixing:
            why = "nothing mixes features or tokens of the inputs"
        elif not any(node.active for node in mixing):
            where = mixing[0].path or "the model itself"
            why = (
                f"what mixes features or tokens, from {where!r} on, could not be followed back to "
                "the inputs, as inside torch.vmap"
            )
        elif not sums:
            why = "nothing that was made of the inputs is added to anything else made of them"
        else:
            why = (
                f"of {len(sums)} additions, the last one in {sums[-1].path or 'the model itself'!r}"
                ", none puts a branch back onto the stream that it was made of"
            )
        yield f"a residual add: {why}"
        return
    inside = set[int]().union(*(reading.join.path for reading in anatomy.readings))
    # what one call made shares its operands: an attention may return its weights as well
    calls = {id(graph[i].operands) for i in inside}
    outside = {node.index for node in graph if id(node.operands) not in calls}
    alone = [graph[i].path for i in sorted(looks(graph, outside))]
    if alone:
        yield (
            f"a residual add around the attention in {few(alone)}: what it makes is not added to "
            "what it reads"
        )


def _blind_spots(visit: Visit) -> Iterator[str]:
    """What the recording could not show."""
    graph = visit.anatomy.graph
    yield from _without_block(visit.anatomy)
    opaque = [node.path for node in graph if node.op == "opaque"]
    if opaque:
        yield f"what happens inside {few(opaque)}: no operation shows"
    if graph.tired:
        yield (
            f"joins over long distances: {len(graph)} operations have too many ways to walk them "
            f"all, in the end only ways of at most {NEAR} operations"
        )
    if visit.training:
        yield "eval mode: the model ran in train mode only, with nothing dropped"
    escaped = visit.guard.escaped() if visit.guard is not None else []
    if escaped:
        yield (
            f"what wrote to {few(escaped)}: no copy was made before, so that these "
            "weights are not as they were"
        )
