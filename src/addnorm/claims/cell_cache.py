"""What claims share: cells that several want are trained once, and corpora of few records."""

import shutil
from pathlib import Path

from addnorm.claims.result import current_commit
from addnorm.comparison import layout as files
from addnorm.comparison.analysis.study import Study, read_comparison
from addnorm.comparison.cell_result import CellResult
from addnorm.comparison.grid import Grid
from addnorm.comparison.spec import Comparison
from addnorm.comparison.tasks.text_data import demo_records
from addnorm.core.files import read_json, write_json
from addnorm.data.corpus import write_corpus

COMMITS = "commits.json"
"""In the folder of a study: which code trained which cell."""


def shared_settings(spec: Comparison) -> Comparison:
    """All of a spec but what is varied: cells of one name in one field are the same training.

    Of a corpus of few records only the name counts: its folder moves with ours.
    """
    return spec.model_copy(update={"grids": (Grid(),), "seeds": 1, "data": Path(spec.data).name})


def relocate_data(spec: Comparison, folder: Path) -> None:
    """A study that was moved with its corpus goes on: its spec names the corpus where it is now."""
    if files.is_comparison(folder):
        theirs = read_comparison(folder)
        if theirs != spec and theirs.model_copy(update={"data": spec.data}) == spec:
            (folder / files.SPEC).write_text(spec.to_yaml(), encoding="utf-8")


def cell_commits(folder: Path) -> dict[str, str]:
    """By cell of a study: the commit of the code that trained it."""
    return read_json(folder / COMMITS) or {}


def record_commits(study: Study) -> None:
    """Every cell that has just been trained is of today's code."""
    before, now = cell_commits(study.folder), current_commit()
    ended = [each.cell.name for each in study.cells if each.end is not None]
    write_json(study.folder / COMMITS, {name: before.get(name, now) for name in ended})


def copy_finished_cells(spec: Comparison, folder: Path) -> int:
    """Copy finished cells from the studies beside `folder`; how many.

    Only what ended well or badly by itself is taken, never a crash. The copy comes into being
    whole: its end, by which it counts as finished, is written last.
    """
    taken: dict[str, str] = {}
    field, cells = shared_settings(spec), folder / files.CELLS
    for neighbour in sorted(folder.parent.glob(f"*/{files.SPEC}")):
        theirs = neighbour.parent
        if theirs == folder or shared_settings(read_comparison(theirs)) != field:
            continue
        for cell in spec.cells():
            ours, source = cells / cell.name, theirs / files.CELLS / cell.name
            end = CellResult.read(source)
            if end is None or end.ending == "crashed" or CellResult.read(ours) is not None:
                continue
            if not taken:
                _copy_shared_data(spec, folder, theirs)
            shutil.copytree(source, ours, dirs_exist_ok=True)
            end.save(ours)
            taken[cell.name] = cell_commits(theirs).get(cell.name, "")
    if taken:
        write_json(folder / COMMITS, cell_commits(folder) | taken)
    return len(taken)


def _copy_shared_data(spec: Comparison, folder: Path, source_folder: Path) -> None:
    """The same ground: data, tokenizer, what is answered; the facts, which say so, come last."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / files.FACTS).exists():
        return
    (folder / files.SPEC).write_text(spec.to_yaml(), encoding="utf-8")
    for name in (files.DATA, files.SCORE):
        if (source_folder / name).is_dir():
            shutil.copytree(source_folder / name, folder / name, dirs_exist_ok=True)
    for name in (files.TOKENIZER, files.FACTS):
        shutil.copyfile(source_folder / name, folder / name)


def small_demo_corpus(folder: Path, task: str, records: int) -> Path:
    """The demo corpus of a task with the first `records` of its training part; made once."""
    made = folder / f"{task}-{records}"
    if not (made / "corpus.json").exists():
        splits, about = demo_records(task)
        few = splits | {"train": splits["train"][:records]}
        write_corpus(made, task, splits=few, about=about | {"records": records})
    return made
