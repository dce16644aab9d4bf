"""Small models with padding and dropout, and their arguments."""

import torch
from torch import Tensor, nn

from addnorm.models import build
from addnorm.wirings import registry as wirings

WIRINGS = tuple(wirings)
SELECTED_WIRINGS = (
    "pre_ln", "post_ln", "b2t", "hyper", "layer_drop", "drop_path", "ngpt", "attn_res", "fixup",
)  # fmt: skip


def make_translator(wiring: str = "pre_ln", **options: object) -> nn.Module:
    options = {"dropout": 0.2, "depth": 2, "dim": 12, "heads": 3, **options}
    return build(kind="seq2seq", vocab=17, wiring=wiring, seed=0, **options)


def make_batch(seed: int = 1) -> tuple[tuple[Tensor, Tensor], dict[str, Tensor]]:
    """Return a padded batch of five pairs with at most 7 and 6 tokens."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, 17, (5, 7), generator=generator)
    target = torch.randint(4, 17, (5, 6), generator=generator)
    source_mask = torch.arange(7) < torch.tensor([7, 3, 5, 1, 6])[:, None]
    target_mask = torch.arange(6) < torch.tensor([2, 6, 4, 5, 1])[:, None]
    return (source * source_mask, target * target_mask), {
        "source_mask": source_mask,
        "target_mask": target_mask,
    }


def compute_loss(model: nn.Module, seed: int = 1) -> Tensor:
    args, masks = make_batch(seed)
    logits = model(*args, **masks)
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), args[1][:, 1:].flatten())
