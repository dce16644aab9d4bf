"""Inference benchmarks of models exported to ONNX Runtime against the same models in PyTorch."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from addnorm.bench.base import OURS, Benchmark, Candidates
from addnorm.exporters.graph_engine import GraphEngine, GraphFunction, GraphSpec, describe_graphs
from addnorm.exporters.graphs import Graph, make_graphs
from addnorm.exporters.targets.onnx import OnnxTarget
from addnorm.models import build
from addnorm.models.tabular import TableBatch, TableConfig, build_table_model

PEER = "torch eager"
BATCH_SIZE, LENGTH, VOCAB = 8, 64, 8000
ROWS, NUMBERS, CATEGORIES = 256, 8, (9, 18, 17, 8, 7, 44)


def make_benchmarks() -> Iterator[Benchmark]:
    """Yield benchmarks of a text classifier and of FT-Transformer."""
    yield Benchmark("classify (onnx)", build_classifiers, {}, rounds=15)
    yield Benchmark("FT-Transformer (onnx)", build_table_models, {}, rounds=15)


def build_classifiers(dim: int = 256, depth: int = 6) -> Candidates:
    """Build candidates that classify a batch of padded texts."""
    model = build(
        kind="classifier", vocab=VOCAB, classes=5, dim=dim, depth=depth, heads=8, seed=0
    ).eval()
    for stack in model.stacks:
        stack.packed = True  # as in a run, which skips padding
    [graph] = make_graphs(model)
    functions = {graph.name: _open_onnx(graph)}
    engine = GraphEngine("classifier", functions, describe_graphs(model, [graph]))
    ids = torch.randint(VOCAB, (BATCH_SIZE, LENGTH))
    mask = torch.arange(LENGTH) < torch.linspace(LENGTH / 2, LENGTH, BATCH_SIZE)[:, None]

    def run_eager() -> None:
        with torch.inference_mode():
            model(ids, mask=mask)

    return {OURS: partial(engine, ids, mask=mask), PEER: run_eager}


def build_table_models(dim: int = 96, depth: int = 2) -> Candidates:
    """Build candidates that predict a batch of rows with the columns of the Adult data set."""
    config = TableConfig(
        model="ft_transformer",
        numbers=NUMBERS,
        categories=CATEGORIES,
        outputs=2,
        dim=dim,
        depth=depth,
    )
    model = build_table_model(config, seed=0).eval()
    codes = torch.stack([torch.randint(size, (ROWS,)) for size in CATEGORIES], 1)
    missing = torch.zeros(ROWS, NUMBERS, dtype=torch.bool)
    cells = TableBatch(torch.randn(ROWS, NUMBERS), missing, codes, codes[:, :0, None])
    [graph] = make_graphs(model, reference=cells.select_rows(slice(0, 2)))
    run = _open_onnx(graph)
    inputs = {name: getattr(cells, name) for name in graph.inputs}

    def run_eager() -> None:
        with torch.inference_mode():
            model(cells)

    return {OURS: lambda: run(inputs), PEER: run_eager}


def _open_onnx(graph: Graph) -> GraphFunction:
    """Export a graph and open it in ONNX Runtime."""
    target = OnnxTarget()
    target.check_packages()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        target.write_graph(graph, path)
        return target.open_graph(path, GraphSpec(tuple(graph.inputs), graph.outputs))
