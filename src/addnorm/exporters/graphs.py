"""Graphs that `torch.export` traces: modules from named tensors to named tensors.

| kind                               | graphs                            |
|------------------------------------|-----------------------------------|
| lm                                 | decoder, decoder_step             |
| seq2seq                            | encoder, decoder, decoder_step    |
| masked_lm, classifier, prefix_lm   | model                             |
| table                              | model                             |

`decoder` reads whole sequences and returns logits, keys and values of all tokens. `decoder_step`
reads one valid token per row, and the mask, keys and values of the tokens before it. Masks are True
at valid tokens.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.models import LanguageModel, Model, PrefixLM, Seq2Seq
from addnorm.models.classifier import Classifier
from addnorm.models.tabular import TableBatch, TableModel
from addnorm.stacks import Decoder
from addnorm.sublayers import KVCache

# Sizes of the example inputs. They differ from each other, from 0 and 1, and usually from the sizes
# of models, so that none of them becomes a constant of the graph.
BATCH, LENGTH, MEMORY_LENGTH, ROWS = 3, 7, 11, 5
Axes = dict[int, str]


@dataclass(frozen=True)
class Graph:
    """A module to trace, its example inputs and the names of its tensors."""

    name: str
    module: nn.Module
    """Its `forward` takes the inputs by keyword and returns a tuple of the outputs."""
    inputs: dict[str, Tensor]
    """Example inputs, in order."""
    outputs: tuple[str, ...]
    axes: dict[str, Axes] = field(default_factory=dict)
    """Names of the dynamic axes of inputs and outputs."""


class Tracer(nn.Module):
    """Module whose `forward` is a function of named tensors, with the parameters of a model."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = self.function(*tensors)
        return outputs if isinstance(outputs, tuple) else (outputs,)


def make_graphs(model: Model | TableModel, *, reference: TableBatch | None = None) -> list[Graph]:
    """Return the graphs of a model in evaluation mode.

    Args:
        model: the model
        reference: reference rows of a table model
    """
    if isinstance(model, TableModel):
        assert reference is not None
        return [_table_graph(model, reference)]
    if isinstance(model, Seq2Seq):
        return [_encoder_graph(model), *_decoder_graphs(model, model.decoder)]
    if isinstance(model, LanguageModel):
        return _decoder_graphs(model, model.decoder)
    return [_whole_graph(model)]


def _whole_graph(model: Model) -> Graph:
    """Return the graph of a model that reads everything at once."""
    config, axes = model.config, {0: "batch", 1: "length"}
    if config.image is not None:
        pixels = torch.zeros(BATCH, config.channels, config.image, config.image)
        pixels = pixels.to(next(model.parameters()).dtype)
        batch = {0: "batch"}
        return Graph(
            "model",
            Tracer(model, model),
            {"pixels": pixels},
            ("logits",),
            {"pixels": batch, "logits": batch},
        )
    ids, mask = _example_tokens(LENGTH)
    inputs = {"ids": ids, "mask": mask}
    names: tuple[str, ...] = ("ids", "mask")
    if isinstance(model, PrefixLM):
        inputs["prefix"] = torch.full((BATCH,), 2)
        names = (*names, "prefix")
    elif config.types:
        inputs["type_ids"] = torch.zeros_like(ids)
        names = (*names, "type_ids")

    def run(*tensors: Tensor) -> Tensor:
        arguments = dict(zip(names, tensors, strict=True))
        if isinstance(model, PrefixLM):
            return model(arguments["ids"], arguments["prefix"], mask=arguments["mask"])
        return model(arguments.pop("ids"), **arguments)

    is_pooled = isinstance(model, Classifier) and model.head is not None
    is_pooled = is_pooled and config.pooling != "none"
    return Graph(
        "model",
        Tracer(model, run),
        inputs,
        ("logits",),
        {
            **{name: axes if tensor.ndim == 2 else {0: "batch"} for name, tensor in inputs.items()},
            "logits": {0: "batch"} if is_pooled else axes,
        },
    )


