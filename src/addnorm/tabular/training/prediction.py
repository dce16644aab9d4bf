"""Prediction of a trained table model, batch by batch."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.models.tabular import TableBatch, TableModel
from addnorm.stacks.eval_mode import eval_mode
from addnorm.sublayers import SelfAttention

CHUNK_ROWS, MAX_CHUNK_CELLS = 128, 1 << 15
"""Rows of a prediction batch, and its largest number of cells, so that memory does not grow with
the table's width."""
MEMBERS_CHUNK_ROWS, MEMBERS_MAX_CHUNK_CELLS = 256, 1 << 18
"""The same of "mlp" with several members, whose cells are narrow."""
EXACT_WIDTH = 4
"""Matrix products round every row alike if the width they sum over is a multiple of this."""


@torch.no_grad()
def predict(
    model: TableModel,
    cells: TableBatch,
    reference: TableBatch,
    *,
    precision: str = "float32",
    embeddings: bool = False,
) -> Tensor:
    """Return the outputs, or the row embeddings, of a model for each row.

    Every batch has the same number of rows, the last one after padding. How a matrix product
    rounds depends on its size, but not on the other rows: with one size, the prediction of a row
    is the same bit for bit whatever rows are predicted with it. Products over other widths than
    multiples of four round by the position of a row; such models compute in float64, and the
    result is rounded to float32. SAINT attends to the reference rows instead of the other rows of
    the batch.
    """
    device, dtype = model.head.weight.device, model.head.weight.dtype
    if dtype == torch.float32 and device.type != "mps" and not has_exact_widths(model):
        model = deepcopy(model).double()
    size = chunk_size(model)
    outputs = []
    with eval_mode(model), autocast(precision, device):
        wide = model.head.weight.dtype
        memory = model.encode_reference(reference.to(device, wide))
        for start in range(0, cells.num_rows, size):
            stop = min(start + size, cells.num_rows)
            batch = _select_chunk(cells, start, size).to(device, wide)
            result = model.embed(batch, memory) if embeddings else model(batch, memory)
            outputs.append(result[: stop - start])
    return torch.cat(outputs).to(dtype)


def chunk_size(model: TableModel) -> int:
    """Return the rows of a prediction batch; members are rows of the network, too."""
    config, rows, max_cells = model.config, CHUNK_ROWS, MAX_CHUNK_CELLS
    if config.model == "mlp" and config.members > 1:
        rows, max_cells = MEMBERS_CHUNK_ROWS, MEMBERS_MAX_CHUNK_CELLS
    return max(1, min(rows, max_cells // ((1 + config.features) * config.members)))


def _select_chunk(cells: TableBatch, start: int, size: int) -> TableBatch:
    """Return `size` rows; the last row is repeated if there are fewer."""
    if start + size <= cells.num_rows:
        return cells.select_rows(slice(start, start + size))
    index = torch.arange(start, start + size).clamp(max=cells.num_rows - 1)
    return cells.select_rows(index.to(cells.numbers.device))


def has_exact_widths(model: TableModel) -> bool:
    """Return whether all matrix products of a model sum over multiples of `EXACT_WIDTH`."""
    widths = []
    for module in model.modules():
        if isinstance(module, nn.Linear):
            widths.append(module.in_features)
        elif isinstance(module, SelfAttention):
            widths.append(module.head_dim)
    if model.tokens.numeric is not None:
        weights = model.tokens.numeric.parameters()
        widths += [weight.shape[1] for weight in weights if weight.ndim == 3]  # (columns, in, out)
    return all(width % EXACT_WIDTH == 0 for width in widths)


def autocast(precision: str, device: torch.device) -> Any:
    """Return the context of a precision: bfloat16 where it is safe, or float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
