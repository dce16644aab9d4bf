"""Options that change nothing."""

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

MAX_WORDS = 8
"""Words of a builder that are tried."""


@rule("ineffective_option")
def ineffective_option(context: RuleContext) -> Iterator[Finding]:
    """An option of the config whose other value gives the same graph and the same weights."""
    if context.config is None or context.build is None:
        return
    base = _fingerprint(context, dict(context.config))
    if base is None:
        context.trace.notes.append(
            "options without effect: what the builder makes of the config does not run"
        )
        return
    for name, value in context.config.items():
        prints = {
            repr(other): _fingerprint(context, {**context.config, name: other})
            for other in _alternative_values(context.build, name, value=value)
        }
        tried = [other for other, made in prints.items() if made is not None]
        if not tried:
            context.trace.notes.append(f"whether {name} has an effect: no other value of it runs")
        if tried and all(prints[other] == base for other in tried):
            # A number or a word may be meant for something outside the forward.
            severity: Severity = "warning" if isinstance(value, bool | float) else "info"
            yield Finding(
                "ineffective_option", severity, name,
                f"{name}={value!r} and {name}={' or '.join(tried)} build the same network; the "
                "option is not used: wire it or refuse it",
                {"option": name, "tried": [repr(value), *tried]},
            )  # fmt: skip


def _alternative_values(build: Callable[..., Any], name: str, *, value: Any) -> list[Any]:
    """Other values worth trying; none where only the owner knows what is allowed.

    Rates are tried high as well, so that what is drawn by them comes out otherwise.
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
    allowed = [*_literals(build, name), *_compared_words(build)]
    return [other for other in dict.fromkeys(allowed) if other != value]


def _options_callable(build: Any) -> Any:
    """What takes the options."""
    return vars(build).get("__init__", build) if isinstance(build, type) else build


def _literals(build: Callable[..., Any], name: str) -> tuple[Any, ...]:
    """The values that an annotation allows."""
    try:
        hint = get_type_hints(_options_callable(build)).get(name)
    except Exception:  # an annotation that cannot be read says nothing
        return ()
    return get_args(hint) if get_origin(hint) is Literal else ()


def _compared_words(build: Callable[..., Any]) -> list[str]:
    """Words that the builder itself knows: what it compares an option with."""
    code = getattr(_options_callable(build), "__code__", None)
    words = [word for word in getattr(code, "co_consts", ()) if isinstance(word, str)]
    return [word for word in words if word.isidentifier()][:MAX_WORDS]  # no docstrings, no messages


def _fingerprint(context: RuleContext, options: dict[str, Any]) -> tuple[Any, ...] | None:
    """Operations, shapes, constants and start weights of what the builder makes of options.

    In eval and in train mode: some options speak only there.
    """
    assert context.build is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model = context.build(**options)
        except Exception:  # a value the builder refuses is not without effect
            return None
        shapes = [_trace_graph(context, model, training=training) for training in (False, True)]
    if shapes == [None, None]:
        return None
    weights = tuple(
        (name, tuple(w.shape), float(w.detach().double().sum()))
        for name, w in model.named_parameters()
    )
    return *shapes, weights


def _trace_graph(
    context: RuleContext, model: nn.Module, *, training: bool
) -> tuple[Any, ...] | None:
    """The graph of one mode; None if the model does not run in it."""
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
