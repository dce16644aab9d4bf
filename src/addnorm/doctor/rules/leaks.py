"""Leaks: between examples, from the future, from padding. Found by changing an input a little."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from addnorm.doctor.leaves import mapped, tensors
from addnorm.doctor.ops import PRODUCT
from addnorm.doctor.report import Finding
from addnorm.doctor.rules.base import Case, rule
from addnorm.doctor.visit import SEED

LONG, SHORT = 64, 16
"""Tokens from which on probes are made with fewer, and how many."""
NOTICEABLE = 1e-4
"""Share of its own size by which an output must move to count."""


@rule("batch_leak")
def batch_leak(case: Case) -> Iterator[Finding]:
    """One example changes another."""
    probe = _probe(case)
    if probe is None or probe.batch is None or probe.before.shape[probe.batch] < 2:
        return
    moved = _moved(*(t.narrow(probe.batch, 1, t.shape[probe.batch] - 1) for t in probe.pair))
    if moved > NOTICEABLE:
        yield Finding(
            "batch_leak", "error", "",
            "changing one example changes the output of another: something normalizes or looks "
            "across the batch; take statistics within each example",
            {"change": moved},
        )  # fmt: skip


@rule("future_leak")
def future_leak(case: Case) -> Iterator[Finding]:
    """A later token changes an earlier one, in a model some of whose attention is causal."""
    if not _meant_causal(case):
        return
    probe = _probe(case)
    if probe is None or probe.batch is None or probe.length < 2 or probe.before.dim() < 3:
        return
    if probe.before.shape[1 - probe.batch] != probe.length:
        return
    before, after = (t.select(probe.batch, 0)[:-1] for t in probe.pair)
    moved = _moved(before, after)
    if moved > NOTICEABLE:
        attentions = case.visit.recorder.signs.attentions
        open_ones = [a.path for a in attentions if a.square and not a.causal]
        yield Finding(
            "future_leak", "error", "",
            "some attention is causal, yet changing the last token changes earlier ones: a mask is "
            "missing or something else looks ahead, such as a norm over tokens",
            {
                "change": moved,
                "first token": _first_moved(before, after),
                "attention without mask": open_ones[:4],
            },
        )  # fmt: skip


@rule("padding_leak")
def padding_leak(case: Case) -> Iterator[Finding]:
    """What stands at padding changes valid tokens."""
    mask_name, mask = _mask(case)
    if mask is None:
        return
    example, names = _inputs(case), _named_inputs(case)
    alike = [n for n, t in names.items() if _sequence(t) and t.shape[1] == mask.shape[1]]
    target = next((name for name in alike if name != mask_name), None)
    if target is None or mask.shape[1] < 3:
        return
    padded = mask.clone()
    padded[:, -1] = 0
    with_mask = _replace(example, {mask_name: padded})
    changed = names[target].clone()
    changed[:, -1] = _other(changed[:, -1])
    before = _run(case, with_mask)
    after = _run(case, _replace(with_mask, {target: changed}))
    if before is None or after is None or before.shape != after.shape:
        return
    if before.dim() >= 3 and before.shape[1] == mask.shape[1]:
        before, after = before[:, :-1], after[:, :-1]
    moved = _moved(before, after)
    if moved > NOTICEABLE:
        yield Finding(
            "padding_leak", "error", "",
            "a token that the mask hides changes the output of valid tokens; apply the mask "
            "wherever tokens meet: attention, norms over tokens, pooling",
            {"change": moved, "mask": mask_name},
        )  # fmt: skip


# probes


def _meant_causal(case: Case) -> bool:
    """Whether an attention on the stream that reaches the output hides the future."""
    last = case.blocks[-1].stream if case.blocks else -1
    mine = [r for r in case.blocks if r.stream == last and r.kind == "self-attention"]
    spans = [(r.join.fork, r.join.node) for r in mine]
    return any(
        a.causal and any(start <= a.node <= end for start, end in spans)
        for a in case.visit.recorder.signs.attentions
    )


@dataclass(frozen=True)
class Probe:
    """The output before and after the last token of the first example was changed."""

    before: Tensor
    after: Tensor
    length: int
    """Tokens of the input; 0 if it has none."""
    batch: int | None
    """The axis of the examples: 0, or 1 where tokens come first."""

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """Both outputs."""
        return self.before, self.after


def _probe(case: Case) -> Probe | None:
    if "probe" not in case.cache:
        case.cache["probe"] = _probed(case)
    return case.cache["probe"]


def _probed(case: Case) -> Probe | None:
    names = _named_inputs(case)
    target = _stream_input(case, names)
    if target is None or not names[target].dim():
        return None
    tensor, example = names[target], _inputs(case)
    before = None
    if tensor.dim() >= 2 and tensor.shape[1] >= LONG and not _image(tensor):
        short = _shortened(example, tensor.shape[1])  # two short runs cost less than a long one
        before = _run(case, short)
        if before is not None:
            tensor, example = tensor[:, :SHORT], short
    before = _reference(case, example) if before is None else before
    if before is None or not before.dim():
        return None

    def changed(*place: int | slice) -> Tensor | None:
        new = tensor.clone()
        new[place] = _other(new[place])
        after = _run(case, _replace(example, {target: new}))
        return after if after is not None and after.shape == before.shape else None

    if tensor.dim() < 2 or tensor.shape[1] < 2 or _image(tensor):
        after = changed(0)
        return None if after is None else Probe(before, after, 0, 0)
    after = changed(0, -1)
    if after is None:
        return None
    length = tensor.shape[1]
    others = before.shape[0] > 1 and _moved(before[1:], after[1:]) > NOTICEABLE
    if not others or before.dim() < 3 or before.shape[1] < 2 or tensor.shape[0] < 2:
        return Probe(before, after, length, 0)
    column = changed(slice(None), 0)
    if column is None or _moved(before[:, 1:], column[:, 1:]) > NOTICEABLE or _placed(case, length):
        return Probe(before, after, length, 0)
    after = changed(-1, 0)  # columns do not know of each other: tokens come first
    return None if after is None else Probe(before, after, tensor.shape[0], 1)


def _placed(case: Case, length: int) -> bool:
    """Whether a table of positions is added along the second axis: there the tokens are."""
    graph = case.graph
    for node in graph:
        if node.op != "add" or len(node.ins) != 1 or len(node.shape) != 3:
            continue
        for operand in node.operands:
            table = graph[operand.node].shape if operand.kind == "node" else operand.shape
            if operand.node not in node.ins and len(table) > 1 and table[-1] == node.shape[-1]:
                if table[-2] == length and set(table[:-2]) <= {1}:
                    return True
    return False


def _stream_input(case: Case, names: dict[str, Tensor]) -> str | None:
    """The input that the stream which reaches the output begins with."""
    graph = case.graph
    order = list(names)
    if case.blocks:
        first = next(r for r in case.blocks if r.stream == case.blocks[-1].stream)
        behind = _data_behind(graph, first.link.start)
        for name, index in zip(order, case.visit.recorder.inputs, strict=False):
            if index in behind and names[name].dim() >= 1 and not _maskish(names[name]):
                return name
    candidates = [n for n in order if names[n].dim() >= 2 and not _maskish(names[n])]
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
    """The output of the visit itself where it ran in eval mode, else of another run."""
    norms = any(n.kind == "batch" for n in case.norms.values())
    if not norms and not case.visit.training:
        return _main(case, case.visit.out)
    return _run(case, example)


def _run(case: Case, example: Any) -> Tensor | None:
    model = case.visit.model
    model.eval()
    if case.visit.guard is not None:
        case.visit.guard.restore()
    try:
        torch.manual_seed(SEED)
        with torch.no_grad():
            return _main(case, model(*example[0], **example[1]))
    except Exception:  # a probe that cannot run says nothing
        return None
    finally:
        if case.visit.guard is not None:
            case.visit.guard.restore()


def _main(case: Case, out: Any) -> Tensor | None:
    """The first output of two or more axes, else the first; none that sets examples side by side."""
    if "comparing" not in case.cache:
        case.cache["comparing"] = set(_comparing(case))
    found = [
        tensor
        for place, tensor in enumerate(tensors(out))
        if tensor.is_floating_point()
        and tensor.dim() >= 1
        and place not in case.cache["comparing"]
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


def _inputs(case: Case) -> Any:
    return case.visit.args, case.visit.kwargs


def _named_inputs(case: Case) -> dict[str, Tensor]:
    found = {f"#{i}": t for i, t in enumerate(case.visit.args) if isinstance(t, Tensor)}
    return found | {n: t for n, t in case.visit.kwargs.items() if isinstance(t, Tensor)}


def _replace(example: Any, new: dict[str, Tensor]) -> Any:
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


def _mask(case: Case) -> tuple[str, Tensor | None]:
    """An input of ones, or of True: what marks valid tokens."""
    for name, tensor in _named_inputs(case).items():
        if _maskish(tensor) and bool(tensor.bool().all()):
            return name, tensor
    return "", None


def _maskish(tensor: Tensor) -> bool:
    if tensor.dim() != 2 or tensor.numel() < 2 or tensor.shape[1] < 2:
        return False
    return tensor.dtype == torch.bool or bool(((tensor == 0) | (tensor == 1)).all())


def _sequence(tensor: Tensor) -> bool:
    return tensor.dim() >= 2 and not _image(tensor)


def _image(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_floating_point()


def _other(values: Tensor) -> Tensor:
    """Something else of the same kind: other tokens that occur, or other numbers."""
    if values.is_floating_point():
        return values.flip(-1) * 1.5 + 0.5 if values.dim() else values + 1
    if values.dtype == torch.bool:
        return ~values
    return torch.where(values > 0, values - 1, values + 1)


def _moved(before: Tensor, after: Tensor) -> float:
    """The largest change beside the size of what changed."""
    if not before.numel():
        return 0.0
    size = float(before.float().abs().mean()) + 1e-12
    change = float((before.float() - after.float()).abs().max())
    return change / size if change == change else float("inf")


def _first_moved(before: Tensor, after: Tensor) -> int:
    gap = (before.float() - after.float()).abs().flatten(1).amax(1)
    return int((gap > NOTICEABLE * before.float().abs().mean()).nonzero()[0])
