"""First operation of a forward pass that returns NaN, and what made its inputs infinite."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from addnorm.doctor.graph.ops import ATTENTION, canonical_op, op_name
from addnorm.doctor.model_trace import SEED
from addnorm.doctor.rule_context import RuleContext
from addnorm.doctor.trace.tensors import iter_tensors


@dataclass(frozen=True, slots=True)
class FirstNan:
    """An operation that returns NaN although none of its inputs is NaN."""

    op: str
    path: str
    """Path of the module that calls it."""
    makers: tuple[str, ...] = ()
    """Operations that made an infinite input, the last one first."""


class _Found(Exception):
    pass


class _Observer(TorchFunctionMode):
    """Function mode that stops at the first NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: list[str] = [""]
        self.result: FirstNan | None = None
        self._makers: Any = WeakIdKeyDictionary()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        op = canonical_op(op_name(func))
        inputs = [t for t in iter_tensors((args, kwargs)) if t.is_floating_point()]
        with torch._C.DisableTorchFunction():
            for tensor in iter_tensors(out):
                if not tensor.is_floating_point():
                    continue
                if bool(tensor.isnan().any()) and not any(bool(t.isnan().any()) for t in inputs):
                    infinite = [t for t in inputs if bool(t.isinf().any())]
                    makers = self._makers.get(infinite[0], ()) if infinite else ()
                    self.result = FirstNan(op, self.paths[-1], makers)
                    raise _Found
                before = next((m for t in inputs if (m := self._makers.get(t))), ())
                self._makers[tensor] = (op, *before[:7])
        return out


def find_first_nan(context: RuleContext) -> FirstNan | None:
    """Return the first operation that makes a NaN; None if a second run makes none."""
    observer, trace = _Observer(), context.trace
    handles = []
    for path, module in trace.model.named_modules():
        handles.append(module.register_forward_pre_hook(_enter(observer, path)))
        handles.append(module.register_forward_hook(_leave(observer)))
    try:
        torch.manual_seed(SEED)
        with torch.no_grad(), warnings.catch_warnings(), observer:
            warnings.simplefilter("ignore")
            trace.model(*trace.args, **trace.kwargs)
    except Exception:  # the search ended, or the code of the user failed
        pass
    finally:
        for handle in handles:
            handle.remove()
        if trace.guard is not None:
            trace.guard.restore()
    return observer.result


def is_masked_after_softmax(first: FirstNan) -> bool:
    """Return whether the infinite numbers were filled in behind a softmax."""
    makers = list(first.makers)
    if not makers or makers[0] not in ("masked_fill", "where", "add", "sub"):
        return False
    return any(op in ATTENTION | {"softmax"} for op in makers[1:4])


def _enter(observer: _Observer, path: str) -> Callable[[nn.Module, Any], None]:
    def hook(_module: nn.Module, _args: Any) -> None:
        observer.paths.append(path)

    return hook


def _leave(observer: _Observer) -> Callable[[nn.Module, Any, Any], None]:
    def hook(_module: nn.Module, _args: Any, _out: Tensor) -> None:
        observer.paths.pop()

    return hook
