"""Rule `ineffective_option`: options of the builder that have no effect.

The rule builds the model again with another value of one option and compares fingerprints:
operations, shapes, constants and initial weights, in eval and in train mode. Equal fingerprints
mean that the builder ignores the option. Weights that the model builds and never reads do not
count: an option that only adds those has no effect either.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.doctor.graph.graph import Graph
from addnorm.doctor.graph.nodes import Node, Operand
from addnorm.doctor.model_trace import set_train_mode
from addnorm.doctor.report import Finding, Severity
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.rules.base import rule
from addnorm.doctor.rules.probing.option_values import (
    alternative_values,
    is_known_name,
    is_size_name,
)
from addnorm.doctor.trace.recorder import GraphRecorder
from addnorm.doctor.trace.recording import Recording
from addnorm.doctor.trace.state_guard import preserve_model_state
from addnorm.doctor.trace.tensors import iter_tensors

MIN_TRIED_NAMES = 3
"""Names of a known kind, such as activations, that must build the same network for a warning."""
MAX_COUNT = 64
"""Largest integer that may be a number of layers."""
SAME_DEVIATION = 0.05
"""Relative difference of two standard deviations up to which large weights have one distribution;
for n numbers, 5 / sqrt(n) is allowed if that is more."""


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
            _show(other): _fingerprint(context, {**context.config, name: other})
            for other in alternative_values(
                context.build, name, value=value, model=context.trace.model
            )
        }
        tried = [other for other, result in prints.items() if result is not None]
        if not tried:
            context.notes.append(
                f"the effect of option {name} was not checked: no other value gives a model that "
                "runs"
            )
        if _skips_a_count(context, name, value=value, base=base):
            yield Finding(
                "ineffective_option", "warning", name,
                f"{name}={value} and {name}={value - 1} build the same network, while each further "
                f"{name} adds the same number of weights; {name}={value} builds one too few",
                {"option": name, "tried": [value - 1, value, value + 1, value + 2]},
            )  # fmt: skip
            continue
        results = [result for result in prints.values() if result is not None]
        is_only_eps = [n for n in context.config if "eps" in n.lower()] == [name]
        missed = _count_missed_norms(base, results) if is_only_eps else None
        if missed is not None:
            yield Finding(
                "ineffective_option", "warning", name,
                f"{name}={_show(value)} sets the epsilon of {missed[0]} norms, and {missed[1]} of "
                "the same kind keep another one; pass it to every norm",
                {"option": name, "norms": missed[0], "others": missed[1]},
            )  # fmt: skip
            continue
        if tried and all(_is_same_network(base, result) for result in results):
            yield Finding(
                "ineffective_option", _severity(name, value, tried=tried, prints=prints), name,
                f"{name}={_show(value)} and {name}={' or '.join(tried)} build the same network, so "
                "the option is ignored; use it in the builder or remove it",
                {"option": name, "tried": [_show(value), *tried]},
            )  # fmt: skip


def _severity(
    name: str, value: Any, *, tried: list[str], prints: Mapping[str, "_Fingerprint | None"]
) -> Severity:
    """Return the severity: an integer or a string may control something outside the model.

    Not an integer whose name is that of a size, if all others tried, smaller ones too, run.
    """
    is_named = is_known_name(value) and len(tried) >= MIN_TRIED_NAMES
    is_size = isinstance(value, int) and is_size_name(name) and len(tried) == len(prints)
    return "warning" if isinstance(value, bool | float) or is_named or is_size else "info"


def _count_missed_norms(
    base: "_Fingerprint", results: Sequence["_Fingerprint"]
) -> tuple[int, int] | None:
    """Return how many norms take their epsilon from an option, and how many of the kind do not.

    None if all of them do, or if none does.
    """
    before = base.norm_epsilons
    for result in results:
        after = result.norm_epsilons
        if [kind for kind, _ in before] != [kind for kind, _ in after]:
            continue
        changed = [one[0] for one, other in zip(before, after, strict=True) if one != other]
        kept = [one for one, other in zip(before, after, strict=True) if one == other]
        others = [kind for kind, _ in kept if kind in changed]
        if changed and others:
            return len(changed), len(others)
    return None


def _show(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


@dataclass(frozen=True, slots=True)
class _Fingerprint:
    """What a builder made of its options."""

    graphs: tuple[tuple[Any, ...] | None, ...]
    """Operations, shapes and constants in eval and in train mode; None where it does not run."""
    weights: dict[str, tuple[tuple[int, ...], float, float]]
    """Shape, sum and standard deviation of the initial weights."""
    read_weights: frozenset[str]
    """Weights that some operation reads."""
    outputs: tuple[tuple[float, ...] | None, ...]
    """Sums of the outputs in both modes; masks and other constants show in them only."""
    norm_epsilons: tuple[tuple[str, float], ...] = ()
    """Operation and epsilon of the built-in norms over features, in the order of the pass."""


def _skips_a_count(context: RuleContext, name: str, *, value: Any, base: _Fingerprint) -> bool:
    """Return whether an option counts layers, but builds as many as for the number before.

    Each of the next two numbers must add the same weights.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 < value <= MAX_COUNT:
        return False
    sizes = [_count_weights(context, {**(context.config or {}), name: value + i}) for i in range(3)]
    if None in sizes or sizes != sorted(set(sizes)) or sizes[2] - sizes[1] != sizes[1] - sizes[0]:
        return False
    before = _fingerprint(context, {**(context.config or {}), name: value - 1})
    return before is not None and _is_same_network(base, before)


