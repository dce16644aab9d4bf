"""Program of one process in the tests of tensor parallelism, started by torchrun.

Compares outputs and gradients of split models with those of whole ones, and prints the largest
difference of each, relative to the largest value, as JSON.
"""

import json
import sys

import torch

import addnorm
from addnorm.train.distributed import full_tensor, init_distributed
from addnorm.train.sharding.tensor_parallel import apply_tensor_parallel

CASES = {
    "lm": {"kind": "lm", "wiring": "pre_ln"},
    "seq2seq": {"kind": "seq2seq", "wiring": "post_ln", "encoder_depth": 1},
    "grouped keys": {"kind": "lm", "kv_heads": 2, "positions": "rotary", "activation": "swiglu"},
    "no bias, dropout": {"kind": "lm", "bias": False, "dropout": 0.5, "wiring": "deepnorm"},
    "streams": {"kind": "lm", "wiring": "hyper", "norm": "rms"},
}


def compare(options, world):
    """Return the largest relative difference of outputs and gradients."""
    size = {"vocab": 20, "dim": 16, "depth": 2, "heads": 4}
    whole, split = (addnorm.build(**size | options, seed=0).double().train() for _ in range(2))
    split.load_state_dict(whole.state_dict())
    apply_tensor_parallel(split, world)
    torch.manual_seed(1)
    inputs = [torch.randint(20, (3, 7)) for _ in range(1 + (options["kind"] == "seq2seq"))]
    outputs = []
    for model in (whole, split):
        torch.manual_seed(2)  # of dropout
        outputs.append(model(*inputs))
        outputs[-1].square().mean().backward()
    pairs = [(outputs[1].detach(), outputs[0].detach())]
    weights = zip(split.parameters(), whole.parameters(), strict=True)
    pairs += [(full_tensor(ours.grad), other.grad) for ours, other in weights]
    scale = max(float(expected.abs().max()) for _, expected in pairs)
    return max(float((found - expected).abs().max()) for found, expected in pairs) / scale


if __name__ == "__main__":
    with init_distributed("cpu", tensor_parallel=2) as world:
        results = {name: compare(options, world) for name, options in CASES.items()}
    if world.is_main:
        sys.stdout.write(json.dumps(results))
