"""The recipe of a cell on a table."""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from addnorm.core.files import write_yaml

Fractions = tuple[Annotated[float, Field(gt=0, lt=1)], ...]


class TableRecipe(BaseModel):
    """Settings that determine a cell on a table, as plain data."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: Literal["table"] = "table"
    data: str
    """Folder of the table's splits."""
    target: str
    """Column to predict."""
    kind: Literal["auto", "classify", "regress"] = "auto"
    """Kind of target; auto infers it from the values, as `addnorm fit` does."""
    missing: Fractions = ()
    """Fractions of test cells to remove; each gives an additional score."""
    noise: Fractions = ()
    """Fractions of test cells to replace by cells of other rows; each gives an additional score."""
    params: dict[str, Any] = Field(default_factory=dict)
    """Estimator parameters, equal for all cells: model, dim, dropout, batch_size, ..."""
    wiring: str
    norm: str
    depth: int
    lr: float
    schedule: str
    seed: int
    steps: int
    """Optimizer steps; rounded up to whole epochs."""

    def to_flat_dict(self) -> dict[str, Any]:
        """Return all keys with their values, the estimator parameters inlined."""
        data = self.model_dump(mode="json")
        params: dict[str, Any] = data.pop("params")
        return data | params

    def to_yaml(self) -> str:
        """Return all keys as YAML."""
        return yaml.safe_dump(self.to_flat_dict(), sort_keys=False, allow_unicode=True)

    def save(self, path: Path) -> None:
        """Write the keys to a YAML file, `config.yaml` of the cell."""
        write_yaml(path, self.to_yaml())
