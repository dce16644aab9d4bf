"""Options that change nothing."""

from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import nn

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.model_trace import modes
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rules.base import Case, rule
from addnorm.doctor.trace.recorder import Recorder
from addnorm.doctor.trace.state_guard import untouched

MOST = 8
"""Words of a builder that are tried."""


@rule("ineffective_option")
def ineffective_option(case: Case) -> Iterator[Finding]:
    """An option of the config whose other value gives the same graph and the same weights."""
    if case.config is None or case.build is None:
        return
    base = _fingerprint(case, dict(case.config))
    if base is None:
        case.visit.notes.append(
            "options without effect: what the builder makes of the config does not run"
        )
        return
    for name, value in case.config.items():
        prints = {
            repr(other): _fingerprint(case, {**case.config, name: other})
            for other in _others(case.build, name, value=value)
        }
        tried = [other for other, made in prints.items() if made is not None]
        if not tried:
            case.visit.notes.append(f"whether {name} has an effect: no other value of it runs")
        if tried and all(prints[other] == base for other in tried):
            # A number or a word may be meant for something outside the forward.
            severity: Severity = "warning" if isinstance(value, bool | float) else "info"
            yield Finding(
                "ineffective_option", severity, name,
                f"{name}={value!r} and {name}={' or '.join(tried)} build the same network; the "
                "option is not used: wire it or refuse it",
                {"option": name, "tried": [repr(value), *tried]},
            )  # fmt: skip


def _others(build: Callable[..., Any], name: str, *, value: Any) -> list[Any]:
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
    allowed = [*_literals(build, name), *_words(build)]
    return [other for other in dict.fromkeys(allowed) if other != value]


def _code(build: Any) -> Any:
    """What takes the options."""
    return vars(build).get("__init__", build) if isinstance(build, type) else build


def _literals(build: Callable[..., Any], name: str) -> tuple[Any, ...]:
    """The values that an annotation allows."""
    try:
        hint = get_type_hints(_code(build)).get(name)
    except Exception:  # an annotation that cannot be read says nothing
        return ()
    return get_args(hint) if get_origin(hint) is Literal else ()


def _words(build: Callable[..., Any]) -> list[str]:
    """Words that the builder itself knows: what it compares an option with."""
    code = getattr(_code(build), "__code__", None)
    words = [word for word in getattr(code, "co_consts", ()) if isinstance(word, str)]
    return [word for word in words if word.isidentifier()][:MOST]  # no docstrings, no messages


def _fingerprint(case: Case, options: dict[str, Any]) -> tuple[Any, ...] | None:
    """Operations, shapes, constants and start weights of what the builder makes of options.

    In eval and in train mode: some options speak only there.
    """
    assert case.build is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model = case.build(**options)
        except Exception:  # a value the builder refuses is not without effect
            return None
        shapes = [_recorded(case, model, training=training) for training in (False, True)]
    if shapes == [None, None]:
        return None
    weights = tuple(
        (name, tuple(w.shape), float(w.detach().double().sum()))
        for name, w in model.named_parameters()
    )
    return *shapes, weights


def _recorded(case: Case, model: nn.Module, *, training: bool) -> tuple[Any, ...] | None:
    """The graph of one mode; None if the model does not run in it."""
    torch.manual_seed(0)
    try:
        with untouched(model) as guard, torch.no_grad():
            modes(model, training)
            recorder = Recorder(model, guard, still=False)
            recorder.run(case.visit.args, case.visit.kwargs)
    except Exception:
        return None
    return _shape_of(recorder.graph)


def _shape_of(graph: Graph) -> tuple[Any, ...]:
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
