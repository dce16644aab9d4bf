"""`--to onnx`: graphs for ONNX Runtime."""

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from addnorm.core.errors import UserError
from addnorm.exporters.graph_engine import GraphFunction, GraphSpec
from addnorm.exporters.graphs import Graph
from addnorm.exporters.report import worst_grade
from addnorm.exporters.source import ExportSource
from addnorm.exporters.targets.base import ExportOptions, PreparedExport
from addnorm.exporters.targets.graph_target import GraphTarget

MAX_EMBEDDED_BYTES = 1 << 30
"""Size of weights up to which they are part of the `.onnx` file, whose limit is 2 GB."""
ERRORS_ONLY = 3
"""Log level of ONNX Runtime."""


class OnnxTarget(GraphTarget):
    """Graphs in the ONNX format, one `.onnx` file each, run by ONNX Runtime."""

    name, title = "onnx", "ONNX Runtime"
    packages: ClassVar = ("onnx", "onnxruntime", "onnxscript")
    min_torch: ClassVar = "2.8"  # 2.6 cannot export graphs with named dimensions
    extension: ClassVar = "onnx"
    encoding_note: ClassVar = "table.onnx reads columns; model.onnx reads encoded cells"

    def prepare(self, source: ExportSource, options: ExportOptions) -> PreparedExport:
        prepared = super().prepare(source, options)
        if next(prepared.model.parameters()).dtype == torch.float32:
            return prepared
        return replace(  # ONNX Runtime lacks float64 for many operators
            prepared,
            model=copy.deepcopy(prepared.model).float(),
            grade=worst_grade(prepared.grade, "rounding"),
            notes=(*prepared.notes, "weights of float64 are written as float32"),
        )

    def write_graph(self, graph: Graph, path: Path) -> None:
        program = self.trace(graph, trace_onnx)
        for node in program.model.graph.all_nodes():
            node.metadata_props.clear()  # names of source files, which are not the reader's
        size = sum(each.numel() * each.itemsize for each in graph.module.state_dict().values())
        with _quiet():
            program.save(path, external_data=size > MAX_EMBEDDED_BYTES)

    def write(self, prepared: PreparedExport, source: ExportSource, folder: Path) -> None:
        super().write(prepared, source, folder)
        if source.estimator is not None:
            from addnorm.exporters.table_graph import TABLE_FILE, write_table_graph

            network = self._path(folder, "model")
            write_table_graph(source.estimator, network, folder / TABLE_FILE)

    def compare_columns(self, folder: Path, source: ExportSource) -> float:
        from addnorm.exporters.table_graph import TABLE_FILE, make_odd_columns

        encoder = source.estimator.encoder_
        columns, inputs = make_odd_columns(encoder)
        cells = encoder.to_table_batch(*encoder.raw_features(columns))
        expected = source.estimator._predict_cells(cells)
        [got] = open_session(folder / TABLE_FILE).run(["outputs"], inputs)
        return float(np.nan_to_num(np.abs(got - expected), nan=np.inf).max())

    def open_graph(self, path: Path, spec: GraphSpec) -> GraphFunction:
        session = open_session(path)
        types = {each.name: each.type for each in session.get_inputs()}  # unused ones are missing

        def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            arrays = {
                name: (each.float() if types[name] == "tensor(float)" else each).numpy()
                for name, each in inputs.items()
                if name in types
            }
            try:
                outputs: list[Any] = session.run(list(spec.outputs), arrays)
            except RuntimeError as error:  # such as a token beyond the vocabulary
                raise UserError(f"{path.name}: ONNX Runtime: {str(error)[:300]}") from None
            named = zip(spec.outputs, outputs, strict=True)
            return {name: torch.from_numpy(each) for name, each in named}

        return run


def open_session(path: Path) -> Any:
    """Open a graph with ONNX Runtime, with the number of threads of torch."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = ERRORS_ONLY
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def trace_onnx(graph: Graph) -> Any:
    """Return the ONNX program of a graph, whose named axes may have any size."""
    shapes = tuple(graph.axes.get(name) or None for name in graph.inputs)
    # The exporter prints its progress, and warns about versions and unused names.
    with torch.no_grad(), _quiet():
        return torch.onnx.export(
            graph.module,
            tuple(graph.inputs.values()),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes={"tensors": shapes},
            dynamo=True,
            verbose=False,
        )


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
