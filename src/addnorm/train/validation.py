"""The loss on what was held out."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from addnorm.core.errors import UserError
from addnorm.data.batches import BatchIterator
from addnorm.kernels.precision import widest_float
from addnorm.tasks import LossMeans
from addnorm.train.distributed import World
from addnorm.train.recipe import Recipe
from addnorm.train.session import Session


@torch.no_grad()
def validate(session: Session, batches: BatchIterator) -> LossMeans:
    """Means over one pass, without dropout, with the average of the weights where there is one."""
    world = session.world
    totals = torch.zeros(3, dtype=widest_float(world.device), device=world.device)
    session.objective.eval()
    try:
        with nullcontext() if session.ema is None else session.ema.swapped_in():
            for batch, _ in batches.epoch():
                part = batch.shard(world.rank, world.size).to(world.device)
                with autocast_context(session.recipe, world):
                    totals += session.objective(*part.inputs_and_targets)[1]
    finally:
        session.objective.train()
    means = LossMeans(*world.all_reduce(totals).tolist())
    if not means.count:
        raise UserError(
            f"nothing in {batches.path} can be used: {batches.describe_skipped() or 'it is too short'}; wanted "
            f"sentences of at most {batches.max_length} tokens: try a larger max_length, or "
            "valid_every=0"
        )
    return means


def autocast_context(recipe: Recipe, world: World) -> AbstractContextManager[Any]:
    """Where a model is called: autocast, if the recipe says so."""
    if recipe.dtype == "float32":
        return nullcontext()
    return torch.autocast(world.device.type, dtype=torch.bfloat16)
