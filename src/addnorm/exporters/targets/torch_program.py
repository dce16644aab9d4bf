"""`--to torch`: programs of `torch.export`, which torch runs without the code of addnorm."""

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from addnorm.exporters.graph_engine import GraphFunction, GraphSpec
from addnorm.exporters.graphs import Graph
from addnorm.exporters.targets.graph_target import GraphTarget


class TorchTarget(GraphTarget):
    """Exported programs, one `.pt2` file per graph."""

    name, title = "torch", "torch.export"
    extension: ClassVar = "pt2"

    def write_graph(self, graph: Graph, path: Path) -> None:
        program = self.trace(graph, trace_graph)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about tensors that share memory
            # torch's own writer aborts the process when the disk is full.
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
        path.write_bytes(buffer.getbuffer())

    def open_graph(self, path: Path, spec: GraphSpec) -> GraphFunction:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns about its own serialization
            module = torch.export.load(path).module()

        def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            with torch.inference_mode():
                outputs = module(*inputs.values())
            return dict(zip(spec.outputs, outputs, strict=True))

        return run


def trace_graph(graph: Graph) -> ExportedProgram:
    """Return the program of a graph, whose named axes may have any size."""
    shapes = tuple(
        {axis: Dim.DYNAMIC for axis in graph.axes.get(name, {})} for name in graph.inputs
    )
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(
            graph.module,
            tuple(graph.inputs.values()),
            dynamic_shapes={"tensors": shapes},
            strict=False,
        )
