"""`addnorm coordcheck`: do activations and updates keep their size over width and depth?"""

from pathlib import Path
from typing import Annotated, Any

import typer

DEFAULT_FIELDS: dict[str, Any] = {
    "vocab": 64,
    "heads": 4,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
}
"""Fields of the models unless given: small enough for many of them."""
LANGUAGE_MODEL_FIELDS: dict[str, Any] = {
    "kind": "lm",
    "positions": "none",
    "tied": False,
    "embed_scale": "sqrt_dim",
}
"""Further fields of the model that is checked if none is named."""


def coordcheck(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Preset such as llama, or a builder of width and depth: FILE.py:FUNCTION or "
            "MODULE:FUNCTION; a small language model without it",
        ),
    ] = None,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Fields of the model, such as wiring=post_ln"),
    ] = None,
    dim: Annotated[str, typer.Option(metavar="WIDTHS", help="Widths, such as 32,64,128")] = (
        "32,64,128"
    ),
    depth: Annotated[
        str, typer.Option(metavar="DEPTHS", help="Numbers of layers, such as 2,4,8")
    ] = "2,4,8",
    lr: Annotated[float, typer.Option(help="Learning rate; rather large")] = 0.01,
    steps: Annotated[
        int, typer.Option(help="Optimizer steps; 0 judges the initial activations")
    ] = 10,
    seeds: Annotated[int, typer.Option(help="Number of seeds")] = 2,
    optimizer: Annotated[str, typer.Option(help="adam or sgd")] = "adam",
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Output folder of the page")
    ] = Path("coordcheck"),
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON")] = False,
) -> None:
    """Check that activations keep their size over width and depth.

    Exits with 1 if the updates of a site grow or fall; those of logits may fall with the width.
    """
    from addnorm.cli.output import make_console, write_json, write_page
    from addnorm.report.transfer.coordcheck_page import write_coordcheck_page
    from addnorm.transfer import coordcheck as check

    if what is not None and "=" in what:
        keys = [what, *(keys or [])]
        what = None
    build, facts = _make_builder(what, keys or [])
    result = check(
        build,
        _parse_sizes("--dim", dim),
        _parse_sizes("--depth", depth),
        lr=lr,
        steps=steps,
        seeds=seeds,
        optimizer=optimizer,
    )
    facts |= {"lr": lr, "seeds": seeds, "optimizer": optimizer, "dim": dim, "depth": depth}
    page = write_coordcheck_page(result, out, facts)
    if json:
        write_json(result.to_dict())
    else:
        write_page(make_console(), _table(result), "", *result.sentences(), f"page: {page}")
    if not result.ok:
        raise typer.Exit(1)


def _make_builder(what: str | None, keys: list[str]) -> tuple[Any, dict[str, Any]]:
    from addnorm.cli.model_keys import parse_model_keys
    from addnorm.core.errors import UserError
    from addnorm.doctor.loading.targets import import_target
    from addnorm.models import PRESETS, build

    if what is not None and ":" in what:
        if keys:
            raise UserError(f"{keys[0]}: expected no keys for a builder of your own; leave it out")
        return import_target(what, "a function of width and depth"), {"model": what}
    values = parse_model_keys(keys)
    for name in ("dim", "depth"):
        if name in values:
            raise UserError(f"{name}: expected --{name} with several values; leave out {name}=...")
    fields = DEFAULT_FIELDS | (LANGUAGE_MODEL_FIELDS if what is None else {})
    if what is not None and PRESETS[what].config.vocab is None:
        del fields["vocab"]  # a model of images
    fields |= values

    def build_model(dim: int, depth: int) -> Any:
        return build(what, dim=dim, depth=depth, **fields)

    shown = " ".join([what or "language model", *keys])
    return build_model, {"model": shown}


def _parse_sizes(option: str, text: str) -> tuple[int, ...]:
    from addnorm.core.errors import UserError

    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdigit() for part in parts):
        raise UserError(f"{option}: expected integers such as 32,64,128, got {text!r}")
    return tuple(int(part) for part in parts)


def _table(result: Any) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold cyan")
    for name in ("axis", "site", "verdict", f"slope of {result.measure}s", "95 % interval"):
        table.add_column(name, no_wrap=True)
    for row in result.table():
        slope = row[f"{result.measure}_slope"]
        cells = ["", ""]
        if slope:
            low, high = slope["low"], slope["high"]
            interval = "" if low is None else f"{low:+.2f} to {high:+.2f}"
            cells = [f"{slope['value']:+.2f}", interval]
        table.add_row(row["axis"], row["site"], row["verdict"], *cells)
    return table
