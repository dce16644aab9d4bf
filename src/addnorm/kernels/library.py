"""Loader of the native library, and the conditions under which it may be called.

The library is an optional part of the installation, written in C (`native/` of the source tree). It
is loaded with ctypes and runs on torch's threads. An operator that uses it has a definition in
plain torch for all other cases, and asks here:

    get_availability()    does the library run in this process, and if not, why?
    can_use_native(...)   may it take these tensors now?
    call_native(...)      run a function on a packed struct

The environment variable `ADDNORM_NATIVE` is read once, at import: `off` disables the library, and
`portable`, `avx2` or `avx512` choose an instruction-set level. The default is the best level that
the CPU supports.

>>> with use_level("off"):
...     bool(get_availability())
False
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
VERSION = 6  # ADDNORM_VERSION of native/common/addnorm.h
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
"""Codes of native/common/addnorm.h for the dtypes of stream and branch."""
_PLAIN_TYPES = (Tensor, nn.Parameter)

ROWS_STRUCT = struct.Struct("@2q3i3f18P")
"""`struct addnorm_rows` of native/add_norm/add_norm.h; packing is faster than setting the fields of
a ctypes structure."""


@dataclass(frozen=True)
class Availability:
    """Whether the library runs in this process; false in a boolean context if it does not."""

    level: str | None
    """Instruction-set level in use; None if the library does not run."""
    reason: str
    """Explanation for the user, one sentence."""

    def __bool__(self) -> bool:
        return self.level is not None


class _State:
    """Library, functions and level that this process has loaded."""

    library: ctypes.CDLL | None = None
    functions: ClassVar[dict[str, Any]] = {}
    availability = Availability(None, "the native library has not been loaded yet")
    level = -1
    forked = False


def get_availability() -> Availability:
    """Return whether the library runs here and at which level, or why it does not."""
    return _State.availability


def list_levels() -> tuple[str, ...]:
    """Return the levels that this build and CPU support, best last; none without the library."""
    library = _load()
    if isinstance(library, str):
        return ()
    supported = library.addnorm_levels()
    return tuple(name for bit, name in enumerate(LEVELS) if supported >> bit & 1)


@contextmanager
def use_level(level: str) -> Iterator[None]:
    """Select a level, or "off", inside the block; for tests and benchmarks."""
    before = _State.availability, _State.level
    try:
        _select_level(level)
        yield
    finally:
        _State.availability, _State.level = before


def call_rows(name: str, *fields: float) -> None:
    """Call a function that takes `struct addnorm_rows`; address 0 is NULL."""
    if call_native(name, ROWS_STRUCT.pack(*fields)):
        raise MemoryError("cannot allocate the partial sums over rows")


def call_native(name: str, data: bytes) -> int:
    """Call a function of the library on as many threads as torch uses; return its error code."""
    assert _State.level >= 0, _State.availability.reason
    # OpenMP's threads do not survive a fork, so a child process uses one thread.
    threads = 1 if _State.forked else torch.get_num_threads()
    return _State.functions[name](data, _State.level, threads) or 0


def data_ptr_or_null(tensor: Tensor | None) -> int:
    """Return the address of a tensor's data; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def is_exporting() -> bool:
    """Return whether torch.export is tracing.

    torch before 2.7 cannot tell this from torch.compile, so compiled graphs count, too; they then
    consist of torch's own operations.
    """
    if hasattr(torch.compiler, "is_exporting"):
        return torch.compiler.is_exporting()
    return torch.compiler.is_compiling()


def is_eager() -> bool:
    """Return whether operations run immediately.

    In a graph that is compiled, exported or traced, sizes may be symbolic: code that reads a size
    to choose an implementation would fix that size in the graph.
    """
    return not (
        torch.compiler.is_compiling() or is_exporting() or torch._C._get_tracing_state() is not None
    )


