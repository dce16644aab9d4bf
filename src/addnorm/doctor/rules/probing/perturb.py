"""Probes: the model run again with one input changed."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from addnorm.core.interrupts import check
from addnorm.doctor.analysis.classify import classify
from addnorm.doctor.graph.ops import DROPOUT, PRODUCT
from addnorm.doctor.model_trace import SEED, modes
from addnorm.doctor.report import few
from addnorm.doctor.rules.base import Case
from addnorm.doctor.rules.probing.batch_axis import one_example, placed
from addnorm.doctor.rules.probing.input_masks import is_mask, node_of
from addnorm.doctor.rules.probing.open_gates import closed, fill, unheard
from addnorm.doctor.rules.probing.output_layout import followed, only
from addnorm.doctor.trace.recorder import Recorder
from addnorm.doctor.trace.tensors import mapped, tensors

LONG, SHORT = 64, 16
"""Tokens from which on probes are made with fewer, and how many."""
NOTICEABLE = 1e-4
"""Share of its own size by which an output must move to count."""


@dataclass(frozen=True)
class Probe:
    """The output before and after the last token of the first example was changed.

    The examples are the first axis of both.
    """

    before: Tensor
    after: Tensor
    length: int
    """Tokens of the input; 0 if it has none."""
    alone: bool = False
    """Whether the inputs are one example, without an axis for examples."""

    @property
    def others(self) -> float:
        """How far the other examples moved."""
        return moved_by(self.before[1:], self.after[1:])

    @property
    def leaks(self) -> bool:
        """Whether they moved at all."""
        return self.others > NOTICEABLE

    @property
    def still(self) -> bool:
        """Whether nothing at all moved: then nothing can be said."""
        return not moved_by(self.before, self.after)


def probed(case: Case) -> Probe | None:
    """The model before and after a change of one token; made once a visit."""
    if "probe" not in case.cache:
        case.cache["probe"] = _look(case)
    return case.cache["probe"]


@dataclass(frozen=True)
class _Trial:
    """A model that runs on an example, and the input that its stream begins with."""

    case: Case
    example: Any
    target: str
    before: Tensor
    """The output as it is."""

    @property
    def tensor(self) -> Tensor:
        """The input that is changed."""
        return named(self.example)[self.target]

    def changed(self, *place: int | slice, axis: int, length: int) -> Probe | None:
        """The probe of a change at one place; None if the model refuses it, or it is not known
        where the examples stand. axis: where they stand in the input."""
        new = self.tensor.clone()
        new[place] = other_than(new[place])
        after = run(self.case, replaced(self.example, {self.target: new}))
        if after is None or after.shape != self.before.shape:
            return None
        batch = new.shape[axis]
        layout = only(tuple(after.shape), batch, axis=axis)
        if layout is None or Probe(layout.first(self.before), layout.first(after), 0).leaks:
            again = partial(run, self.case)
            seen = followed(self.before, batch=batch, axis=axis, example=self.example, run=again)
            layout = seen or layout
        if layout is None:
            return None
        return Probe(layout.first(self.before), layout.first(after), length)

    def last(self) -> Probe | None:
        """The probe of a change of the last token, where the first axis holds them."""
        new = self.tensor.clone()
        new[-1] = other_than(new[-1])
        after = run(self.case, replaced(self.example, {self.target: new}))
        if after is None or after.shape != self.before.shape:
            return None
        return Probe(self.before[None], after[None], new.shape[0], alone=True)


def _look(case: Case) -> Probe | None:
    """Change the last token of the first example; where tokens come first, find that out."""
    trial = _trial(case)
    if trial is None:
        return None
    tensor = trial.tensor
    tokens = tensor.dim() > 1 and tensor.shape[1] > 1 and not _image(tensor)
    if not tokens:
        probe = trial.changed(0, axis=0, length=0)
    else:
        probe = trial.changed(0, -1, axis=0, length=tensor.shape[1])
        if probe is not None and probe.still:  # a token that a mask hides, perhaps
            probe = trial.changed(0, axis=0, length=0)
    if probe is not None and not probe.leaks:
        return probe
    if one_example(case, tensor, out=trial.before):
        return trial.last()
    if not tokens or tensor.shape[0] < 2 or trial.before.dim() < 3:
        return probe
    column = trial.changed(slice(None), 0, axis=1, length=0)
    if column is None or column.leaks or placed(case, tuple(tensor.shape[:2])):
        return probe
    case.visit.notes.append(
        "leaks between examples on the first axis of the inputs: it was taken for the tokens, as "
        "what stands on the second one is independent; if it holds examples, these see one another"
    )
    return trial.changed(-1, 0, axis=1, length=tensor.shape[0])


def _trial(case: Case) -> _Trial | None:
    """The inputs of the visit, or fewer tokens of them; None without an input or an output."""
    names = named_inputs(case)
    target = _stream_input(case, names)
    if target is None or not names[target].dim():
        return None
    tensor, example = names[target], inputs(case)
    before = None
    if tensor.dim() >= 2 and tensor.shape[1] >= LONG and not _image(tensor):
        short = _shortened(example, tensor.shape[1])  # two short runs cost less than a long one
        before = run(case, short)
        example = example if before is None else short
    before = _reference(case, example) if before is None else before
    if closed(case) and (before is None or not bool(before.isfinite().all())):
        case.cache["closed"] = []  # it does not bear to be filled
        before = _reference(case, example)
    blind = unheard(case, example)
    if blind:
        case.visit.notes.append(
            f"leaks through the branches at {few(blind)}: they add next to nothing, and no weight "
            "that learns could be filled to see through them"
        )
    if before is None or not before.dim():
        return None
    return _Trial(case, example, target, before)


def _stream_input(case: Case, names: dict[str, Tensor]) -> str | None:
    """The input that the stream which reaches the output begins with."""
    graph = case.graph
    order = list(names)
    if case.blocks:
        first = next(r for r in case.blocks if r.stream == case.blocks[-1].stream)
        behind = _data_behind(graph, first.link.start)
        for name in order:
            known = node_of(case, names[name]) in behind
            if known and names[name].dim() >= 1 and not is_mask(case, names[name]):
                return name
    candidates = [n for n in order if names[n].dim() >= 2 and not is_mask(case, names[n])]
    return candidates[0] if candidates else None


def _data_behind(graph: Any, index: int) -> set[int]:
    seen, waiting = {index}, [index]
    while waiting:
        for operand in graph[waiting.pop()].operands:
            if operand.kind == "node" and operand.node not in seen:
                seen.add(operand.node)
                waiting.append(operand.node)
    return seen


def _reference(case: Case, example: Any) -> Tensor | None:
    """The output of the visit itself where it ran in eval mode, as it is; else of another run."""
    norms = any(n.kind == "batch" for n in case.norms.values())
    if not norms and not case.visit.training and not closed(case):
        return _main(case, case.visit.out)
    return run(case, example)


def trained(case: Case) -> Case | None:
    """The same model in train mode with nothing dropped, read anew; None if dropout stands at no
    other places than in eval mode."""
    visit, guard = case.visit, case.visit.guard
    if guard is None:
        return None
    given = [t for t in named_inputs(case).values() if t.dim() >= 2 and not _image(t)]
    length = max((t.shape[1] for t in given), default=0)
    for example in examples(case, length):
        modes(visit.model, True)
        recorder = Recorder(visit.model, guard, still=True)
        try:
            with torch.no_grad():
                out = recorder.run(*example)
        except Exception:  # too short, or not made to be trained
            continue
        finally:
            modes(visit.model, visit.training)
            guard.restore()
        counts = [sum(n.op in DROPOUT for n in g) for g in (case.graph, recorder.graph)]
        if counts[0] == counts[1]:
            return None
        anatomy = classify(recorder.graph, recorder.joins)
        return Case(replace(visit, recorder=recorder, anatomy=anatomy, out=out))
    return None


def run(case: Case, example: Any) -> Tensor | None:
    """The main output for another example, with closed gates opened; None if it is refused."""
    check()
    model = case.visit.model
    model.eval()
    if case.visit.guard is not None:
        case.visit.guard.restore()
    try:
        fill(case)
        torch.manual_seed(SEED)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the visit itself has warned already
            return _main(case, model(*example[0], **example[1]))
    except Exception:  # a probe that cannot run says nothing
        return None
    finally:
        if case.visit.guard is not None:
            case.visit.guard.restore()


def _main(case: Case, out: Any) -> Tensor | None:
    """The first output of two or more axes, else the first; none that compares examples."""
    if "comparing" not in case.cache:
        case.cache["comparing"] = set(_comparing(case))
    found = [
        tensor
        for place, tensor in enumerate(tensors(out))
        if tensor.is_floating_point() and tensor.dim() >= 1 and place not in case.cache["comparing"]
    ]
    large = [t for t in found if t.dim() >= 2]
    return (large or found)[0].detach() if found else None


def _comparing(case: Case) -> Iterator[int]:
    """Outputs that are a product of one example with every other, as contrastive models return."""
    graph = case.graph
    for place, tensor in enumerate(tensors(case.visit.out)):
        index = case.visit.recorder.node_of(tensor)
        while index is not None and tensor.dim() == 2:
            node = graph[graph.chain(index)[-1][0]]
            biased = node.op in ("add", "sub") and len(node.ins) == 1
            index = node.ins[0] if biased else None
            if node.op in PRODUCT and len(node.ins) == 2:
                yield place


def inputs(case: Case) -> Any:
    """Positional and keyword inputs of the visit."""
    return case.visit.args, case.visit.kwargs


def named_inputs(case: Case) -> dict[str, Tensor]:
    """Inputs that are tensors, by name or by place."""
    return named(inputs(case))


def named(example: Any) -> dict[str, Tensor]:
    """The tensors of an example, by name or by place."""
    found = {f"#{i}": t for i, t in enumerate(example[0]) if isinstance(t, Tensor)}
    return found | {n: t for n, t in example[1].items() if isinstance(t, Tensor)}


def examples(case: Case, length: int) -> Iterator[Any]:
    """The inputs of the visit, with fewer tokens first if they are many: that costs less."""
    if length >= LONG:
        yield _shortened(inputs(case), length)
    yield inputs(case)


def replaced(example: Any, new: dict[str, Tensor]) -> Any:
    """The same inputs with some of them exchanged."""
    args, kwargs = example
    return (
        tuple(new.get(f"#{i}", a) for i, a in enumerate(args)),
        {name: new.get(name, value) for name, value in kwargs.items()},
    )


def _shortened(example: Any, length: int) -> Any:
    """The same inputs with fewer tokens."""

    def cut(tensor: Tensor) -> Tensor:
        long = tensor.dim() >= 2 and tensor.shape[1] == length
        return tensor[:, :SHORT] if long else tensor

    return mapped(example, cut)


def _image(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_floating_point()


def other_than(values: Tensor) -> Tensor:
    """Something else of the same kind: other tokens that occur, or other numbers."""
    if values.is_floating_point():
        return values.flip(-1) * 1.5 + 0.5 if values.dim() else values + 1
    if values.dtype == torch.bool:
        return ~values
    return torch.where(values > 0, values - 1, values + 1)


def moved_by(before: Tensor, after: Tensor) -> float:
    """The largest change beside the size of what changed."""
    if not before.numel():
        return 0.0
    change = float(_gap(before, after).max())
    return change / (_size(before) + 1e-12)


def first_moved(before: Tensor, after: Tensor, *, axis: int) -> int:
    """The first place of an axis that moved."""
    gap = _gap(before, after).movedim(axis, 0).flatten(1).amax(1)
    return int((gap > NOTICEABLE * _size(before)).nonzero()[0])


def _gap(before: Tensor, after: Tensor) -> Tensor:
    """How far each number moved; one that was not finite has nowhere to move from."""
    gap = (before.float() - after.float()).abs().nan_to_num(nan=math.inf)
    return gap.masked_fill(~before.isfinite(), 0.0)


def _size(values: Tensor) -> float:
    """The mean size of what is finite."""
    values = values.float()
    finite = values[values.isfinite()]
    return float(finite.abs().mean()) if finite.numel() else 0.0
