"""Small models with weights that differ from their start values."""

import torch

import addnorm
from addnorm.norms import registry as norms
from addnorm.wirings import registry as wirings
from tests.helpers import perturb

KINDS = ("lm", "seq2seq", "classifier")
WIRINGS = tuple(wirings)
TOKENWISE_NORMS = tuple(
    name for name in norms if not norms.card(name).needs and name not in ("power", "none")
)
"""Norms that need neither a condition nor a mask."""


def make_model(kind="lm", *, dtype=torch.float32, seed=0, **options):
    """Build a model whose parameters and buffers are all different from their start values."""
    sizes = {"dim": 12, "depth": 2, "heads": 3, "vocab": 19, "ffn_dim": 20}
    if kind == "classifier":
        sizes["classes"] = 5
    if options.get("image"):
        del sizes["vocab"]
    model = addnorm.build(kind=kind, seed=seed, **sizes | options).to(dtype)
    perturb(model, seed + 1)
    generator = torch.Generator().manual_seed(seed + 2)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("calibrated"):
                buffer.fill_(True)
            elif buffer.is_floating_point():
                buffer.copy_(torch.rand(buffer.shape, generator=generator) + 0.5)
    return model.eval()


def make_tokens(batch, length, *, vocab=19, seed=0):
    """Return random ids and the mask of right-padded sequences, at least one of full length."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, vocab, (batch, length), generator=generator)
    lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
    lengths[0] = length
    return ids, torch.arange(length) < lengths
