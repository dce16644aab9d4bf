"""Targets whose files are graphs that `torch.export` traces; they take every arrangement."""

import copy
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from addnorm.core.errors import ExportRefusedError, UserError
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
from addnorm.models import Model

Program = TypeVar("Program")


class GraphTarget(ExportTarget):
    """Target that stores one file per graph."""

    kinds: ClassVar = ALL_KINDS
    extension: ClassVar[str]
    """Extension of the files."""
    encoding_note: ClassVar[str] = (
        "columns are encoded outside of the graph, as estimator.json says"
    )

    @abstractmethod
    def write_graph(self, graph: Graph, path: Path) -> None:
        """Trace a graph and write it to a file."""

    def trace(self, graph: Graph, function: Callable[[Graph], Program]) -> Program:
        """Return the traced program of a graph.

        Raises:
            ExportRefusedError: a part of the model cannot be traced, such as a module of the user
                whose computation depends on values
        """
        try:
            return function(graph)
        except (MemoryError, UserError):
            raise
        except Exception as error:  # torch raises errors of many kinds
            reason = next(iter(str(error).strip().splitlines()), "")[:300]
            raise ExportRefusedError(
                f"{graph.name}: {self.title} cannot trace this model "
                f"({type(error).__name__}: {reason}); build it from parts of addnorm, or make its "
                "own parts work with torch.export"
            ) from None

    @abstractmethod
    def open_graph(self, path: Path, spec: GraphSpec) -> GraphFunction:
        """Open the file of a graph."""

    def prepare(self, source: ExportSource, options: ExportOptions) -> PreparedExport:
        if isinstance(source.model, Model):
            settings = describe_graphs(source.model, make_graphs(source.model))
            return PreparedExport(
                model=source.model, form=source.wiring, settings=settings, options=options
            )
        from addnorm.exporters.tables import (  # scikit-learn is optional
            predicts_in_float64,
            table_settings,
        )

        model = copy.deepcopy(source.model).float()
        [graph] = make_graphs(model, reference=source.estimator.reference_)
        names = {"inputs": list(graph.inputs), "outputs": list(graph.outputs)}
        notes = [self.encoding_note]
        if predicts_in_float64(source):
            notes.insert(0, "the network computes in float32, that of the estimator in float64")
        return PreparedExport(
            model=model,
            form=source.wiring,
            grade="rounding" if predicts_in_float64(source) else "exact",
            notes=tuple(notes),
            settings={"graphs": {graph.name: names}, "table": table_settings(source)},
            options=options,
        )

    def write(self, prepared: PreparedExport, source: ExportSource, folder: Path) -> None:
        reference = None if source.estimator is None else source.estimator.reference_
        for graph in make_graphs(prepared.model, reference=reference):
            self.write_graph(graph, self._path(folder, graph.name))
        if source.estimator is not None:
            from addnorm.exporters.tables import write_preprocessing

            write_preprocessing(source.estimator, folder)

    def open_table(self, folder: Path, report: ExportReport) -> Any:
        from addnorm.exporters.tables import open_exported_table

        return open_exported_table(folder, self.open_graphs(folder, report), report)

    def open(self, folder: Path, report: ExportReport) -> GraphEngine:
        return GraphEngine(report.kind, self.open_graphs(folder, report), report.settings)

    def open_graphs(self, folder: Path, report: ExportReport) -> dict[str, GraphFunction]:
        """Open all graphs of a folder."""
        functions = {}
        for name, each in report.settings["graphs"].items():
            path, spec = self._path(folder, name), GraphSpec(**each)
            try:
                functions[name] = self.open_graph(path, spec)
            except Exception as error:  # such as a file of another version of torch
                reason = next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]
                versions = ", ".join(f"{key} {value}" for key, value in report.versions.items())
                raise UserError(
                    f"{path}: {self.title} cannot open it ({reason}); it was written with "
                    f"{versions}; export the model again"
                ) from None
        return functions

    def _path(self, folder: Path, name: str) -> Path:
        return folder / f"{name}.{self.extension}"
