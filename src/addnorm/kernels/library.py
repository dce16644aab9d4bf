"""The native library: which instructions it uses here, and why it may not be there.

It is an optional part of the installation, written in C (`native/` of the source), loaded with
ctypes, and shares the threads of torch. Whoever calls it keeps the definition in plain torch beside
it, for where it is not. `ADDNORM_NATIVE=off`, or the name of a level, chooses by hand.
"""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from addnorm.core.errors import UserError, unknown_name_message

LIBRARY_PATH = Path(__file__).with_name("_native.so")
VERSION = 6  # ADDNORM_VERSION of native/addnorm.h
LEVELS = ("portable", "avx2", "avx512")
FUNCTIONS = (
    *("add_norm_forward", "add_norm_backward", "dropout"),
    *("attention_forward", "attention_backward", "decode_attention"),
    *("cross_entropy", "linear"),
)
DTYPE_CODES = {
    (torch.float32, torch.float32): 0,
    (torch.bfloat16, torch.bfloat16): 1,
    (torch.float32, torch.bfloat16): 2,
}
"""Of stream and branch, as the library counts them."""
_PLAIN_TYPES = (Tensor, nn.Parameter)

ROWS_STRUCT = struct.Struct("@2q3i3f18P")
"""`struct addnorm_rows` of native/addnorm.h; packing is faster than field by field."""


@dataclass(frozen=True)
class Availability:
    """Whether the library runs here; true or false where a truth is wanted."""

    level: str | None
    """The instructions it uses; None where it does not run."""
    reason: str
    """One sentence for the user."""

    def __bool__(self) -> bool:
        return self.level is not None


class _State:
    """What this process has found out."""

    library: ctypes.CDLL | None = None
    functions: ClassVar[dict[str, Any]] = {}
    availability = Availability(None, "nobody has looked yet")
    level = -1
    forked = False


def get_availability() -> Availability:
    """Whether the library runs here, with which instructions, and if not, why not."""
    return _State.availability


def levels() -> tuple[str, ...]:
    """The levels that can be chosen here, the best last; none without the library."""
    library = _load()
    if isinstance(library, str):
        return ()
    found = library.addnorm_levels()
    return tuple(name for bit, name in enumerate(LEVELS) if found >> bit & 1)


@contextmanager
def use_level(level: str) -> Iterator[None]:
    """Another level for a while, or "off"; for tests and measurements."""
    before = _State.availability, _State.level
    try:
        _select_level(level)
        yield
    finally:
        _State.availability, _State.level = before


def call_rows(name: str, *fields: float) -> None:
    """Run a function over rows; address 0 is NULL."""
    if call_native(name, ROWS_STRUCT.pack(*fields)):
        raise MemoryError("no memory for the sums over rows")


def call_native(name: str, data: bytes) -> int:
    """Run a function of the library on all threads that torch would use; what it answers."""
    assert _State.level >= 0, _State.availability.reason
    # Threads of OpenMP do not survive a fork; a child works alone.
    threads = 1 if _State.forked else torch.get_num_threads()
    return _State.functions[name](data, _State.level, threads) or 0


def data_ptr_or_null(tensor: Tensor | None) -> int:
    """Where a tensor stands; 0 of nothing."""
    return 0 if tensor is None else tensor.data_ptr()


def is_eager() -> bool:
    """Whether operations run at once. In a graph that is compiled, exported or traced sizes may
    stay open; whoever asks for one closes it.
    """
    return not (
        torch.compiler.is_compiling()
        or torch.compiler.is_exporting()
        or torch._C._get_tracing_state() is not None
    )


def needs_differentiable_backward(*grads: Tensor | None) -> bool:
    """Whether a backward of these is to be made of torch's operations: somebody wants gradients of
    gradients, or many at once.
    """
    return (
        torch.is_grad_enabled()
        or torch._C._functorch.maybe_current_level() is not None
        or any(
            grad is not None and torch._C._functorch.is_legacy_batchedtensor(grad) for grad in grads
        )
    )


def can_use_native(min_features: int, x: Tensor, *others: Tensor | None) -> bool:
    """Whether the library may take these tensors: plain ones of a CPU, and nobody watches.

    least: features of x from which on that is faster. Whoever records or rewrites operations (a
    mode, vmap, a trace, an export, forward differentiation) is to see those of torch.
    """
    if (
        torch.compiler.is_exporting()
        or not x.is_cpu
        or x.numel() < min_features
        or not get_availability()
    ):
        return False
    if torch.compiler.is_compiling():
        return True
    if (
        torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._functorch.maybe_current_level() is not None
    ):
        return False
    return all(each is None or _has_plain_storage(each) for each in (x, *others))


def _has_plain_storage(tensor: Tensor) -> bool:
    """Whether what stands at its address is what a tensor says."""
    return (
        type(tensor) in _PLAIN_TYPES
        and tensor.is_cpu
        and not tensor.is_neg()
        and (tensor.data_ptr() != 0 or not tensor.numel())  # its memory may have been taken away
    )


def _select_level(requested: str) -> None:
    if requested not in ("", "off", *LEVELS):
        raise UserError(
            unknown_name_message("level of ADDNORM_NATIVE", requested, ("off", *LEVELS))
        )
    library = _load()
    found = levels()
    if requested == "off":
        level, why = None, "switched off by ADDNORM_NATIVE=off: kernels run in plain torch"
    elif isinstance(library, str):
        level, why = None, library
    elif requested and requested not in found:
        raise UserError(
            f"this CPU or this build has no {requested}; choose one of {', '.join(found)}, or off"
        )
    else:
        level = requested or found[-1]
        why = f"native kernels with {level} instructions"
    _State.level = -1 if level is None else LEVELS.index(level)
    _State.availability = Availability(level, why)


def _load() -> ctypes.CDLL | str:
    """The library, or why there is none."""
    if _State.library is not None:
        return _State.library
    if not LIBRARY_PATH.exists():
        return (
            "the native library was not built, kernels run in plain torch; with a C compiler that "
            "has OpenMP, install addnorm again"
        )
    try:
        library = ctypes.CDLL(str(LIBRARY_PATH))  # torch is loaded, so its OpenMP is found first
        version = library.addnorm_version()
        if version != VERSION:
            return (
                f"the native library has version {version}, wanted {VERSION}: it is older or newer "
                "than the package, kernels run in plain torch; install addnorm again"
            )
        for name in FUNCTIONS:
            function = _State.functions[name] = library[f"addnorm_{name}"]
            function.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
            function.restype = None if name in ("add_norm_forward", "dropout") else ctypes.c_int
    except (OSError, AttributeError) as problem:
        return f"the native library cannot be loaded, kernels run in plain torch: {problem}"
    _State.library = library
    return library


def _mark_forked() -> None:
    _State.forked = True


_select_level(os.environ.get("ADDNORM_NATIVE", ""))

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
