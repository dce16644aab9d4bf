"""Cells and corpora that several claims share, so that each is trained or built once."""

import shutil
from pathlib import Path

from addnorm.claims.result import get_commit
from addnorm.comparison import folder_layout as files
from addnorm.comparison.analysis.study import Study, read_comparison
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Grid
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks.text_data import demo_records
from addnorm.core.errors import UserError
from addnorm.core.files import read_json, write_json, write_yaml
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


def small_demo_corpus(folder: Path, task: str, records: int) -> Path:
    """Write the demo corpus of a task with `records` training records, unless it exists."""
    corpus = folder / f"{task}-{records}"
    if not (corpus / "corpus.json").exists():
        splits, about = demo_records(task)
        splits = splits | {"train": splits["train"][:records]}
        write_corpus(corpus, task, splits=splits, about=about | {"records": records})
    return corpus
