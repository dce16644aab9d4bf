"""Plan of a training run: memory, FLOPs, communication and time of a step, before it is run."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import torch

from addnorm.core.errors import UserError
from addnorm.models import PRESETS, Config, Model, build
from addnorm.planning.advice import give_advice
from addnorm.planning.batch_size import parse_batch
from addnorm.planning.communication import communication_bytes, communication_seconds
from addnorm.planning.devices import EFFICIENCY, parse_devices
from addnorm.planning.extrapolate import trace_depth
from addnorm.planning.states import measure_states
from addnorm.wirings import registry as wirings

Parallel = Literal["none", "ddp", "fsdp"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RESERVED = 0.1
"""Share of a device's memory that the runtime, the allocator and communication are assumed to
need."""


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Numbers of one training step; bytes and FLOPs are those of one device."""

    model: str
    wiring: str
    depth: int
    dim: int
    batch: int
    """Sequences on one device."""
    length: int
    """Tokens of a sequence."""
    dtype: str
    optimizer: str
    recompute: bool
    """Whether `peak_bytes`, `flops_per_step` and `fits` are those with recomputation."""
    devices: int
    device: str
    device_source: str
    parallel: str

    parameters: int
    weights_bytes: int
    """Bytes of all weights, before they are sharded; so are the next two."""
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    """Bytes that the forward pass keeps for the backward, without recomputation."""
    activation_bytes_recompute: int
    activation_bytes_per_layer: int
    """Mean over the layers."""
    activation_bytes_per_layer_recompute: int
    state_bytes_per_device: int
    """Weights, gradients and optimizer on one device; with ddp also its copy of the gradients."""
    peak_bytes: int
    """Largest number of bytes in use on one device."""
    peak_bytes_without_recompute: int
    peak_bytes_with_recompute: int
    memory_bytes: int
    """Memory of the device."""
    flops_per_step: int
    """FLOPs of forward and backward."""
    flops_per_step_with_recompute: int
    communication_bytes: int
    """Bytes that one device sends in a step."""
    compute_seconds: float
    communication_seconds: float
    step_seconds: float
    """Estimate: the longer of the two, as they overlap."""
    tokens_per_second: float
    """Tokens of all devices together, at the estimated step time."""
    fits: bool
    advice: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        return asdict(self) | {"advice": list(self.advice)}


def plan(
    model: str | Config | Model,
    *,
    batch: str | tuple[int, int] = "8x1024",
    dtype: str = "float32",
    optimizer: str = "adamw",
    recompute: bool = False,
    devices: str = "1xh100",
    parallel: Parallel = "none",
    **overrides: Any,
) -> TrainingPlan:
    """Return memory, FLOPs and communication of one training step; nothing is computed.

    The step runs on tensors without values, so that activations are those that autograd keeps.
    Fused CPU kernels of addnorm, which keep less, are not used. Deep models are extrapolated from a
    few layers, exactly.

    Args:
        model: name of a preset, a config or a model
        batch: sequences on one device and their length, "8x4096" or (8, 4096)
        dtype: of weights, gradients and activations: float32 or bfloat16, where the optimizer holds
            a float32 copy of the weights
        optimizer: call string of the optimizer
        recompute: whether sub-layers are recomputed in the backward
        devices: number and kind of devices, "64xh100"
        parallel: none, ddp (a copy on each device) or fsdp (everything sharded)
        **overrides: fields of the config to change, such as depth or wiring

    >>> result = plan("gpt2", depth=2, dim=64, heads=4, vocab=100, batch="2x16")
    >>> result.parameters == sum(
    ...     each.numel() for each in build("gpt2", depth=2, dim=64, heads=4, vocab=100).parameters()
    ... )
    True
    """
    config = _make_config(model, overrides)
    size, length = parse_batch(batch, config)
    count, device = parse_devices(devices)
    if config.experts is not None:
        raise UserError(
            f"experts: expected None, got {config.experts}; the work of a mixture depends on its "
            "routes, which a plan does not know"
        )
    if dtype not in DTYPES:
        raise UserError(f"dtype: expected float32 or bfloat16, got {dtype!r}")
    if parallel not in ("none", "ddp", "fsdp"):
        raise UserError(f"parallel: expected none, ddp or fsdp, got {parallel!r}")
    if parallel == "none" and count > 1:
        raise UserError(
            f"parallel: expected ddp or fsdp for {count} devices, got none; choose one, or 1 device"
        )
    if not isinstance(recompute, bool):
        raise UserError(f"recompute: expected true or false, got {recompute!r}")
    states = measure_states(build(config, device="meta"), dtype=DTYPES[dtype], optimizer=optimizer)
    traces = {
        again: trace_depth(config, batch=size, length=length, dtype=DTYPES[dtype], recompute=again)
        for again in (False, True)
    }
    shards = count if parallel == "fsdp" else 1
    # DDP copies gradients to buffers of its own, which it sends.
    buckets = states.gradients if parallel == "ddp" and count > 1 else 0
    static = (states.weights + states.optimizer) // shards + buckets
    # Of sharded weights and gradients, those of about two layers are whole at a time.
    gathered = 2 * states.weights // config.depth * 2 if shards > 1 else 0
    saved = states.gradients - states.gradients // shards
    peaks = {
        again: static + max(trace.peak_bytes - saved, trace.activation_bytes) + gathered
        for again, trace in traces.items()
    }
    flops = traces[recompute].flops
    speed = (device.bfloat16 if dtype == "bfloat16" else device.float32) * EFFICIENCY
    sent = communication_bytes(parallel, count, weights=states.weights, gradients=states.gradients)
    compute, waiting = flops / speed, communication_seconds(sent, count, device)
    limit = int(device.memory * (1 - RESERVED))
    result = TrainingPlan(
        model=_describe(model),
        wiring=str(wirings.resolve(config.wiring)),
        depth=config.depth,
        dim=config.dim,
        batch=size,
        length=length,
        dtype=dtype,
        optimizer=optimizer,
        recompute=recompute,
        devices=count,
        device=device.name,
        device_source=device.source,
        parallel=parallel,
        parameters=states.parameters,
        weights_bytes=states.weights,
        gradient_bytes=states.gradients,
        optimizer_bytes=states.optimizer,
        activation_bytes=traces[False].activation_bytes,
        activation_bytes_recompute=traces[True].activation_bytes,
        activation_bytes_per_layer=traces[False].layer_bytes,
        activation_bytes_per_layer_recompute=traces[True].layer_bytes,
        state_bytes_per_device=static + states.gradients // shards,
        peak_bytes=peaks[recompute],
        peak_bytes_without_recompute=peaks[False],
        peak_bytes_with_recompute=peaks[True],
        memory_bytes=device.memory,
        flops_per_step=flops,
        flops_per_step_with_recompute=traces[True].flops,
        communication_bytes=sent,
        compute_seconds=compute,
        communication_seconds=waiting,
        step_seconds=max(compute, waiting),
        tokens_per_second=count * size * length / max(compute, waiting),
        fits=peaks[recompute] <= limit,
    )
    return replace(result, advice=give_advice(result, limit))


def _make_config(model: Any, overrides: dict[str, Any]) -> Config:
    if isinstance(model, str):
        return PRESETS[model].config.replace(**overrides)
    config = model.config if isinstance(model, Model) else model
    if not isinstance(config, Config):
        raise UserError(f"model: expected a preset, a Config or a model, got {model!r}")
    return config.replace(**overrides) if overrides else config


def _describe(model: Any) -> str:
    return model if isinstance(model, str) else type(model).__name__
