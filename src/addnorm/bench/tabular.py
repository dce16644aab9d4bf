"""Training steps of an FT-Transformer, ours and that of the authors' package."""

import importlib.util
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.bench.base import OURS, Bench, Way, Ways
from addnorm.core.errors import UserError

NUMBERS, CATEGORIES, BATCH, DEPTH = 8, [7, 16, 15, 6, 5, 42], 256, 3
PEER = "rtdl_revisiting_models"


def benches() -> Iterator[Bench]:
    """One size, the published dropout."""
    yield Bench("train FT-Transformer", ways, {PEER: 1.2}, rounds=15)


def ways() -> Ways:
    """An update on a batch of rows, as wide as Adult's."""
    if not importlib.util.find_spec("rtdl_revisiting_models"):
        raise UserError(f"tables are measured beside {PEER}; try pip install {PEER}")
    from addnorm.models.tabular import Cells
    from addnorm.train.optimizers.base import make_optimizer

    theirs, ours = _rivals(DEPTH)
    numbers = torch.randn(BATCH, NUMBERS)
    codes = torch.stack([torch.randint(size, (BATCH,)) for size in CATEGORIES], 1)
    asked = torch.randint(2, (BATCH,)).float()
    holes = torch.zeros(BATCH, NUMBERS, dtype=torch.bool)
    cells = Cells(numbers, holes, codes + 2, codes[:, :0, None])
    adam = theirs.make_default_optimizer()
    own = make_optimizer("adamw(beta2=0.999)", ours, lr=1e-4, weight_decay=1e-5)
    return {
        OURS: _update(lambda: ours(cells), own, asked),
        PEER: _update(lambda: theirs(numbers, codes), adam, asked),
    }


def _rivals(depth: int) -> tuple[Any, Any]:
    """The authors' model and ours, of their default size."""
    FTTransformer: Any = import_module(PEER).FTTransformer  # has no types
    from addnorm.models.tabular import TableConfig, build_table_model

    options = FTTransformer.get_default_kwargs(depth)
    theirs = FTTransformer(
        n_cont_features=NUMBERS, cat_cardinalities=CATEGORIES, d_out=1, **options
    )
    config = TableConfig.of(
        model="ft_transformer",
        numbers=NUMBERS,
        categories=tuple(size + 2 for size in CATEGORIES),
        outputs=1,
        wiring="pre_ln(first_norm=False)",
        dim=options["d_block"],
        depth=depth,
        heads=options["attention_n_heads"],
        attention_dropout=options["attention_dropout"],
        activation_dropout=options["ffn_dropout"],
    )
    return theirs, build_table_model(config, seed=0)


def _update(answer: Way, optimizer: Any, asked: Tensor) -> Way:
    def run() -> None:
        logits = answer()
        assert isinstance(logits, Tensor)
        torch.autograd.backward(F.binary_cross_entropy_with_logits(logits[:, 0], asked))
        optimizer.step()
        optimizer.zero_grad()

    return run
