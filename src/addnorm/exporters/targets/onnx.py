"""`--to onnx`: graphs for ONNX Runtime."""

import contextlib
import io
import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.exporters.graph_engine import GraphFunction, GraphSpec
from addnorm.exporters.graphs import Graph
from addnorm.exporters.targets.graph_target import GraphTarget

ERRORS_ONLY = 3
"""Log level of ONNX Runtime."""


class OnnxTarget(GraphTarget):
    """Graphs in the ONNX format, one `.onnx` file each, run by ONNX Runtime."""

    name, title = "onnx", "ONNX Runtime"
    packages: ClassVar = ("onnx", "onnxruntime", "onnxscript")
    extension: ClassVar = "onnx"

    def write_graph(self, graph: Graph, path: Path) -> None:
        shapes = tuple(graph.axes.get(name) or None for name in graph.inputs)
        # The exporter prints its progress, and warns about versions and unused names.
        with torch.no_grad(), _quiet():
            torch.onnx.export(
                graph.module,
                tuple(graph.inputs.values()),
                path,
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                dynamic_shapes={"tensors": shapes},
                dynamo=True,
                external_data=False,
                verbose=False,
            )

    def open_graph(self, path: Path, spec: GraphSpec) -> GraphFunction:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
        used = {each.name for each in session.get_inputs()}

        def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            arrays = {name: each.numpy() for name, each in inputs.items() if name in used}
            try:
                outputs: list[Any] = session.run(list(spec.outputs), arrays)
            except RuntimeError as error:  # such as a token beyond the vocabulary
                raise UserError(f"{path.name}: ONNX Runtime: {str(error)[:300]}") from None
            named = zip(spec.outputs, outputs, strict=True)
            return {name: torch.from_numpy(each) for name, each in named}

        return run


@contextlib.contextmanager
def _quiet() -> Any:
    """Silence warnings, logging and prints inside the block."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