def _count_weights(context: RuleContext, options: dict[str, Any]) -> Any:
    """Return the number of weights that a builder makes; None if it fails."""
    assert context.build is not None
    with torch.random.fork_rng(devices=[]):
        try:
            return sum(weight.numel() for weight in context.build(**options).parameters())
        except Exception:  # a value that the builder rejects
            return None


def _is_same_network(one: _Fingerprint, other: _Fingerprint) -> bool:
    """Return whether two fingerprints differ at most in weights that are never read.

    Weights that one of the models builds in addition shift the random numbers of the others, so
    that only their distributions are compared.
    """
    if one.graphs != other.graphs or one.read_weights != other.read_weights:
        return False
    if one.weights.keys() == other.weights.keys():
        return one.weights == other.weights and one.outputs == other.outputs
    return all(
        _has_same_distribution(one.weights[name], other.weights[name]) for name in one.read_weights
    )


def _has_same_distribution(
    one: tuple[tuple[int, ...], float, float], other: tuple[tuple[int, ...], float, float]
) -> bool:
    if one == other:
        return True
    tolerance = max(SAME_DEVIATION, 5 / math.sqrt(max(math.prod(one[0]), 1)))
    return one[0] == other[0] and math.isclose(one[2], other[2], rel_tol=tolerance)


def _fingerprint(context: RuleContext, options: dict[str, Any]) -> _Fingerprint | None:
    """Return the fingerprint of the model built from options.

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
        runs = [_record(context, model, training=training) for training in (False, True)]
    if runs == [None, None]:
        return None
    graphs = [None if run is None else run.graph for run in runs]
    outputs = tuple(None if run is None else _sum_outputs(run.output) for run in runs)
    weights = {name: _describe_weight(weight) for name, weight in model.named_parameters()}
    read = frozenset(
        o.name for graph in graphs for node in graph or () for o in node.operands if o.name
    )
    prints = tuple(None if graph is None else _graph_fingerprint(graph) for graph in graphs)
    epsilons = [
        (node.op, float(node.detail["eps"]))
        for node in graphs[0] or ()
        if node.op in ("layer_norm", "rms_norm") and node.detail.get("eps") is not None
    ]
    return _Fingerprint(prints, weights, read & weights.keys(), outputs, tuple(epsilons))


def _sum_outputs(output: Any) -> tuple[float, ...]:
    numbers = [t.detach() for t in iter_tensors(output) if t.is_floating_point()]
    numbers = [t.to_dense() if t.is_sparse else t for t in numbers]
    return tuple(float(t.double().nan_to_num().sum()) for t in numbers)


def _describe_weight(weight: Tensor) -> tuple[tuple[int, ...], float, float]:
    values = weight.detach().double()
    return tuple(weight.shape), float(values.sum()), float(values.std(correction=0))


def _record(context: RuleContext, model: nn.Module, *, training: bool) -> Recording | None:
    """Trace the model in one mode; None if it does not run."""
    torch.manual_seed(0)
    try:
        with preserve_model_state(model) as guard, torch.no_grad():
            set_train_mode(model, training)
            recorder = GraphRecorder(model, guard, skip_dropout=False)
            return recorder.run(context.trace.args, context.trace.kwargs)
    except Exception:
        return None


def _graph_fingerprint(graph: Graph) -> tuple[Any, ...]:
    """Return operations, shapes and constants; the values of weights are compared apart."""

    def operand(o: Operand) -> tuple[Any, ...]:
        return o.kind, o.node, None if o.kind == "weight" else o.value, o.name

    def fingerprint(node: Node) -> tuple[Any, ...]:
        detail = tuple(sorted((k, str(v)) for k, v in node.detail.items()))
        value = None if node.learned else node.value
        return node.op, node.shape, value, tuple(map(operand, node.operands)), detail

    return tuple(map(fingerprint, graph))
