"""The doctor's one entry: any module and an example input in, a report out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.interrupts import raise_if_interrupted
from addnorm.doctor import build_report
from addnorm.doctor.analysis.branch_kinds import attention_nodes
from addnorm.doctor.analysis.classify import classify
from addnorm.doctor.analysis.results import ModelAnalysis
from addnorm.doctor.analysis.typical_layer import build_typical_layers
from addnorm.doctor.graph.graph import MAX_NEAR_NODES
from addnorm.doctor.graph.ops import ADDS, is_mixing
from addnorm.doctor.model_trace import ModelTrace, set_train_mode, trace_model
from addnorm.doctor.report import SEVERITIES, Finding, Report, join_paths
from addnorm.doctor.rules import RULES, RuleContext
from addnorm.doctor.trace.errors import describe_exception
from addnorm.doctor.trace.recorder import GraphRecorder
from addnorm.doctor.trace.state_guard import preserve_model_state


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
    _check_arguments(model, loss, optimizer=optimizer, config=config, build=build)
    chosen = _select_rules(rules)
    with trace_model(model, example_inputs, loss) as visit:
        case = RuleContext(visit, optimizer=optimizer, config=config, build=build)
        findings = [finding for name in chosen for finding in _apply_rule(name, case)]
        return _make_report(visit, findings)


def _check_arguments(model: Any, loss: Any, *, optimizer: Any, config: Any, build: Any) -> None:
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


def _select_rules(rules: Sequence[str] | None) -> list[str]:
    if isinstance(rules, str):
        raise UserError(f"got rules={rules!r}; wanted a list of rule ids: rules=[{rules!r}]")
    for name in rules or ():
        if name not in RULES:
            raise UserError(unknown_name_message("rule", str(name), RULES))
    return list(RULES if rules is None else rules)


def _apply_rule(name: str, context: RuleContext) -> list[Finding]:
    """What a rule finds; a rule that fails says nothing, and that is noted."""
    raise_if_interrupted()
    try:
        return list(RULES[name](context))
    except UserError:
        raise
    except Exception as problem:
        context.trace.notes.append(
            f"the rule {name} could not be applied: {describe_exception(problem)}"
        )
        return []


def forward_signature(model: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The signature of a model from one forward alone: nothing is measured or audited."""
    with preserve_model_state(model) as guard, torch.enable_grad():
        set_train_mode(model, False)
        recorder = GraphRecorder(model, guard, skip_dropout=False)
        recorder.run(args, {})
        return build_report.build_signature(classify(recorder.graph, recorder.residual_adds))


def _make_report(trace: ModelTrace, findings: list[Finding]) -> Report:
    readings = trace.analysis.blocks()
    others = [r for r in trace.analysis.add_analyses if r.is_excluded]
    made = build_report.build_blocks(trace, readings)
    blind = sum("gradient_norm" not in block.measurements for block in made)
    if blind and trace.weight_gradients:
        trace.notes.append(
            f"no gradient was seen at {blind} of {len(made)} adds: they were cut off, or computed "
            "again in the backward pass"
        )
    trace.notes += _list_blind_spots(trace)
    findings.sort(key=lambda finding: -SEVERITIES.index(finding.severity))
    return Report(
        model=type(trace.model).__name__,
        blocks=made,
        findings=tuple(findings),
        rows=tuple(build_report.build_rows(trace, made)),
        norms=build_report.list_norm_uses(trace, readings),
        inner=build_report.build_blocks(trace, others),
        stacks=tuple(build_report.describe_streams(trace, readings, blocks=made)),
        odd=tuple(build_report.outlier_blocks(made)),
        notes=tuple(trace.notes),
        signature=build_report.build_signature(trace.analysis),
        sketches=build_typical_layers(trace.analysis),
    )


def _explain_missing_blocks(analysis: ModelAnalysis) -> Iterator[str]:
    """Why there is no block, or none around an attention."""
    graph = analysis.graph
    if not analysis.blocks():
        sums = [node for node in graph if node.op in ADDS and len(node.inputs) > 1]
        mixing = [node for node in graph if is_mixing(node.op)]
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
    inside = set[int]().union(*(reading.add.path for reading in analysis.add_analyses))
    # what one call made shares its operands: an attention may return its weights as well
    calls = {id(graph[i].operands) for i in inside}
    outside = {node.index for node in graph if id(node.operands) not in calls}
    alone = [graph[i].path for i in sorted(attention_nodes(graph, outside))]
    if alone:
        yield (
            f"a residual add around the attention in {join_paths(alone)}: what it makes is not added to "
            "what it reads"
        )


def _list_blind_spots(trace: ModelTrace) -> Iterator[str]:
    """What the recording could not show."""
    graph = trace.analysis.graph
    yield from _explain_missing_blocks(trace.analysis)
    opaque = [node.path for node in graph if node.op == "opaque"]
    if opaque:
        yield f"what happens inside {join_paths(opaque)}: no operation shows"
    if graph.over_budget:
        yield (
            f"joins over long distances: {len(graph)} operations have too many ways to walk them "
            f"all, in the end only ways of at most {MAX_NEAR_NODES} operations"
        )
    if trace.training:
        yield "eval mode: the model ran in train mode only, with nothing dropped"
    escaped = trace.guard.unsaved_writes() if trace.guard is not None else []
    if escaped:
        yield (
            f"what wrote to {join_paths(escaped)}: no copy was made before, so that these "
            "weights are not as they were"
        )
