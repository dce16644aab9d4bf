"""Cells, rows and corpora that several claims share, so that each is made once."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from addnorm.claims.claim import Budget, registry
from addnorm.claims.result import get_commit, read_results
from addnorm.comparison import folder_layout as files
from addnorm.comparison.analysis.study import Study, read_comparison
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Cell, Grid
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks.text_data import demo_records
from addnorm.core.errors import UserError
from addnorm.core.files import read_json, write_json, write_yaml
from addnorm.core.rows import Row
from addnorm.data.corpus import write_corpus
from addnorm.train.run_folder import ROWS

COMMITS = "commits.json"
"""File in the folder of a study: the commit that trained each cell."""


def shared_settings(spec: Comparison) -> Comparison:
    """Return a spec without its axes: equal results mean that cells with equal names are equal.

    Of the data only the folder name is kept, because small corpora move with the output folder.
    """
    return spec.model_copy(update={"grids": (Grid(),), "seeds": 1, "data": Path(spec.data).name})


def relocate_data(spec: Comparison, folder: Path) -> None:
    """Update the data path in the folder of a study that was moved together with its corpus."""
    if files.is_comparison(folder):
        stored = read_comparison(folder)
        if stored != spec and stored.model_copy(update={"data": spec.data}) == spec:
            write_yaml(folder / files.SPEC, spec.to_yaml())


def cell_commits(folder: Path) -> dict[str, str]:
    """Return the commit that trained each cell of a study, by cell name."""
    path, hint = folder / COMMITS, "remove the folder of the study and run the claim again"
    commits = read_json(path, hint=hint)
    if commits is None:
        return {}
    if not isinstance(commits, dict) or not all(isinstance(each, str) for each in commits.values()):
        raise UserError(f"{path}: expected a commit for each cell; {hint}")
    return commits


def record_commits(study: Study) -> None:
    """Store the current commit for all cells of a study without one."""
    before, now = cell_commits(study.folder), get_commit()
    finished = [each.cell.name for each in study.cells if each.end is not None]
    write_json(study.folder / COMMITS, {name: before.get(name, now) for name in finished})


def copy_finished_cells(spec: Comparison, folder: Path) -> int:
    """Copy finished cells of the same settings from the studies beside `folder`.

    Crashed cells are not copied. The result of a cell, which marks it as finished, is written last,
    so that an interrupted copy is repeated.

    Returns:
        The number of copied cells.
    """
    copied: dict[str, str] = {}  # commits by cell
    settings, cells = shared_settings(spec), folder / files.CELLS
    for path in sorted(folder.parent.glob(f"*/{files.SPEC}")):
        source_study = path.parent
        if source_study == folder or shared_settings(read_comparison(source_study)) != settings:
            continue
        for cell in spec.cells():
            target, source = cells / cell.name, source_study / files.CELLS / cell.name
            result = CellResult.read(source)
            if result is None or result.ending == "crashed" or CellResult.read(target) is not None:
                continue
            if not copied:
                _copy_shared_data(spec, folder, source_study)
            CellResult.check_rows(source, ROWS)
            shutil.copytree(source, target, dirs_exist_ok=True)
            result.save(target, rows=ROWS)
            copied[cell.name] = cell_commits(source_study).get(cell.name, "")
    if copied:
        write_json(folder / COMMITS, cell_commits(folder) | copied)
    return len(copied)


def _copy_shared_data(spec: Comparison, folder: Path, source_folder: Path) -> None:
    """Copy data, held-out examples, tokenizer and, last, the facts that mark them as prepared."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / files.FACTS).exists():
        return
    write_yaml(folder / files.SPEC, spec.to_yaml())
    for name in (files.DATA, files.SCORE):
        if (source_folder / name).is_dir():
            shutil.copytree(source_folder / name, folder / name, dirs_exist_ok=True)
    for name in (files.TOKENIZER, files.FACTS):
        shutil.copyfile(source_folder / name, folder / name)


def read_shared_rows(
    folder: Path, budget: Budget, settings: Mapping[str, Any], row_names: Iterable[str]
) -> dict[str, list[Row]]:
    """Return the rows of cells that finished claims in `folder` share with a study, by cell key.

    A cell is shared if its study has the same settings apart from axes and seeds, as
    `shared_settings` compares them, and if all of `row_names` were kept.

    Args:
        folder: output folder of claims
        budget: budget of the claims
        settings: settings of the study, one value of `Claim.settings`
        row_names: names of the rows that are needed
    """
    needed, shared = set(row_names), dict[str, list[Row]]()
    for name, result in read_results(folder).items():
        claim = registry.member(name)()
        if result.verdict is None or not claim.is_current(result.digest, budget):
            continue
        if any(row["name"] == "progress" and row["value"] == 1 for row in result.rows):
            continue  # before the third round progress was relative to the best cell, which had 1
        studies = [
            study
            for study, theirs in claim.settings(budget).items()
            if isinstance(theirs, Mapping) and _drop_axes(theirs) == _drop_axes(settings)
        ]
        cells: dict[str, list[Row]] = {}
        for row in result.rows:
            if row.get("study") in studies and row["name"] in needed:
                cells.setdefault(_row_key(row), []).append(row)
        for key, rows in cells.items():
            if {row["name"] for row in rows} == needed:
                shared.setdefault(key, rows)
    return shared


def split_shared_cells(
    spec: Comparison, shared: Mapping[str, list[Row]]
) -> tuple[Comparison | None, list[Row]]:
    """Return the part of a spec that must be trained, and the shared rows of its other cells.

    A wiring of a grid is dropped if all of its cells are shared; None if nothing is left.

    shared: rows by cell key; see `read_shared_rows`
    """
    rest, rows = list[Grid](), list[Row]()
    for grid in spec.grids:
        for wiring in grid.wiring:
            part = grid.model_copy(update={"wiring": (wiring,)})
            keys = [_cell_key(cell) for cell in part.cells(spec.seed_range)]
            if all(key in shared for key in keys):
                rows += [row for key in keys for row in shared[key]]
            else:
                rest.append(part)
    if not rows:
        return spec, []
    return spec.model_copy(update={"grids": tuple(rest)}) if rest else None, rows


def _cell_key(cell: Cell) -> str:
    return _join_key(cell.arm.name, cell.depth, cell.warmup, cell.lr, cell.seed)


def _row_key(row: Row) -> str:
    return _join_key(*(row[field] for field in ("arm", "depth", "warmup", "lr", "seed")))


def _join_key(*values: Any) -> str:
    return " ".join(map(str, values))


def _drop_axes(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("grids", "seeds")}


def small_demo_corpus(folder: Path, task: str, records: int) -> Path:
    """Write the demo corpus of a task with `records` training records, unless it exists."""
    corpus = folder / f"{task}-{records}"
    if not (corpus / "corpus.json").exists():
        splits, about = demo_records(task)
        splits = splits | {"train": splits["train"][:records]}
        write_corpus(corpus, task, splits=splits, about=about | {"records": records})
    return corpus
