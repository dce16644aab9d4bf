"""Pre-training of an estimator on rows without a target."""

from contextlib import closing
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from addnorm.core.errors import UserError, unknown_name_message
from addnorm.core.seeds import derive_seed
from addnorm.tabular.callbacks import make_fit_callback
from addnorm.tabular.columns.cell_warnings import warn_about_cells
from addnorm.tabular.columns.encoder import TableEncoder
from addnorm.tabular.columns.reader import read_columns
from addnorm.tabular.dataset import reject_empty_columns, select_column_rows
from addnorm.tabular.params import (
    make_model_config,
    make_training_config,
    resolve_device,
    resolve_seed,
    resolve_threads,
)
from addnorm.tabular.training.loop import WeightedBatch, build_model, train_epochs
from addnorm.tabular.training.pretraining import OBJECTIVES, PretextModel, Pretrained
from addnorm.tabular.training.row_groups import unique_rows
from addnorm.tabular.training.torch_context import torch_context


def pretrain_network(estimator: Any, X: Any, *, objective: str, epochs: int | None) -> None:
    """Pre-train a network and store its weights in the estimator; see its `pretrain`."""
    if objective not in OBJECTIVES:
        raise UserError(unknown_name_message("objective", str(objective), OBJECTIVES))
    X = estimator._check_table(X, reset=True)
    columns, seed = read_columns(X, estimator.column_types), resolve_seed(estimator)
    reject_empty_columns(columns, estimator.column_types)
    warn_about_cells(columns)
    ones, values = np.ones(len(X)), [column.values for column in columns]
    rows = unique_rows(
        values, None, weights=ones, multiplicity=ones, seed=derive_seed(seed, "rows")
    )
    columns, weights = select_column_rows(columns, rows.indices), torch.from_numpy(rows.weights)
    encoder = TableEncoder.from_columns(columns, rows.weights)
    sample = WeightedBatch(encoder.to_table_batch(*encoder.raw_features(columns)), weights, weights)
    device, config = resolve_device(estimator), make_model_config(estimator, encoder, 1)
    training = make_training_config(estimator, len(weights), model=config, seed=seed, epochs=epochs)
    with (
        torch_context(
            threads=resolve_threads(estimator), seed=derive_seed(seed, "pretrain"), device=device
        ),
        closing(make_fit_callback(verbose=estimator.verbose)) as callback,
    ):
        model = build_model(config, sample, target=None, seed=seed, device=device)
        pretext = PretextModel(model, objective).to(device)

        def compute_loss(batch: WeightedBatch) -> tuple[Tensor, Tensor]:
            return pretext.loss(batch.cells) * batch.weights.sum(), batch.weights.sum()

        estimator.pretraining_ = train_epochs(
            pretext,
            sample.to(device),
            compute_loss=compute_loss,
            validate=None,
            config=training,
            callback=callback,
        )
    weights_without_head = {
        name: value.cpu().contiguous()
        for name, value in model.state_dict().items()
        if not name.startswith("head.")
    }
    estimator.pretrained_ = Pretrained(
        encoder, config, safetensors.torch.save(weights_without_head)
    )
    # Drop an earlier fit: a warm start must continue from the pre-trained weights.
    estimator.__dict__.pop("module_", None)
