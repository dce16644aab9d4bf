"""Targets whose files are graphs that `torch.export` traces; they take every arrangement."""

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from addnorm.exporters.graph_engine import GraphEngine, GraphFunction, GraphSpec, describe_graphs
from addnorm.exporters.graphs import Graph, make_graphs
from addnorm.exporters.report import ExportReport
from addnorm.exporters.source import ExportSource
from addnorm.exporters.targets.base import (
    ALL_KINDS,
    ExportOptions,
    ExportTarget,
    PreparedExport,
)


class GraphTarget(ExportTarget):
    """Target that stores one file per graph."""

    kinds: ClassVar = ALL_KINDS
    extension: ClassVar[str]
    """Extension of the files."""

    @abstractmethod
    def write_graph(self, graph: Graph, path: Path) -> None:
        """Trace a graph and write it to a file."""

    @abstractmethod
    def open_graph(self, path: Path, spec: GraphSpec) -> GraphFunction:
        """Open the file of a graph."""

    def prepare(self, source: ExportSource, options: ExportOptions) -> PreparedExport:
        settings = describe_graphs(source.text_model, make_graphs(source.text_model))
        return PreparedExport(
            model=source.model, form=source.wiring, settings=settings, options=options
        )

    def write(self, prepared: PreparedExport, source: ExportSource, folder: Path) -> None:
        for graph in make_graphs(prepared.model):
            self.write_graph(graph, self._path(folder, graph.name))

    def open(self, folder: Path, report: ExportReport) -> GraphEngine:
        return GraphEngine(report.kind, self.open_graphs(folder, report), report.settings)

    def open_graphs(self, folder: Path, report: ExportReport) -> dict[str, GraphFunction]:
        """Open all graphs of a folder."""
        return {
            name: self.open_graph(
                self._path(folder, name), GraphSpec(tuple(each["inputs"]), tuple(each["outputs"]))
            )
            for name, each in report.settings["graphs"].items()
        }

    def _path(self, folder: Path, name: str) -> Path:
        return folder / f"{name}.{self.extension}"
