"""Who looks at a module."""

from torch import nn


def watched(module: nn.Module) -> bool:
    """Whether somebody has hooked a module, forward or backward.

    Whoever computes what it would without calling it must call it then.
    """
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )
