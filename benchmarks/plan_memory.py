"""Predicted against measured memory and FLOPs of a training step, on the CPU.

    ADDNORM_NATIVE=off python benchmarks/plan_memory.py

Every wiring runs at four sizes, with and without recomputation. Measured are the bytes that the
allocator of torch hands out (torch.profiler), and FLOPs by torch.utils.flop_counter. The fused CPU
kernels are off, as the plan is for the operations of torch.
"""

import os
import sys

os.environ["ADDNORM_NATIVE"] = "off"

import torch
from torch.utils.flop_counter import FlopCounterMode

import addnorm
from addnorm.models import Config, build
from addnorm.wirings import registry

SIZES = ((32, 2, 2, 32), (64, 4, 4, 64), (64, 6, 2, 128), (128, 8, 2, 64))
"""dim, depth, sequences, tokens."""
VOCAB = 500


def measure(config: Config, batch: int, length: int, *, recompute: bool) -> tuple[int, int]:
    """Return the peak of the second step with its weights and AdamW's state, and its FLOPs."""
    model = build(config, seed=0).train()
    for stack in model.stacks:
        stack.recompute = recompute
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(VOCAB, (batch, length))

    def step() -> None:
        optimizer.zero_grad()
        sums = model.loss(ids, ids)
        (sums.loss / sums.num_targets).backward()

    with FlopCounterMode(display=False) as counter:
        step()
    optimizer.step()
    optimizer.zero_grad()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
        optimizer.step()
    events = [
        each for each in profile.profiler.kineto_results.events() if each.name() == "[memory]"
    ]
    live = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    states = 3 * 4 * sum(parameter.numel() for parameter in model.parameters())
    return peak + states, counter.get_total_flops()


def main() -> None:
    names = sys.argv[1:] or list(registry)
    worst = 0.0
    print(f"{'wiring':<14}", *(f"{dim}/{depth}/{b}x{n:<8}" for dim, depth, b, n in SIZES))
    for name in names:
        cells = []
        for dim, depth, batch, length in SIZES:
            config = Config(kind="lm", vocab=VOCAB, dim=dim, depth=depth, heads=4, wiring=name)
            plan = addnorm.plan(config, batch=(batch, length))
            predicted = (
                (plan.peak_bytes_without_recompute, plan.flops_per_step),
                (plan.peak_bytes_with_recompute, plan.flops_per_step_with_recompute),
            )
            for recompute, (expected, expected_flops) in zip((False, True), predicted, strict=True):
                peak, flops = measure(config, batch, length, recompute=recompute)
                error = expected / peak - 1
                worst = max(worst, abs(error))
                exact = "" if expected_flops == flops else f" FLOPs {expected_flops - flops:+}"
                cells.append(f"{100 * error:+.2f}%{exact}")
        print(f"{name:<14}", *(f"{cell:<9}" for cell in cells), flush=True)
    print(f"largest error of the peak: {100 * worst:.2f} % over {len(names)} wirings")


if __name__ == "__main__":
    main()
