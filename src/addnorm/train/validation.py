"""Loss and accuracy on the validation split."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from addnorm.core.errors import UserError
from addnorm.data.batches import BatchIterator
from addnorm.kernels.device_dtypes import widest_float
from addnorm.tasks import LossMeans
from addnorm.train.distributed import World
from addnorm.train.recipe import Recipe
from addnorm.train.session import Session


@torch.no_grad()
def validate(session: Session, batches: BatchIterator) -> LossMeans:
    """Return the means over one pass of `batches`, in evaluation mode.

    Uses the moving average of the weights if the recipe has `ema`. All processes must call it.

    Raises:
        UserError: no record of the split can be used
    """
    world = session.world
    totals = torch.zeros(3, dtype=widest_float(world.device), device=world.device)
    session.objective.eval()
    try:
        with nullcontext() if session.ema is None else session.ema.swapped_in():
            for batch, _ in batches.epoch():
                shard = batch.shard(world.replica, world.replicas).to(world.device)
                with autocast_context(session.recipe, world):
                    totals += session.objective(*shard.inputs_and_targets)[1]
    finally:
        session.objective.train()
    means = LossMeans(*world.sum_over_replicas(totals).tolist())
    if not means.count:
        raise UserError(
            f"no record of {batches.path} can be used: "
            f"{batches.describe_skipped() or 'it is too short'}; expected sentences of at most "
            f"{batches.max_length} tokens; try a larger max_length, or valid_every=0"
        )
    return means


def autocast_context(recipe: Recipe, world: World) -> AbstractContextManager[Any]:
    """Return the context in which the model is called.

    Autocast if the recipe has `bfloat16`, unless the weights have this dtype themselves.
    """
    if recipe.dtype == "float32" or not recipe.master_weights:
        return nullcontext()
    return torch.autocast(world.device.type, dtype=torch.bfloat16)
