"""Options that change nothing."""

from collections.abc import Iterator
from typing import Any

import torch

from addnorm.doctor.graph import Graph
from addnorm.doctor.guard import untouched
from addnorm.doctor.record import Recorder
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import Case, rule
from addnorm.doctor.visit import modes


@rule("ineffective_option")
def ineffective_option(case: Case) -> Iterator[Finding]:
    """An option of the config whose other value gives the same graph and the same weights."""
    if case.config is None or case.build is None:
        return
    base = _fingerprint(case, dict(case.config))
    if base is None:
        return
    for name, value in case.config.items():
        for other in _others(value):
            print_ = _fingerprint(case, {**case.config, name: other})
            if print_ is not None and print_ == base:
                yield Finding(
                    "ineffective_option", "warning", name,
                    f"{name}={value!r} and {name}={other!r} build the same network; the option is "
                    "not used: wire it or refuse it",
                    {"option": name, "tried": [repr(value), repr(other)]},
                )  # fmt: skip


def _others(value: Any) -> list[Any]:
    """Another value worth trying; none where only the owner knows what is allowed."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, float):
        return [value / 2 if value else 0.1]
    pairs = {"pre": "post", "post": "pre", "rmsnorm": "layernorm", "layernorm": "rmsnorm"}
    return [pairs[value]] if isinstance(value, str) and value in pairs else []


def _fingerprint(case: Case, options: dict[str, Any]) -> tuple[Any, ...] | None:
    """Operations, shapes, constants and start weights of what the builder makes of options."""
    assert case.build is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        try:
            model = case.build(**options)
            with untouched(model) as guard:
                modes(model, False)
                recorder = Recorder(model, guard, still=False)
                with torch.no_grad():
                    recorder.run(case.visit.args, case.visit.kwargs)
        except Exception:  # a value the builder refuses is not without effect
            return None
    weights = tuple(
        (name, tuple(w.shape), float(w.detach().double().sum()))
        for name, w in model.named_parameters()
    )
    return _shape_of(recorder.graph), weights


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
