"""Options and KEY=VALUE pairs of `addnorm compare` as the spec of a comparison."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from addnorm.comparison.spec import Comparison


def add_axes(options: dict[str, Any], axes: list[str]) -> dict[str, Any]:
    """Return the options with those of `--axis`, which may also name an axis that has an option."""
    from addnorm.comparison.grid import AXES
    from addnorm.core.errors import UserError

    further: dict[str, str] = {}
    options = dict(options)
    for text in axes:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not (name and equals and values):
            raise UserError(
                f"--axis: expected NAME=VALUES, such as optimizer=adamw,muon, got {text!r}"
            )
        if name in options or name in further:
            raise UserError(f"--axis {name}: the axis is given twice; keep one of them")
        (options if name in AXES else further)[name] = values
    return options | ({"axes": further} if further else {})


def add_transfer_sizes(
    options: dict[str, Any], axes: list[str], keys: list[str], sizes: list[str]
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return options, axes and keys with the sizes of `--transfer`, and a sweep of rates.

    A key with several values, such as dim=64,128, is a size, too.
    """
    from addnorm.core.errors import UserError

    several = [key for key in keys if key.partition("=")[0] == "dim" and "," in key]
    options, axes = {"lr": "sweep", **options}, list(axes)
    for text in (*sizes, *several):
        name, _, values = (part.strip() for part in text.partition("="))
        if name not in ("depth", "dim") or not values:
            raise UserError(f"--transfer: expected depth=4,8,16 or dim=64,128, got {text!r}")
        if name in options:
            raise UserError(f"--transfer: {name} is given twice; keep one of them")
        if name == "depth":
            options["depth"] = values
        else:
            axes.append(f"dim={values}")
    return options, axes, [key for key in keys if key not in several]


def parse_spec(
    options: dict[str, Any], keys: list[str], task: str | None, config: Path | None, *, demo: bool
) -> "Comparison":
    """Build the spec from a file, the options and the KEY=VALUE pairs; later ones win."""
    from addnorm.comparison.demo import DEMO_SPEC
    from addnorm.comparison.parse import parse_comparison, parse_task_option, read_spec
    from addnorm.comparison.spec import GRID_KEYS
    from addnorm.core.errors import UserError
    from addnorm.core.key_values import parse_key_values

    if demo and (config is not None or task is not None):
        raise UserError("--demo: expected no --config and no --task; leave them out")
    values: dict[str, Any] = dict(DEMO_SPEC) if demo else read_spec(config) if config else {}
    pairs = parse_key_values(keys)
    if duplicates := [name for name in options if name in pairs]:
        name = duplicates[0]
        raise UserError(f"{name} is given twice, as --{name} and as {name}=...; keep one of them")
    overrides = (parse_task_option(task) if task else {}) | options | pairs
    if "grids" in values and any(name in overrides for name in GRID_KEYS):
        names = ", ".join(
            "--axis" if name == "axes" else f"--{name}" for name in GRID_KEYS if name in overrides
        )
        raise UserError(
            f"{names}: cannot override an axis of {'--demo' if demo else config}, which has "
            "several grids; edit the grids in a spec file"
        )
    return parse_comparison(values | overrides)


def check_execution(engine: str, address: str | None, slurm_options: dict[str, Any]) -> None:
    """Reject options of an engine that is not used."""
    from addnorm.core.errors import UserError

    if address is not None and engine != "ray":
        raise UserError("--address: expected --engine ray; add it, or leave out --address")
    for name, value in slurm_options.items():
        if value and engine != "slurm":
            raise UserError(f"--{name}: expected --engine slurm; add it, or leave out --{name}")
