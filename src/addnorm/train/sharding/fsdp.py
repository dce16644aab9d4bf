"""Fully sharded data parallelism: each process keeps a part of every weight.

The weights of a sub-layer are gathered for its forward and backward pass and dropped after it.
Gradients and optimizer state stay sharded.
"""

import warnings

from addnorm.core.errors import UserError
from addnorm.models import Model
from addnorm.train.distributed import World


def apply_fsdp(model: Model, world: World) -> None:
    """Shard the weights in place: each sub-layer as one unit, the remaining weights as another.

    Raises:
        UserError: the arrangement has scalar parameters, which FSDP cannot shard
    """
    scalars = [name for name, weight in model.named_parameters() if not weight.ndim]
    if scalars:
        raise UserError(
            f"parallel=fsdp cannot shard scalar parameters such as {scalars[0]}, and this "
            f"arrangement has {len(scalars)}; choose parallel=ddp"
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = (
        init_device_mesh(world.device.type, (world.size,))
        if world.mesh is None
        else world.mesh["data"]
    )
    for stack in model.stacks:
        for sublayer in stack.sublayers:
            fully_shard(sublayer, mesh=mesh)
    # By default FSDP reshards the root module only in the backward pass. A validation has none, so
    # the next training step would use the weights that were gathered for the validation.
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    # The warning is about in-place changes of a sub-layer's output, and the stacks make none.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    register_fsdp_forward_method(model, "loss")  # training calls `loss` instead of `forward`
