"""Rule `ineffective_option`: options of the builder that have no effect.

The rule builds the model again with another value of one option and compares fingerprints:
operations, shapes, constants and initial weights, in eval and in train mode. Equal fingerprints
mean that the builder ignores the option.
"""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import nn

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.model_trace import set_train_mode
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rules.base import RuleContext, rule
from addnorm.doctor.trace.recorder import GraphRecorder
from addnorm.doctor.trace.state_guard import preserve_model_state

MAX_TRIED_STRINGS = 8
"""String constants of the builder's code that are tried as values."""


@rule("ineffective_option")
def ineffective_option(context: RuleContext) -> Iterator[Finding]:
    """Report options whose other values build the same graph and the same weights."""
    if context.config is None or context.build is None:
        return
    base = _fingerprint(context, dict(context.config))
    if base is None:
        context.notes.append(
            "options without effect were not checked: the model built from the config does not run"
        )
        return
    for name, value in context.config.items():
        prints = {
            repr(other): _fingerprint(context, {**context.config, name: other})
            for other in _alternative_values(context.build, name, value=value)
        }
        tried = [other for other, result in prints.items() if result is not None]
        if not tried:
            context.notes.append(
                f"the effect of option {name} was not checked: no other value gives a model that "
                "runs"
            )
        if tried and all(prints[other] == base for other in tried):
            # An integer or a string may control something outside the forward pass.
            severity: Severity = "warning" if isinstance(value, bool | float) else "info"
            yield Finding(
                "ineffective_option", severity, name,
                f"{name}={value!r} and {name}={' or '.join(tried)} build the same network, so the "
                "option is ignored; use it in the builder or remove it",
                {"option": name, "tried": [repr(value), *tried]},
            )  # fmt: skip


def _alternative_values(build: Callable[..., Any], name: str, *, value: Any) -> list[Any]:
    """Return other values to try; empty if the allowed values are unknown.

    A fraction is also tried at 0.9, so that a dropout rate changes the dropped positions.
    """
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [value / 2 if value else 0.1, *([0.9] if 0 <= value < 0.9 else [])]
    if isinstance(value, int):
        return [value + 1, 2 * value or 2]
    if isinstance(value, Enum):
        return [other for other in type(value) if other is not value]
    if not isinstance(value, str):
        return []
    allowed = [*_literals(build, name), *_string_constants(build)]
    return [other for other in dict.fromkeys(allowed) if other != value]


def _options_callable(build: Any) -> Any:
    """Return the function that receives the options: `__init__` of a class."""
    return vars(build).get("__init__", build) if isinstance(build, type) else build


def _literals(build: Callable[..., Any], name: str) -> tuple[Any, ...]:
    """Return the values of a `Literal` annotation."""
    try:
        hint = get_type_hints(_options_callable(build)).get(name)
    except Exception:  # an annotation that cannot be evaluated
        return ()
    return get_args(hint) if get_origin(hint) is Literal else ()


def _string_constants(build: Callable[..., Any]) -> list[str]:
    """Return the identifiers among the builder's string constants.

    A builder compares an option with them, as in `if norm == "rms"`.
    """
    code = getattr(_options_callable(build), "__code__", None)
    constants = [each for each in getattr(code, "co_consts", ()) if isinstance(each, str)]
    return [each for each in constants if each.isidentifier()][:MAX_TRIED_STRINGS]


def _fingerprint(context: RuleContext, options: dict[str, Any]) -> tuple[Any, ...] | None:
    """Return operations, shapes, constants and initial weights of the model built from options.

    Both modes are traced, because some options act in training only. None if the model cannot be
    built or run.
    """
    assert context.build is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model = context.build(**options)
        except Exception:  # a value that the builder rejects has an effect
            return None
        graphs = [_trace_graph(context, model, training=training) for training in (False, True)]
    if graphs == [None, None]:
        return None
    weights = tuple(
        (name, tuple(w.shape), float(w.detach().double().sum()))
        for name, w in model.named_parameters()
    )
    return *graphs, weights


def _trace_graph(
    context: RuleContext, model: nn.Module, *, training: bool
) -> tuple[Any, ...] | None:
    """Trace the model in one mode; None if it does not run."""
    torch.manual_seed(0)
    try:
        with preserve_model_state(model) as guard, torch.no_grad():
            set_train_mode(model, training)
            recorder = GraphRecorder(model, guard, skip_dropout=False)
            recorder.run(context.trace.args, context.trace.kwargs)
    except Exception:
        return None
    return _graph_fingerprint(recorder.graph)


def _graph_fingerprint(graph: Graph) -> tuple[Any, ...]:
    return tuple(
        (
            node.op,
            node.shape,
            node.value,
            tuple((o.kind, o.node, o.value, o.name) for o in node.operands),
            tuple(sorted((k, str(v)) for k, v in node.detail.items())),
        )
        for node in graph
    )
