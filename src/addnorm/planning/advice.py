"""What to change if a plan does not fit, or fits badly."""

from typing import Any


def give_advice(plan: Any, limit: int) -> tuple[str, ...]:
    """Return sentences on a plan.

    Args:
        plan: a `TrainingPlan` without advice
        limit: bytes of a device that may be used
    """
    if plan.fits:
        sentences = []
        if plan.recompute and plan.peak_bytes_without_recompute <= limit:
            sentences.append("It also fits without recompute, which computes less.")
        if plan.communication_seconds > plan.compute_seconds:
            sentences.append(
                "Communication takes longer than arithmetic: use a larger batch per device, or "
                "fewer devices."
            )
        return tuple(sentences)
    sentences = []
    if not plan.recompute and plan.peak_bytes_with_recompute <= limit:
        sentences.append("Set recompute=true: then it fits.")
    sharded = plan.parallel == "fsdp"
    if plan.state_bytes_per_device > limit:
        needed = f"{format_bytes(plan.state_bytes_per_device)} of {format_bytes(limit)}"
        more = "use more devices" if sharded else "shard them over devices with fsdp"
        sentences.append(
            f"Weights, gradients and optimizer alone need {needed} per device: {more}."
        )
    else:
        for again in (plan.recompute, True) if not plan.recompute else (True,):
            most = _largest_batch(plan, limit, recompute=again)
            if 0 < most < plan.batch:
                extra = " with recompute=true" if again and not plan.recompute else ""
                sentences.append(f"Use batch={most}x{plan.length} per device{extra}: then it fits.")
        if not sentences:
            sentences.append(_describe_length(plan, limit))
        if not sharded and plan.devices > 1:
            sentences.append("fsdp would shard weights, gradients and optimizer.")
    return tuple(sentences)


def _largest_batch(plan: Any, limit: int, *, recompute: bool) -> int:
    """Return the most sequences that fit; activations are in proportion to them."""
    peak = plan.peak_bytes_with_recompute if recompute else plan.peak_bytes_without_recompute
    free = limit - plan.state_bytes_per_device
    used = max(1, peak - plan.state_bytes_per_device)
    return int(plan.batch * free // used)


def _describe_length(plan: Any, limit: int) -> str:
    """Return advice on the length if not even one sequence fits."""
    free = limit - plan.state_bytes_per_device
    used = max(1, plan.peak_bytes_with_recompute - plan.state_bytes_per_device)
    length = int(plan.length * plan.batch * free // used)
    if length < 1:
        return "Use a smaller model or devices with more memory."
    return (
        f"Even one sequence does not fit; about {length:,} tokens of one do with recompute=true. "
        "Use shorter sequences, a smaller model, a wiring that keeps less, or more memory."
    )


def format_bytes(size: float) -> str:
    """Return a number of bytes with its unit.

    >>> format_bytes(80e9), format_bytes(1_234_567), format_bytes(12)
    ('80.00 GB', '1.23 MB', '12 bytes')
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size:.0f} bytes"
