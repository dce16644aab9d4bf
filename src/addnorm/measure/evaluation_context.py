"""Context managers that keep an extra forward pass from affecting training."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import nn

from addnorm.stacks.eval_mode import eval_mode


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode without gradients inside the block; restore everything on exit.

    Restored are the training flags of all modules and the random generators. Compiled parts run
    eagerly, and FSDP modules free what they gathered.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(preserve_rng(model))
        stack.enter_context(compile_disabled())
        stack.callback(_reshard, model)
        stack.enter_context(eval_mode(model))
        yield


@contextmanager
def preserve_rng(model: nn.Module) -> Iterator[None]:
    """Restore torch's random generators of the CPU and of the model's devices on exit."""
    devices = {parameter.device for parameter in model.parameters()}
    accelerators = [device for device in devices if device.type not in ("cpu", "meta")]
    device_type = accelerators[0].type if accelerators else "cuda"
    with torch.random.fork_rng(accelerators, device_type=device_type):
        yield


@contextmanager
def compile_disabled() -> Iterator[None]:
    """Run compiled functions eagerly inside the block; nothing is recompiled."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled, and importing it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


def _reshard(model: nn.Module) -> None:
    """Free the parameters that FSDP gathered; without a backward pass it would keep them."""
    if "torch.distributed.fsdp" in sys.modules:
        from torch.distributed.fsdp import FSDPModule

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
