"""Small models with random weights everywhere, so that no part of them is neutral."""

import torch

from addnorm.models import build

SIZES = {"vocab": 30, "dim": 16, "depth": 2, "heads": 4}


def make_model(kind, seed=0, **changes):
    """Return a model in evaluation mode whose parameters, gains and biases are all random.

    Special tokens that are never generated get a low logit: engines normalize log-probabilities
    without them, we with them, so that beams of a random model could differ.
    """
    generates = kind in ("lm", "seq2seq")
    model = build(kind=kind, **SIZES | {"head_bias": generates} | changes, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator))
        if generates and model.head.bias is not None:
            model.head.bias[[0, 1, 3]] = -40.0
    return model.eval()
