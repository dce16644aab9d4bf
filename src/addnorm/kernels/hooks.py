"""Who looks at a module."""

from torch import nn
from torch.nn.modules import module as modules


def has_hooks(module: nn.Module) -> bool:
    """Whether somebody has hooked a module, or all modules, or put another forward into this one.

    Whoever computes what it would without calling it must call it then.
    """
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
    )
