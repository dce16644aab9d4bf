"""The loss on what was held out."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from addnorm.core.errors import UserError
from addnorm.data.batches import Batches
from addnorm.kernels.precision import wide
from addnorm.train.distributed import World
from addnorm.train.objective import Means
from addnorm.train.recipe import Recipe
from addnorm.train.session import Session


@torch.no_grad()
def validate(session: Session, batches: Batches) -> Means:
    """Means over one pass, without dropout, with the average of the weights where there is one."""
    world = session.world
    totals = torch.zeros(3, dtype=wide(world.device), device=world.device)
    session.objective.eval()
    try:
        with nullcontext() if session.average is None else session.average.applied():
            for batch, _ in batches.epoch():
                part = batch.part(world.rank, world.size).to(world.device)
                with precision(session.recipe, world):
                    totals += session.objective(*part.sides)[1]
    finally:
        session.objective.train()
    means = Means(*world.total(totals).tolist())
    if not means.count:
        raise UserError(
            f"nothing in {batches.path} can be used: {batches.told() or 'it is too short'}; wanted "
            f"sentences of at most {batches.longest} tokens: try a larger max_length, or "
            "valid_every=0"
        )
    return means


def precision(recipe: Recipe, world: World) -> AbstractContextManager[Any]:
    """Where a model is called: autocast, if the recipe says so."""
    if recipe.dtype == "float32":
        return nullcontext()
    return torch.autocast(world.device.type, dtype=torch.bfloat16)
