"""Checksum of everything that the doctor must leave unchanged, and a model to test it with."""

import hashlib
import random

import numpy
import torch
from torch import nn

from tests.doctor.models.tiny import DIM, Model, PreBlock, stack


def pre():
    torch.manual_seed(0)
    return Model(stack(PreBlock), nn.LayerNorm(DIM))


def state(model):
    """Return a checksum of weights, gradients, hooks, modes and random generators."""
    digest = hashlib.sha256()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        digest.update(name.encode() + tensor.detach().float().numpy().tobytes())
    for weight in model.parameters():
        digest.update(repr((weight.requires_grad, weight.grad)).encode())
    for module in model.modules():
        hooks = [len(v) for k, v in vars(module).items() if "hooks" in k and hasattr(v, "__len__")]
        digest.update(repr((module.training, hooks)).encode())
    digest.update(torch.get_rng_state().numpy().tobytes())
    digest.update(repr((random.getstate(), numpy.random.get_state()[1].tobytes())).encode())
    hooks = torch.nn.modules.module
    digest.update(
        repr((len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks))).encode()
    )
    return digest.hexdigest()
