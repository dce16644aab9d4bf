"""Masking of token ids for masked language modeling.

Of the tokens of a row that are not special, `rate` are selected. Of the selected ones, most become
the mask token, some a random token, and the rest stay as they are:

    ids      <s>  the  cat  sat  on   </s>
    inputs   <s>  the  M    sat  on   </s>      M: the mask token, id 4
    targets   -    -   cat   -    -    -        -: not predicted (IGNORE_INDEX)
"""

import numpy as np

from addnorm.data.batches import Ids, Row
from addnorm.kernels.cross_entropy import IGNORE_INDEX


def mask_tokens(
    ids: Ids,
    rng: np.random.Generator,
    *,
    rate: float,
    mask_replace_rate: float,
    random_replace_rate: float,
    mask_id: int,
    num_specials: int,
    vocab: int,
) -> Row:
    """Select tokens to predict and replace most of them in the input.

    Args:
        ids: (L,) token ids of a row
        rng: source of the random draws
        rate: fraction of the tokens to select, rounded; at least one token is selected
        mask_replace_rate: probability that a selected token becomes the mask token
        random_replace_rate: probability that it becomes a random token
        mask_id: id of the mask token
        num_specials: ids below are special; they are neither selected nor drawn
        vocab: vocabulary size

    Returns:
        (L,) inputs and (L,) targets, IGNORE_INDEX at tokens that are not selected.
    """
    inputs, targets = ids.copy(), np.full_like(ids, IGNORE_INDEX)
    candidates = np.flatnonzero(ids >= num_specials)
    if not len(candidates):
        return inputs, targets
    count = max(1, round(rate * len(candidates)))
    selected = np.sort(rng.permutation(candidates)[:count])
    targets[selected] = ids[selected]
    draws = rng.random(count)
    random_ids = rng.integers(num_specials, vocab, count, dtype=np.int32)
    is_masked = draws < mask_replace_rate
    is_random = ~is_masked & (draws < mask_replace_rate + random_replace_rate)
    inputs[selected[is_masked]] = mask_id
    inputs[selected[is_random]] = random_ids[is_random]
    return inputs, targets
