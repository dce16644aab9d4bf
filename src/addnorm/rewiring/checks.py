"""Refusals: models that cannot be rewired, each with one clear line."""

import torch
from torch import nn

from addnorm.core.errors import UserError
from addnorm.measure.sharded_norms import is_sharded

PLAIN_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
QUANTIZED_PACKAGES = (
    *("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized"),
    *("bitsandbytes", "torchao", "gptqmodel", "auto_gptq", "awq", "hqq", "optimum.quanto"),
)
WRAPPERS = (
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "DeepSpeedEngine",
)
"""Classes of parallel training whose attribute `module` is the model."""


def check_model(model: object) -> None:
    """Raise `UserError` unless a model has plain weights that may be copied and changed."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model: expected a torch.nn.Module, got {type(model).__name__}")
    if type(model).__name__ in WRAPPERS:
        raise UserError(
            f"model: expected the module itself, got {type(model).__name__}; pass model.module"
        )
    if getattr(model, "hf_quantizer", None) is not None:
        raise _quantized_error(type(model).__name__, type(model.hf_quantizer).__name__)
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError("model: expected a module of Python code, got a scripted one")
    for path, module in model.named_modules():
        _check_module(path or "the model", module)
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if weight.is_meta:
            raise UserError(
                f"model: expected weights with values, got {name} on the meta device; load the "
                "weights first"
            )
        if is_sharded(weight):
            raise UserError(
                f"model: expected whole weights, got the shard {name}; rewire before sharding"
            )
    for name, weight in model.named_parameters():
        is_plain = weight.dtype in PLAIN_FLOATS and type(weight.data) is torch.Tensor
        if not is_plain:
            raise _quantized_error(name, f"{weight.dtype} ({type(weight.data).__name__})")


def _check_module(path: str, module: nn.Module) -> None:
    # Not by attribute names of OptimizedModule, which forwards all others to its inner module.
    is_wrapper = type(module).__name__ == "OptimizedModule"
    if is_wrapper or getattr(module, "_compiled_call_impl", None) is not None:
        raise UserError(
            f"model: expected a module that is not compiled, got {path} compiled by "
            "torch.compile; rewire it first and compile the result"
        )
    if type(module).__module__.startswith("peft."):
        raise UserError(
            f"model: expected one without adapters, got {path} of PEFT; call merge_and_unload() "
            "first, or rewire before get_peft_model, since an adapter is saved without its model"
        )
    if type(module).__module__.startswith(QUANTIZED_PACKAGES):
        raise _quantized_error(path, type(module).__name__)


def _quantized_error(name: str, what: str) -> UserError:
    return UserError(
        f"model: expected floating-point weights, got {name} quantized as {what}; rewire the "
        "model before it is quantized"
    )


def find_shared_norms(model: nn.Module, paths: list[str]) -> tuple[str, str] | None:
    """Return two paths that hold the same norm, or norms with the same gain; None without any."""
    names = {id(module): path for path, module in model.named_modules()}
    for path, module in model.named_modules(remove_duplicate=False):
        first = names.get(id(module), path)
        if (path in paths and first != path) or (first in paths and first != path):
            return first, path
    owners: dict[int, str] = {}
    for path in paths:
        for weight in model.get_submodule(path).parameters():
            if id(weight) in owners:
                return owners[id(weight)], path
            owners[id(weight)] = path
    return None
