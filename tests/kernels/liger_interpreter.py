"""Run the operators of Liger-Kernel on a CPU with Triton's interpreter; print the differences.

A program of its own, because Triton reads TRITON_INTERPRET when it is first imported:

    python -m tests.kernels.liger_interpreter

The interpreter has no arithmetic in bfloat16, so half precision is float16 here.
"""

import json
import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton.language as tl
from liger_kernel.ops import dyt as liger_dyt
from liger_kernel.ops import fused_add_rms_norm, layer_norm, rms_norm
from triton.runtime import interpreter

from addnorm.kernels import cross_entropy, liger, norm
from addnorm.kernels.add_norm import ops
from addnorm.kernels.add_norm.reference import NormParams
from addnorm.models import build

CALLS = []
"""Names of the functions of Liger that were called."""


def prepare_interpreter():
    """Replace what the interpreter has no equivalent for; the kernels themselves stay."""
    convert = interpreter._implicit_cvt

    def convert_floats(value):
        if isinstance(value, float):  # the interpreter converts integers only
            handle = interpreter.TensorHandle(
                torch.tensor([value], dtype=torch.float32).numpy(), tl.float32
            )
            return tl.tensor(handle, tl.float32)
        return convert(value)

    interpreter._implicit_cvt = convert_floats
    for module in (rms_norm, fused_add_rms_norm, layer_norm):
        module.rsqrt = lambda x: 1 / tl.sqrt(x)  # in place of a function of CUDA's libdevice
    liger_dyt.tanh = lambda x: 1 - 2 / (tl.exp(2 * x) + 1)
    liger_dyt.infer_device = lambda: "cuda"
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=2)
    for kernel in (liger_dyt._dyt_fwd_kernel, liger_dyt._dyt_bwd_kernel):
        kernel.configs = kernel.configs[:1]  # nothing to tune


def count_calls():
    for name in ("rms_norm", "layer_norm", "add_rms_norm", "dyt", "cross_entropy_rows"):
        function = getattr(liger, name)

        def counted(*args, name=name, function=function, **kwargs):
            CALLS.append(name)
            return function(*args, **kwargs)

        setattr(liger, name, counted)


def randn(*shape, seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()


def compare(run, *inputs):
    """Return the largest difference with and without Liger, of outputs and gradients."""
    results = []
    for devices in (("cuda",), ("cpu",)):
        liger.DEVICES = devices
        outputs = run()
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = sum(
            (each.float() * torch.linspace(-1, 1, each.numel()).view_as(each)).sum()
            for each in outputs
            if each.requires_grad
        )
        results.append([*outputs, *torch.autograd.grad(loss, inputs)])
    return max(
        float((one.detach().double() - other.detach().double()).abs().max())
        for one, other in zip(*results, strict=True)
    )


def check_norms(dtype):
    x, f = randn(3, 5, 24, seed=0, dtype=dtype), randn(3, 5, 24, seed=1, dtype=dtype)
    weight, bias = randn(24, seed=2, dtype=dtype), randn(24, seed=3, dtype=dtype)
    alpha = torch.tensor(0.7, dtype=dtype, requires_grad=True)
    params = NormParams(True, weight, bias, 1e-6)
    return {
        "rms_norm": compare(lambda: norm.rms_norm(x, weight, 1e-6), x, weight),
        "rms_norm without gain": compare(lambda: norm.rms_norm(x, None, 1e-6), x),
        "layer_norm": compare(lambda: norm.layer_norm(x, weight, bias, 1e-5), x, weight, bias),
        "dyt": compare(lambda: norm.dyt(x, alpha, weight, bias), x, alpha, weight, bias),
        "dyt without bias": compare(lambda: norm.dyt(x, alpha, weight, None), x, alpha, weight),
        "add_rms_norm": compare(lambda: ops.add_norm_with_sum(x, f, params), x, f, weight, bias),
    }


def check_cross_entropy():
    h, table, bias = randn(11, 6, seed=4), randn(40, 6, seed=5), randn(40, seed=6)
    targets = torch.arange(11) * 3
    targets[::4] = -100
    differences, recall = {}, cross_entropy.recall
    for known in (True, False):
        if not known:
            cross_entropy.recall = lambda targets: None
        for smoothing in (0.0, 0.1):
            name = f"cross_entropy smoothing={smoothing} host_knows_targets={known}"
            differences[name] = compare(
                lambda smoothing=smoothing: tuple(
                    cross_entropy.linear_cross_entropy(
                        h, table, targets, bias=bias, smoothing=smoothing
                    )
                ),
                h,
                table,
                bias,
            )
        cross_entropy.recall = recall
    return differences


def check_model():
    """Compare the loss of a whole model, whose norms and loss reach Liger by themselves."""
    torch.manual_seed(0)
    model = build(kind="lm", vocab=20, dim=16, depth=2, heads=2, wiring="pre_ln", norm="rms")
    tokens = torch.arange(24).view(2, 12) % 20
    weights = [each for each in model.parameters() if each.requires_grad]
    before = len(CALLS)
    difference = compare(lambda: model.loss(tokens, tokens).loss, *weights)
    return {"model": difference}, sorted(set(CALLS[before:]))


def refuses_second_derivative():
    liger.DEVICES = ("cpu",)
    x = randn(2, 8, seed=0)
    (grad,) = torch.autograd.grad(norm.rms_norm(x, None, 1e-6).sum(), x, create_graph=True)
    try:
        grad.sum().backward()
    except RuntimeError:
        return True
    return False


if __name__ == "__main__":
    prepare_interpreter()
    count_calls()
    model, model_calls = check_model()
    report = {
        "float32": check_norms(torch.float32) | check_cross_entropy() | model,
        "float16": check_norms(torch.float16),
        "model_calls": model_calls,
        "calls": sorted(set(CALLS)),
        "second derivative refused": refuses_second_derivative(),
    }
    print(json.dumps(report))
