"""Entry point of the doctor: a module and example inputs in, a report out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.interrupts import raise_if_interrupted
from addnorm.doctor.build_report import build_report
from addnorm.doctor.model_trace import trace_model
from addnorm.doctor.report import Finding, Report
from addnorm.doctor.rules import RULES, RuleContext
from addnorm.doctor.rules.probing.perturb import reads_ahead
from addnorm.doctor.trace.errors import describe_exception


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
    """Report which norms and residual connections a model has, and what is wrong with them.

    The model runs once forward and once backward on the example inputs; some rules run it a few
    more times. Its weights, buffers, modes, hooks and random generators are restored.

    Args:
        model: any PyTorch module
        example_inputs: a tensor, a tuple of positional inputs, or a dict of keyword inputs
        loss: function from the model's output to a scalar. By default the loss that the model
            returns, as `.loss` or under that key, else a random projection of all its outputs.
        optimizer: optimizer whose weight decay is checked
        config: options of the model; together with `build`, options without effect are found
        build: function that builds the model from the options
        rules: ids of the rules to apply; all by default

    Returns:
        Blocks, norms, findings and measurements.

    Raises:
        UserError: if an argument is invalid or the model does not run on the inputs

    >>> from addnorm.models import build
    >>> import torch
    >>> model = build("gpt2", depth=2, dim=32, heads=4, vocab=50)
    >>> report = doctor(model, torch.arange(1, 9).reshape(2, 4))
    >>> [block.wiring for block in report.blocks]
    ['pre_ln', 'pre_ln', 'pre_ln', 'pre_ln']
    """
    _check_arguments(model, loss, optimizer=optimizer, config=config, build=build)
    rule_ids = _select_rules(rules)
    with trace_model(model, example_inputs, loss) as trace:
        return audit(RuleContext(trace, optimizer=optimizer, config=config, build=build), rule_ids)


def audit(context: RuleContext, rule_ids: Sequence[str] = tuple(RULES)) -> Report:
    """Apply rules to a traced model and return the report; the trace must still be open."""
    findings = [finding for name in rule_ids for finding in _apply_rule(name, context)]
    return build_report(
        context.trace, findings=findings, notes=context.notes, reads_ahead=reads_ahead(context)
    )


def _check_arguments(model: Any, loss: Any, *, optimizer: Any, config: Any, build: Any) -> None:
    if not isinstance(model, nn.Module):
        raise UserError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if loss is not None and not callable(loss):
        raise UserError(
            f"loss: expected a function of the model's output, got {loss!r}; names such as 'mse' "
            "are for the stress test"
        )
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise UserError(f"optimizer: expected a torch.optim.Optimizer, got {optimizer!r}")
    if (config is None) != (build is None):
        given, missing = ("build", "config") if config is None else ("config", "build")
        raise UserError(
            f"config, build: expected both or neither, got {given} only; pass {missing} as well"
        )


def _select_rules(rules: Sequence[str] | None) -> list[str]:
    if isinstance(rules, str):
        raise UserError(f"rules: expected a list of rule ids, got {rules!r}; pass [{rules!r}]")
    for name in rules or ():
        if name not in RULES:
            raise UserError(unknown_name_message("rule", str(name), RULES))
    return list(RULES if rules is None else rules)


def _apply_rule(name: str, context: RuleContext) -> list[Finding]:
    """Return the findings of a rule; a rule that fails becomes a note."""
    raise_if_interrupted()
    try:
        return list(RULES[name](context))
    except UserError:
        raise
    except Exception as problem:
        context.notes.append(f"the rule {name} could not be applied: {describe_exception(problem)}")
        return []
