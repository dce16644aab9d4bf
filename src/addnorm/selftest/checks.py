"""The checks: functions of a device that return what they measured or raise `CheckFailure`.

A result is compared with the same model in float64 on the CPU, in plain torch. Bounds are relative
to the largest value: float32 has seven digits, and a stack of a few layers loses two of them.
"""

import math
import tempfile
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.core.errors import UserError
from addnorm.kernels.library import list_levels, use_level
from addnorm.models import build
from addnorm.stacks import Encoder
from addnorm.wirings import registry as wirings

FLOAT32_BOUND = 1e-4
BFLOAT16_BOUND = 0.1
VOCAB, LENGTH = 24, 16
EXPORTS = {"hf": ("transformers",), "torch": (), "onnx": ("onnx", "onnxruntime", "onnxscript")}
"""Targets of exports, and the packages that they need."""


class CheckFailure(Exception):
    """A check whose result is wrong; the message says what was measured."""


def check_kernels(device: torch.device) -> str:
    """Compare the native kernels with plain torch, in float32 and bfloat16, with gradients."""
    levels = list_levels()
    if not levels:
        return "not installed; everything runs in plain torch"
    worst = 0.0
    for dtype, bound in ((torch.float32, FLOAT32_BOUND), (torch.bfloat16, BFLOAT16_BOUND)):
        with use_level("off"):
            expected = _model_gradients(torch.device("cpu"), dtype)
        for level in levels:
            with use_level(level):
                difference = relative_difference(
                    _model_gradients(torch.device("cpu"), dtype), expected
                )
            require_bound(difference, bound, f"{level}, {str(dtype).removeprefix('torch.')}")
            worst = max(worst, difference) if dtype == torch.float32 else worst
    return f"{', '.join(levels)}: largest relative difference {worst:.1e}"


def check_wirings(device: torch.device) -> str:
    """Compare every wiring on the device with float64 on the CPU, forward and backward."""
    worst, names = 0.0, list(wirings)
    for name in names:
        expected = _stack_gradients(name, torch.device("cpu"), torch.float64)
        found = _stack_gradients(name, device, torch.float32)
        difference = relative_difference(found, expected)
        require_bound(difference, FLOAT32_BOUND, name)
        worst = max(worst, difference)
    return f"{len(names)} wirings, largest relative difference {worst:.1e}"


def check_training(device: torch.device) -> str:
    """Train a small language model on a periodic sequence; it must learn the period."""
    model = _build_model(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    tokens = _periodic_tokens().to(device)
    for _ in range(60):
        loss = nn.functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    value, baseline = loss.item(), math.log(VOCAB)
    if not value < baseline / 2:
        raise CheckFailure(f"loss {value:.3f} after 60 steps, expected below {baseline / 2:.3f}")
    return f"loss {value:.3f} after 60 steps, {baseline:.3f} without training"


def check_decoding(device: torch.device) -> str:
    """Compare greedy search with the key-value cache with full forward passes."""
    model = _build_model(device).eval()
    prompt = _periodic_tokens()[:2, :4].to(device)
    tokens = prompt
    with torch.no_grad():
        for _ in range(8):
            tokens = torch.cat([tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)], dim=1)
        cache = model.new_cache()
        logits = model(prompt, cache=cache)
        found = prompt
        for _ in range(8):
            found = torch.cat([found, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
            logits = model(found[:, -1:], cache=cache)
    if not torch.equal(found, tokens):
        raise CheckFailure("tokens with the cache differ from those without")
    return "8 tokens with the cache equal those without"


def check_export(device: torch.device) -> str:
    """Export a small model to every target whose packages are installed; each proves itself."""
    from addnorm.exporters import export
    from addnorm.exporters.targets import get_target
    from addnorm.exporters.transformers_engine import quiet_transformers

    quiet = quiet_transformers if find_spec("transformers") else nullcontext
    model = _build_model(torch.device("cpu")).eval()
    done = []
    for target, packages in EXPORTS.items():
        if any(find_spec(package) is None for package in packages):
            continue
        if (needed := get_target(target).min_torch) and torch.__version__ < needed:
            done.append(f"{target} (needs torch {needed})")
            continue
        with tempfile.TemporaryDirectory() as folder, quiet():
            try:
                report = export(model, to=target, out=Path(folder) / "out")
            except UserError as error:
                raise CheckFailure(f"{target}: {error}") from None
            done.append(f"{target} ({report.grade}, {report.max_error:.0e})")
    return ", ".join(done)


def _build_model(device: torch.device, **options: Any) -> Any:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"vocab": VOCAB, "dim": 32, "depth": 2, "heads": 4, "wiring": "b2t"}
    return build(kind="lm", **(settings | options)).to(device)


def _periodic_tokens(rows: int = 8) -> Tensor:
    start = torch.arange(rows)[:, None]
    return (start + torch.arange(LENGTH + 1)) % VOCAB


def _model_gradients(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    # Large enough that the native kernels are used; they leave small tensors to torch.
    model = _build_model(device, dim=128, dropout=0.1, wiring="post_ln").to(dtype)
    tokens = _periodic_tokens(rows=64).to(device)
    torch.manual_seed(1)  # the same dropout masks, which do not depend on the kernels
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    return [each.grad for each in model.parameters() if each.grad is not None]


def _stack_gradients(wiring: str, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(0)
    stack = Encoder(dim=16, depth=3, heads=2, wiring=wiring)
    x = torch.randn(3, 5, 16)
    stack, x = stack.to(device, dtype).eval(), x.to(device, dtype).requires_grad_()
    y = stack(x)
    # Not the sum of squares: behind a norm it is constant, and its gradient is rounding error.
    (y * torch.linspace(-1, 1, y.numel(), device=device, dtype=dtype).view_as(y)).sum().backward()
    assert x.grad is not None
    return [y.detach(), x.grad]


def relative_difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference, relative to the largest value of all tensors.

    Not of each tensor: some gradients are zero but for rounding, such as those of key biases.
    """
    pairs = [
        (one.cpu().double(), other.double()) for one, other in zip(found, expected, strict=True)
    ]
    largest = max(float(other.abs().max()) for _, other in pairs)
    return max(float((one - other).abs().max()) for one, other in pairs) / largest


def require_bound(difference: float, bound: float, what: str) -> None:
    """Raise CheckFailure if a difference is larger than its bound, or NaN."""
    if not difference <= bound:
        raise CheckFailure(
            f"{what}: relative difference {difference:.1e}, expected at most {bound}"
        )
