"""Permutation importances of columns and of groups of columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from addnorm.core.errors import UserError
from addnorm.tabular.inspection.charts import save_chart
from addnorm.tabular.inspection.dependence import column_index
from addnorm.tabular.inspection.importance import ImportancePart, shuffled_losses

MAX_BARS = 30
"""Largest number of bars in a chart."""


@dataclass(frozen=True)
class PermutationImportances:
    """Increase of the loss when the columns of a group are shuffled together."""

    names: list[str]
    """Names of the groups."""
    mean: np.ndarray
    """(groups) mean increase of the loss."""
    std: np.ndarray
    """(groups) standard deviation over the shuffles."""

    def __str__(self) -> str:
        return "\n".join(
            f"{self.names[index]}: {self.mean[index]:.4g} ± {self.std[index]:.2g}"
            for index in self.order
        )

    @property
    def order(self) -> list[int]:
        """Indices of the groups, the most important first."""
        return [int(each) for each in np.argsort(-self.mean, kind="stable")]

    def chart(self) -> Any:
        """Return the importances as an Altair bar chart."""
        import altair as alt

        table = [
            {
                "column": self.names[index],
                "importance": float(self.mean[index]),
                "low": float(self.mean[index] - self.std[index]),
                "high": float(self.mean[index] + self.std[index]),
            }
            for index in self.order[:MAX_BARS]
        ]
        y = alt.Y("column:N", sort=[str(each["column"]) for each in table], title=None)
        base = alt.Chart({"values": table})
        bars = base.mark_bar(color="#0072b2").encode(
            x=alt.X("importance:Q", title="increase of the loss"), y=y
        )
        return alt.layer(bars, base.mark_rule().encode(x="low:Q", x2="high:Q", y=y)).properties(
            width=360
        )

    def save(self, path: str | Path) -> Path:
        """Write the chart to a .svg, .png, .html or .json file."""
        return save_chart(self.chart(), path)


def group_columns(names: Sequence[str], groups: Mapping[str, Any] | None) -> dict[str, list[int]]:
    """Return the positions of the columns of each group; without groups, of each column."""
    if groups is None:
        return {name: [index] for index, name in enumerate(names)}
    if not isinstance(groups, Mapping) or not groups:
        raise UserError(
            "groups: expected a dict from a name to columns, such as {'place': ['lat', 'lon']}, "
            f"got {groups!r}"
        )
    result = dict[str, list[int]]()
    for name, columns in groups.items():
        is_one = isinstance(columns, str | int | np.integer)
        result[str(name)] = [
            column_index(names, each) for each in ([columns] if is_one else columns)
        ]
        if not result[str(name)]:
            raise UserError(f"groups: expected columns in group {name!r}, got none")
    return result


def permutation_importances(
    parts: Sequence[ImportancePart],
    names: Sequence[str],
    groups: Mapping[str, Any] | None,
    repeats: int,
) -> PermutationImportances:
    """Return the importance of each group, averaged over the networks of a fit.

    Args:
        parts: networks and the rows to measure on
        names: names of the columns
        groups: columns of each group by its name; None for one group per column
        repeats: number of shuffles
    """
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise UserError(f"repeats: expected an integer >= 1, got {repeats!r}")
    indices = group_columns(names, groups)
    samples = [shuffled_losses(part, list(indices.values()), repeats) for part in parts]
    stacked = np.concatenate(samples)
    return PermutationImportances(list(indices), stacked.mean(0), stacked.std(0))