def _encoder_graph(model: Seq2Seq) -> Graph:
    ids, mask = _example_tokens(MEMORY_LENGTH)
    axes = {0: "batch", 1: "source_length"}
    return Graph(
        "encoder",
        Tracer(model, lambda source, mask: model.encode(source, source_mask=mask)),
        {"source": ids, "source_mask": mask},
        ("memory",),
        dict.fromkeys(("source", "source_mask", "memory"), axes),
    )


def _decoder_graphs(model: LanguageModel | Seq2Seq, decoder: Decoder) -> list[Graph]:
    """Return the graph of whole sequences and that of one step with a cache."""
    ids, mask = _example_tokens(LENGTH)
    names = CacheNames.from_decoder(decoder)
    dtype, dim = next(model.parameters()).dtype, decoder.plan.dim
    tokens, pairs = {0: "batch", 1: "length"}, isinstance(model, Seq2Seq)
    memory_axes = {0: "batch", 1: "source_length"}
    memory = torch.zeros(BATCH, MEMORY_LENGTH, dim, dtype=dtype)
    memory_mask = torch.ones(BATCH, MEMORY_LENGTH, dtype=torch.bool)
    memory_inputs = {"memory": memory, "source_mask": memory_mask} if pairs else {}

    def run(ids: Tensor, mask: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        cache = model.new_cache()
        logits = _decode(model, ids, mask, rest, cache)
        return (logits, *names.collect(cache))

    def step(ids: Tensor, past: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        count, cache = len(rest) - len(names.all), model.new_cache()
        source_mask = rest[0] if count else None
        names.fill(cache, rest[count:], past, source_mask)
        cache.append_positions((past.cumsum(1) - 1).clamp(min=0))
        context: tuple[Tensor, ...] = ()
        if source_mask is not None:  # keys and values are cached: only the shape matters
            context = (ids.new_zeros(*source_mask.shape, dim, dtype=dtype), source_mask)
        logits = _decode(model, ids, torch.ones_like(ids, dtype=torch.bool), context, cache)
        return (logits, *names.collect(cache, own=True))

    with torch.no_grad():
        examples = names.collect(_run_example(model, ids, mask, tuple(memory_inputs.values())))
    past_inputs = {f"past_{name}": each for name, each in zip(names.all, examples, strict=True)}
    past_axes = {f"past_{name}": names.axes(name, "past_length") for name in names.all}
    present_axes = {f"present_{name}": names.axes(name, "length") for name in names.all}
    return [
        Graph(
            "decoder",
            Tracer(model, run),
            {"ids": ids, "mask": mask, **memory_inputs},
            ("logits", *(f"present_{name}" for name in names.all)),
            {
                **dict.fromkeys(("ids", "mask", "logits"), tokens),
                **dict.fromkeys(memory_inputs, memory_axes),
                **present_axes,
            },
        ),
        Graph(
            "decoder_step",
            Tracer(model, step),
            {
                "ids": ids[:, :1].contiguous(),
                "past_mask": mask,
                **({"source_mask": memory_mask} if pairs else {}),
                **past_inputs,
            },
            ("logits", *(f"present_{name}" for name in names.own)),
            {
                "ids": {0: "batch"},
                "past_mask": {0: "batch", 1: "past_length"},
                **({"source_mask": memory_axes} if pairs else {}),
                **past_axes,
                "logits": {0: "batch"},
                **{f"present_{name}": names.axes(name, "total_length") for name in names.own},
            },
        ),
    ]


def _decode(
    model: LanguageModel | Seq2Seq,
    ids: Tensor,
    mask: Tensor,
    context: tuple[Tensor, ...],
    cache: KVCache,
) -> Tensor:
    """Return logits; context is (memory, its mask) of a pair, () of a language model."""
    if isinstance(model, LanguageModel):
        return model(ids, mask=mask, cache=cache)
    memory, memory_mask = context
    return model.decode(ids, memory, source_mask=memory_mask, target_mask=mask, cache=cache)


def _run_example(
    model: LanguageModel | Seq2Seq, ids: Tensor, mask: Tensor, context: tuple[Tensor, ...]
) -> KVCache:
    cache = model.new_cache()
    _decode(model, ids, mask, context, cache)
    return cache


@dataclass(frozen=True)
class CacheNames:
    """Names of the cached tensors of a decoder, such as `self_0_key` and `cross_3_value`.

    The number is that of the site. `recent_1_input` and `recent_1_inner` are the last inputs of
    Canon layers, (B, 3, features).
    """

    sites: tuple[tuple[int, str], ...]
    """Index and kind, `self` or `cross`, of every attention."""
    recent: tuple[tuple[int, str], ...] = ()
    """Index of the site and name of every Canon layer."""

    @classmethod
    def from_decoder(cls, decoder: Decoder) -> "CacheNames":
        """Return the names for the attention sub-layers of a stack."""
        kinds = ((site.index, decoder.plan.sublayer_kind(site)) for site in decoder.plan.sites)
        recent = [
            (index, name)
            for index, sublayer in enumerate(decoder.sublayers)
            for name, places in (("input", "ac"), ("inner", "bd"))
            if any(getattr(sublayer, f"canon_{place}", None) is not None for place in places)
        ]
        return cls(tuple((index, kind) for index, kind in kinds if kind != "ffn"), tuple(recent))

    @property
    def is_own(self) -> dict[str, bool]:
        """Every name, and whether it holds the decoder's own tokens, not those of the memory."""
        return {
            f"{kind}_{index}_{part}": kind == "self"
            for index, kind in self.sites
            for part in ("key", "value")
        } | {f"recent_{index}_{name}": True for index, name in self.recent}

    def axes(self, name: str, own: str) -> Axes:
        """Return the dynamic axes of a tensor; `own` names the length of the decoder's tokens."""
        if name.startswith("recent_"):
            return {0: "batch"}
        return {0: "batch", 2: own if self.is_own[name] else "source_length"}

    @property
    def all(self) -> tuple[str, ...]:
        """All names in order."""
        return tuple(self.is_own)

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the decoder's own keys and values, which grow."""
        return tuple(name for name, is_own in self.is_own.items() if is_own)

    def collect(self, cache: KVCache, *, own: bool = False) -> Iterator[Tensor]:
        """Yield the tensors of a cache in the order of `all`, or of `own`."""
        for index, kind in self.sites:
            layer = cache[index]
            if kind == "self" or not own:
                assert layer.keys is not None and layer.values is not None
                yield from (layer.keys, layer.values)
        yield from (cache[index].recent[name] for index, name in self.recent)

    def fill(
        self,
        cache: KVCache,
        tensors: tuple[Tensor, ...],
        mask: Tensor,
        source_mask: Tensor | None,
    ) -> None:
        """Store tensors in the order of `all` in an empty cache, with their masks."""
        for number, (index, kind) in enumerate(self.sites):
            keys, values = tensors[2 * number : 2 * number + 2]
            if kind == "self":
                cache[index].extend(keys, values, mask)
            else:
                cache[index].store_memory(keys, values, source_mask)
        rest = tensors[2 * len(self.sites) :]
        for (index, name), tensor in zip(self.recent, rest, strict=True):
            cache[index].recent[name] = tensor


def _table_graph(model: TableModel, reference: TableBatch) -> Graph:
    dtype = model.head.weight.dtype
    rows = TableBatch(*(each[:1].repeat(ROWS, *[1] * (each.ndim - 1)) for each in reference))
    rows = rows.to("cpu", dtype)
    with torch.no_grad():  # keys and values of the reference rows become constants
        memory = model.encode_reference(reference.to("cpu", dtype))
    # A tensor without elements, of a table without such columns, is not an input.
    names = [name for name, each in rows._asdict().items() if each.numel()]

    def run(*tensors: Tensor) -> Tensor:
        given = dict(zip(names, tensors, strict=True))
        count = tensors[0].shape[0]
        empty = {
            name: each.new_zeros(count, *each.shape[1:])
            for name, each in rows._asdict().items()
            if name not in given
        }
        return model(TableBatch(**given, **empty), memory)

    inputs = {name: getattr(rows, name) for name in names}
    axes = {name: {0: "rows"} for name in (*names, "outputs")}
    return Graph("model", Tracer(model, run), inputs, ("outputs",), axes)


def _example_tokens(length: int) -> tuple[Tensor, Tensor]:
    """Return ids of 0, which every vocabulary has, and a mask without padding."""
    shape = (BATCH, length)
    return torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.bool)
