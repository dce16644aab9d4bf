"""Detection of hooks on a module.

Some code computes the result of a module without calling it, for example a fused add+norm. A hook
on that module would then not run, so such code calls the module as soon as `has_hooks` is true.
"""

from torch import nn
from torch.nn.modules import module as modules


def has_hooks(module: nn.Module) -> bool:
    """Return whether a call of the module runs anything besides the `forward` of its class.

    That is a hook of this module, a hook for all modules, or a `forward` set on the instance.
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
