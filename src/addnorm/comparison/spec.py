"""The spec of a comparison: frozen, typed data that can be saved, hashed and expanded into cells.

This module holds data only. `parse.py` builds a spec from flat keys and checks the keys against the
task; `tasks/` turns a spec and a cell into a recipe.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from addnorm.comparison.grid import Arm, Cell, Grid
from addnorm.comparison.statistics import CONFIDENCE_LEVEL, sequential_level
from addnorm.core.validation import FrozenConfig, NonNegativeInt, PositiveInt

DEMO = "demo"
"""Value of `data` that selects the demo corpus of the task."""
GRID_KEYS = tuple(Grid.model_fields)
"""Keys of a grid: wiring, norm, depth, warmup, lr, and `axes` with further ones."""
MAX_CELLS = 5000


class Extension(FrozenConfig):
    """Cells that `extend.py` added to a comparison after looking at its results."""

    reason: Literal["lr", "seeds"]
    """`lr`: the best learning rate was at the end of a sweep. `seeds`: arms were too close."""
    grids: tuple[Grid, ...]
    """Settings of the cells: one grid per arm, depth and warm-up."""
    seeds: tuple[NonNegativeInt, ...]
    """Seeds of the cells; cells that exist already do not run again."""

    def cells(self) -> list[Cell]:
        """Return the cells of all grids."""
        return [cell for grid in self.grids for cell in grid.cells(self.seeds)]


class Comparison(FrozenConfig):
    """Arms x depths x warm-ups x learning rates x seeds, on one task with one budget.

    >>> grid = Grid(wiring=["rezero", "pre_ln"], lr=1e-3)
    >>> spec = Comparison(task="lm", grids=(grid,), seeds=1)
    >>> [cell.name for cell in spec.cells()]
    ['rezero-d6-w0-lr0.001-s0', 'pre_ln-d6-w0-lr0.001-s0']
    """

    owner: ClassVar[str] = "comparison"

    task: str = "translate"
    """Name of the task: a text task (`addnorm list tasks`), table, or a task of one's own: its
    registered name, or `FILE.py:FUNCTION`."""
    data: str = DEMO
    """Corpus folder made by `addnorm data`, or the file of a table; `demo` builds a demo corpus."""
    grids: tuple[Grid, ...] = (Grid(),)
    """Grids of settings; cells that occur in several grids run once."""
    seeds: PositiveInt = 2
    """Number of seeds per setting; all arms use the same seeds."""
    first_seed: NonNegativeInt = 0
    """First seed. Change it to repeat a comparison with unused seeds."""
    steps: PositiveInt = 200
    """Optimizer steps per cell; all arms see the same batches in the same order."""
    schedule: str = "constant"
    """Learning-rate schedule of all arms, as a call string without warm-up (warm-up is an axis)."""
    score: NonNegativeInt = 100
    """Held-out examples to score each cell on; 0 disables scoring."""
    mode: Literal["fair", "halving"] = "fair"
    """`fair` trains every cell to the end. `halving` stops the worse half of each arm's settings
    after a quarter of the steps, and again after half of them."""
    extend_lr: bool = False
    """Whether to try further learning rates where the best one is at an end; `lr=sweep` sets it."""
    keys: dict[str, Any] = Field(default_factory=dict)
    """Other recipe keys, equal for all cells: dim, batch_tokens, optimizer, ..."""
    extensions: tuple[Extension, ...] = ()
    """Cells that were added while the comparison ran, in this order."""

    @field_validator("data")
    @classmethod
    def _make_data_absolute(cls, value: str) -> str:
        # A comparison may be resumed from another working directory.
        return value if value == DEMO else str(Path(value).absolute())

    @model_validator(mode="after")
    def _check_size(self) -> "Comparison":
        if not self.grids:
            raise ValueError("grids is empty; expected at least one grid")
        count = sum(grid.size() for grid in self.grids) * self.seeds
        count += sum(len(each.cells()) for each in self.extensions)
        if count > MAX_CELLS:
            raise ValueError(
                f"expected at most {MAX_CELLS:,} cells, got {count:,}; split the comparison"
            )
        if any(grid.axes for grid in self.grids):
            # Values of one grid differ; in several grids, two arms may still have one name.
            names: dict[str, Arm] = {}
            for arm in self.arms():
                if names.setdefault(arm.name, arm) != arm:
                    raise ValueError(f"axes: expected distinct arms, got {arm.name!r} twice")
        return self

    @property
    def num_looks(self) -> int:
        """How often seeds were added because of the results."""
        return sum(each.reason == "seeds" for each in self.extensions)

    @property
    def confidence_level(self) -> float:
        """Level of the intervals: 0.95, and higher if seeds were added; see `sequential_level`."""
        return sequential_level(self.num_looks) if self.num_looks else CONFIDENCE_LEVEL

    @property
    def seed_range(self) -> range:
        """Seeds that every setting is trained with."""
        return range(self.first_seed, self.first_seed + self.seeds)

    def cells(self) -> list[Cell]:
        """Return the distinct cells of all grids and extensions, in the order of the spec."""
        cells = [cell for grid in self.grids for cell in grid.cells(self.seed_range)]
        cells += [cell for each in self.extensions for cell in each.cells()]
        return list(dict.fromkeys(cells))

    def extend(self, extension: Extension) -> "Comparison":
        """Return the comparison with more cells."""
        return self._replace_extensions((*self.extensions, extension))

    def without_extensions(self) -> "Comparison":
        """Return the comparison as the user wrote it."""
        return self._replace_extensions(())

    def without_seed_extensions(self) -> "Comparison":
        """Return the comparison without the seeds that were added because of its results."""
        return self._replace_extensions(
            tuple(each for each in self.extensions if each.reason != "seeds")
        )

    def _replace_extensions(self, extensions: tuple[Extension, ...]) -> "Comparison":
        # Not model_copy, which skips the check of the size. Grids are passed as they are: a stored
        # comparison may name wirings that this process does not have.
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**fields | {"extensions": extensions})

    def arms(self) -> list[Arm]:
        """Return the distinct arms, in the order of the spec."""
        return list(dict.fromkeys(cell.arm for cell in self.cells()))

    @property
    def digest(self) -> str:
        """Hash that identifies the spec."""
        text = json.dumps(self.canonical_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def canonical_dict(self) -> dict[str, Any]:
        """Return the plain data that the digest covers.

        Fields added later are included only where they differ from their default, so that the
        digest of an older spec does not change.
        """
        data = self.model_dump(mode="json")
        for name in ("first_seed", "extend_lr", "extensions"):
            if not data[name]:
                del data[name]
        for grid in _iter_grids(data):
            if not grid["axes"]:
                del grid["axes"]
        return data

    def to_flat_dict(self) -> dict[str, Any]:
        """Return the spec as flat keys: the axes of a single grid and the recipe keys inlined.

        `parse_comparison` is the inverse.
        """
        data = self.model_dump(mode="json")
        for grid in _iter_grids(data):
            if not grid["axes"]:
                del grid["axes"]
        grids, keys = data.pop("grids"), data.pop("keys")
        if not self.extensions:
            del data["extensions"]
        return data | (grids[0] if len(grids) == 1 else {"grids": grids}) | keys

    def to_yaml(self) -> str:
        """Return the flat keys as YAML, the format of `addnorm compare -c`."""
        return yaml.safe_dump(self.to_flat_dict(), sort_keys=False, allow_unicode=True)


def _iter_grids(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the grids of a spec as plain data, those of extensions included."""
    for holder in (data, *data.get("extensions", ())):
        yield from holder["grids"]
