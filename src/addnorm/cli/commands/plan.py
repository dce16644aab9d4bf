"""`addnorm plan`: memory, FLOPs and time of a training step, before it is run."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from addnorm.planning import TrainingPlan

PLAN_KEYS = ("batch", "dtype", "optimizer", "recompute")
"""Keys that are no fields of the model."""


def plan(
    preset: Annotated[str, typer.Argument(metavar="PRESET", help="Preset, such as llama")],
    keys: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Fields of the model such as depth=48 wiring=hyper, and batch=8x4096 (sequences "
            "per device x tokens), dtype=bfloat16, optimizer=muon, recompute=true",
        ),
    ] = None,
    devices: Annotated[
        str, typer.Option(metavar="NxDEVICE", help="Number and kind of devices, such as 64xh100")
    ] = "1xh100",
    parallel: Annotated[
        str | None, typer.Option(help="none, ddp or fsdp; fsdp for several devices by default")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON")] = False,
) -> None:
    """Predict memory, FLOPs and time of a training step.

    Exits with 1 if the step does not fit into the memory of a device.
    """
    from addnorm.cli.model_keys import parse_model_keys
    from addnorm.cli.output import make_console, write_json, write_page
    from addnorm.planning import plan as make_plan
    from addnorm.planning.devices import parse_devices

    values = parse_model_keys(keys or [], extra=PLAN_KEYS, raw=["batch"])
    count, _ = parse_devices(devices)
    strategy: Any = parallel or ("fsdp" if count > 1 else "none")
    result = make_plan(preset, devices=devices, parallel=strategy, **values)
    if json:
        write_json(result.to_dict())
    else:
        write_page(make_console(), _table(result), "", *_sentences(result))
    if not result.fits:
        raise typer.Exit(1)


def _sentences(plan: "TrainingPlan") -> list[str]:
    from addnorm.planning.advice import format_bytes

    verdict = "It fits" if plan.fits else "It does not fit"
    first = (
        f"{verdict}: {format_bytes(plan.peak_bytes)} of {format_bytes(plan.memory_bytes)} on each "
        f"of {plan.devices} "
        f"{plan.device} ({plan.device_source}; 10 % of the memory is left free)."
    )
    return [first, *plan.advice]


def _table(plan: "TrainingPlan") -> Any:
    from rich.table import Table

    from addnorm.planning.advice import format_bytes

    table = Table.grid(padding=(0, 2, 0, 0))
    again = f"{format_bytes(plan.activation_bytes_per_layer_recompute)} per layer"
    rows = {
        "model": f"{plan.model} wiring={plan.wiring} depth={plan.depth} dim={plan.dim}",
        "step": f"{plan.batch} x {plan.length} tokens per device, {plan.dtype}, {plan.optimizer}"
        + (", recompute" if plan.recompute else ""),
        "devices": f"{plan.devices} x {plan.device}, {plan.parallel}",
        "parameters": f"{plan.parameters:,}",
        "weights": format_bytes(plan.weights_bytes),
        "gradients": format_bytes(plan.gradient_bytes),
        "optimizer": format_bytes(plan.optimizer_bytes),
        "states per device": format_bytes(plan.state_bytes_per_device),
        "activations": f"{format_bytes(plan.activation_bytes)}, "
        f"{format_bytes(plan.activation_bytes_per_layer)} per layer",
        "  with recompute": f"{format_bytes(plan.activation_bytes_recompute)}, {again}",
        "peak per device": f"{format_bytes(plan.peak_bytes_without_recompute)}, "
        f"{format_bytes(plan.peak_bytes_with_recompute)} with recompute",
        "FLOPs": f"{plan.flops_per_step:.3e} per device and step",
        "communication": f"{format_bytes(plan.communication_bytes)} sent per device and step",
        "time": f"about {plan.step_seconds:.2g} s: arithmetic {plan.compute_seconds:.2g} s at 40 % "
        f"of the peak, communication {plan.communication_seconds:.2g} s; "
        f"{plan.tokens_per_second:,.0f} tokens/s",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    return table