def needs_differentiable_backward(*grads: Tensor | None) -> bool:
    """Return whether a backward must consist of torch operations.

    That is the case for gradients of gradients (create_graph=True) and for batched gradients
    (torch.func, is_grads_batched=True).
    """
    return (
        torch.is_grad_enabled()
        or torch._C._functorch.maybe_current_level() is not None
        or any(
            grad is not None and torch._C._functorch.is_legacy_batchedtensor(grad) for grad in grads
        )
    )


def can_use_native(min_features: int, x: Tensor, *others: Tensor | None) -> bool:
    """Return whether the library may take these tensors.

    They must be plain CPU tensors, and nothing may record or rewrite torch operations: modes, vmap,
    traces, exports and forward-mode differentiation must see the operations of torch. In a compiled
    graph the answer is positive, because the operators are registered with torch.

    Args:
        min_features: elements of x from which the library is faster
        x: the largest input
        others: further inputs
    """
    if is_exporting() or not x.is_cpu or x.numel() < min_features or not get_availability():
        return False
    if torch.compiler.is_compiling():
        return True
    if is_recording():
        return False
    return all(each is None or _has_plain_storage(each) for each in (x, *others))


def is_recording() -> bool:
    """Return whether traces, modes, vmap or forward-mode differentiation watch the operations."""
    return (
        torch._C._get_tracing_state() is not None
        or forward_ad._current_level >= 0
        or bool(torch._C._len_torch_function_stack())
        or bool(torch._C._len_torch_dispatch_stack())
        or torch._C._functorch.maybe_current_level() is not None
    )


def _has_plain_storage(tensor: Tensor) -> bool:
    """Return whether the memory at `data_ptr()` holds the tensor's values."""
    return (
        type(tensor) in _PLAIN_TYPES
        and tensor.is_cpu
        and not tensor.is_neg()  # a lazily negated view
        and (tensor.data_ptr() != 0 or not tensor.numel())  # FSDP frees the storage of weights
    )


def _select_level(requested: str) -> None:
    if requested not in ("", "off", *LEVELS):
        raise UserError(
            unknown_name_message("level of ADDNORM_NATIVE", requested, ("off", *LEVELS))
        )
    library = _load()
    supported = list_levels()
    if requested == "off":
        level, reason = None, "switched off by ADDNORM_NATIVE=off: kernels run in plain torch"
    elif isinstance(library, str):
        level, reason = None, library
    elif requested and requested not in supported:
        raise UserError(
            f"ADDNORM_NATIVE: expected a level that this CPU and build support "
            f"({', '.join(supported)}) or off, got {requested}"
        )
    else:
        level = requested or supported[-1]
        reason = f"native kernels with {level} instructions"
    _State.level = -1 if level is None else LEVELS.index(level)
    _State.availability = Availability(level, reason)


def _load() -> ctypes.CDLL | str:
    """Return the library, or the reason why there is none."""
    if _State.library is not None:
        return _State.library
    if not LIBRARY_PATH.exists():
        return (
            "the native library was not built, kernels run in plain torch; install addnorm again "
            "with a C compiler that supports OpenMP"
        )
    try:
        library = ctypes.CDLL(str(LIBRARY_PATH))  # torch is loaded, so its OpenMP is found first
        version = library.addnorm_version()
        if version != VERSION:
            return (
                f"the native library has version {version}, expected {VERSION}, kernels run in "
                "plain torch; install addnorm again"
            )
        for name in FUNCTIONS:
            function = _State.functions[name] = library[f"addnorm_{name}"]
            function.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_int]
            function.restype = None if name in ("add_norm_forward", "dropout") else ctypes.c_int
    except (OSError, AttributeError) as error:
        return f"the native library cannot be loaded, kernels run in plain torch: {error}"
    _State.library = library
    return library


def _mark_forked() -> None:
    _State.forked = True


_select_level(os.environ.get("ADDNORM_NATIVE", ""))

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)
