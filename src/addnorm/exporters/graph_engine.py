"""Models that run as exported graphs, whatever executes a graph."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.decode.batching import search
from addnorm.decode.engine import InferenceEngine, length_limits
from addnorm.decode.greedy import Hypothesis
from addnorm.decode.options import DecodingOptions
from addnorm.decode.stepper import Sentence, Stepper, pad_sources
from addnorm.exporters.graphs import Graph
from addnorm.models import Model

GraphFunction = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Runs a graph: inputs by name to outputs by name."""


@dataclass(frozen=True)
class GraphSpec:
    """Names of the tensors of a graph, stored with the export."""

    inputs: Sequence[str]
    outputs: Sequence[str]


def describe_graphs(model: Model, graphs: Sequence[Graph]) -> dict[str, Any]:
    """Return what a `GraphEngine` needs beside the graphs, as JSON data."""
    source, target = length_limits(model) if model.config.image is None else (None, None)
    return {
        "graphs": {
            graph.name: {"inputs": list(graph.inputs), "outputs": list(graph.outputs)}
            for graph in graphs
        },
        "max_source_length": source,
        "max_target_length": target,
        "vocab": model.config.vocab,
    }


class GraphEngine(InferenceEngine):
    """Model that runs as graphs, such as `encoder`, `decoder` and `decoder_step`.

    Args:
        kind: kind of the model, as in `Config`
        functions: the graphs by name
        settings: result of `describe_graphs`
    """

    def __init__(
        self, kind: str, functions: Mapping[str, GraphFunction], settings: Mapping[str, Any]
    ) -> None:
        self.kind, self.functions = kind, functions
        self.specs = {name: GraphSpec(**each) for name, each in settings["graphs"].items()}
        self.max_source_length = settings["max_source_length"]
        self.max_target_length = settings["max_target_length"]

    def __call__(self, *inputs: Tensor, **options: Tensor | None) -> Tensor:
        if self.kind == "seq2seq":
            names: tuple[str, ...] = ("source", "target")
        else:
            names = ("ids", "prefix") if self.kind == "prefix_lm" else ("ids",)
        tensors = {**dict(zip(names, inputs, strict=True)), **_drop_none(options)}
        if self.kind == "seq2seq":
            memory, source_mask = self.encode(tensors["source"], tensors.get("source_mask"))
            target = tensors["target"]
            return self._run(
                "decoder",
                ids=target,
                mask=tensors.get("target_mask", _full_mask(target)),
                memory=memory,
                source_mask=source_mask,
            )["logits"]
        if "pixels" in self.specs[self._sequence_graph].inputs:
            return self._run("model", pixels=tensors["ids"])["logits"]
        tensors.setdefault("mask", _full_mask(tensors["ids"]))
        if "type_ids" in self.specs[self._sequence_graph].inputs:
            tensors.setdefault("type_ids", torch.zeros_like(tensors["ids"]))
        return self._run(self._sequence_graph, **tensors)["logits"]

    @property
    def _sequence_graph(self) -> str:
        """Name of the graph that reads whole sequences."""
        return "decoder" if self.kind == "lm" else "model"

    def encode(self, source: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the memory of sources and its mask."""
        mask = _full_mask(source) if mask is None else mask
        return self._run("encoder", source=source, source_mask=mask)["memory"], mask

    def decode_batch(
        self, sentences: Sequence[Sentence], options: DecodingOptions, end: int
    ) -> list[list[Hypothesis]]:
        if "decoder_step" not in self.functions:
            raise UserError(f"model: expected a Seq2Seq or LanguageModel, got kind {self.kind!r}")
        return search(GraphStepper(self, sentences, end), sentences, options)

    def _run(self, graph: str, **inputs: Tensor) -> Mapping[str, Tensor]:
        spec = self.specs[graph]
        for name in inputs:
            if name not in spec.inputs:
                raise UserError(
                    f"{name}: expected inputs among {', '.join(spec.inputs)}, got {name!r}"
                )
        limit = self.max_source_length if graph == "encoder" else self.max_target_length
        first = inputs[spec.inputs[0]]
        if limit is not None and first.ndim == 2 and first.shape[1] > limit:
            raise UserError(
                f"{spec.inputs[0]}: expected at most {limit} tokens, the positions of the exported "
                f"model, got {first.shape[1]}"
            )
        return self.functions[graph]({name: inputs[name] for name in spec.inputs})


@dataclass
class GraphCache:
    """Masks, keys and values of a batch of hypotheses, one row each."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    beam_size: int = 1

    def reorder(self, index: Tensor) -> None:
        """Replace row i by row index[i]; rows may be dropped or repeated."""
        self.tensors = {name: each.index_select(0, index) for name, each in self.tensors.items()}

    def expand_beams(self, size: int) -> None:
        """Repeat each row `size` times."""
        self.beam_size = size
        rows = next(iter(self.tensors.values())).shape[0]
        self.reorder(torch.arange(rows).repeat_interleave(size))

    def reorder_beams(self, parents: Tensor) -> None:
        """Let beam i of group b continue from beam parents[b, i]."""
        first = torch.arange(parents.shape[0])[:, None] * parents.shape[1]
        self.reorder((first + parents).flatten())

    def select_groups(self, groups: Tensor) -> None:
        """Keep the groups of beams with the given indices."""
        size = self.beam_size
        self.reorder((groups[:, None] * size + torch.arange(size)).flatten())


class GraphStepper(Stepper):
    """Stepper over the graphs of a language model or of a pair."""

    def __init__(self, engine: GraphEngine, sentences: Sequence[Sentence], end: int) -> None:
        self.engine, self.cache = engine, GraphCache()
        super().__init__(engine.device, self.cache, sentences, end)
        self._memory: dict[str, Tensor] = {}
        if engine.kind == "seq2seq":
            memory, mask = engine.encode(*pad_sources(sentences, self.device))
            self._memory = {"memory": memory, "source_mask": mask}

    def _logits(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        mask = _full_mask(ids) if mask is None else mask
        if not self.cache.tensors:
            outputs = self.engine._run("decoder", ids=ids, mask=mask, **self._memory)
            kept = {name: each for name, each in self._memory.items() if name == "source_mask"}
            self.cache.tensors = {"past_mask": mask, **kept, **dict(_as_past(outputs))}
            return outputs["logits"][:, -1].clone()
        outputs = self.engine._run("decoder_step", ids=ids, **self.cache.tensors)
        seen = torch.cat((self.cache.tensors["past_mask"], mask), 1)
        self.cache.tensors |= {"past_mask": seen, **dict(_as_past(outputs))}
        return outputs["logits"][:, -1].clone()


def _as_past(outputs: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the cached tensors under the names that the next step reads."""
    for name, tensor in outputs.items():
        if name.startswith("present_"):
            yield f"past_{name.removeprefix('present_')}", tensor


def _full_mask(ids: Tensor) -> Tensor:
    return torch.ones(ids.shape[:2], dtype=torch.bool)


def _drop_none(options: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: value for name, value in options.items() if value is not None}
