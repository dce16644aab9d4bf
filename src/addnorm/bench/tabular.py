"""Training-step benchmark of FT-Transformer against the package of its authors."""

import importlib.util
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from addnorm.bench.base import OURS, Benchmark, Candidate, Candidates
from addnorm.core.errors import UserError

NUMBERS, CATEGORIES, BATCH_SIZE, DEPTH = 8, [7, 16, 15, 6, 5, 42], 256, 3
PEER = "rtdl_revisiting_models"


def make_benchmarks() -> Iterator[Benchmark]:
    """Yield one benchmark, with the published size and dropout."""
    yield Benchmark("train FT-Transformer", build_candidates, {PEER: 1.2}, rounds=15)


def build_candidates() -> Candidates:
    """Build candidates that update on one batch of rows with the columns of the Adult data set.

    Raises:
        UserError: the package of the authors is not installed
    """
    if not importlib.util.find_spec("rtdl_revisiting_models"):
        raise UserError(f"this benchmark requires {PEER}; run pip install {PEER}")
    from addnorm.models.tabular import TableBatch
    from addnorm.train.optimizers.base import make_optimizer

    theirs, ours = _build_models(DEPTH)
    numbers = torch.randn(BATCH_SIZE, NUMBERS)
    codes = torch.stack([torch.randint(size, (BATCH_SIZE,)) for size in CATEGORIES], 1)
    targets = torch.randint(2, (BATCH_SIZE,)).float()
    missing = torch.zeros(BATCH_SIZE, NUMBERS, dtype=torch.bool)
    cells = TableBatch(numbers, missing, codes + 2, codes[:, :0, None])
    their_optimizer = theirs.make_default_optimizer()
    our_optimizer = make_optimizer("adamw(beta2=0.999)", ours, lr=1e-4, weight_decay=1e-5)
    return {
        OURS: _make_train_step(lambda: ours(cells), our_optimizer, targets),
        PEER: _make_train_step(lambda: theirs(numbers, codes), their_optimizer, targets),
    }


def _build_models(depth: int) -> tuple[Any, Any]:
    """Return the model of the authors and ours, both with their default size."""
    FTTransformer: Any = import_module(PEER).FTTransformer  # untyped
    from addnorm.models.tabular import TableConfig, build_table_model

    options = FTTransformer.get_default_kwargs(depth)
    theirs = FTTransformer(
        n_cont_features=NUMBERS, cat_cardinalities=CATEGORIES, d_out=1, **options
    )
    config = TableConfig(
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


def _make_train_step(forward: Candidate, optimizer: Any, targets: Tensor) -> Candidate:
    def run() -> None:
        logits = forward()
        assert isinstance(logits, Tensor)
        torch.autograd.backward(F.binary_cross_entropy_with_logits(logits[:, 0], targets))
        optimizer.step()
        optimizer.zero_grad()

    return run
