"""Packing and unpacking of the valid tokens of a padded batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.sublayers.packing import Packing


def make_mask(rows):
    return torch.tensor(rows, dtype=torch.bool).reshape(len(rows), -1)


@given(
    st.integers(1, 4).flatmap(
        lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=1)
    )
)
def test_pack_and_unpack_any_mask(rows):
    mask = make_mask(rows)
    x = torch.arange(1.0, mask.numel() * 2 + 1).view(*mask.shape, 2)
    packing = Packing.from_mask(mask)
    packed = packing.pack(x)
    assert torch.equal(packed, x[mask].unsqueeze(0))
    assert torch.equal(packing.unpack(packed), x * mask.unsqueeze(-1))
    assert packing.num_tokens == int(mask.sum())
    expected = all(sorted(row, reverse=True) == row for row in rows)
    assert packing.right_padded is expected


def test_first_and_second_order_gradients():
    packing = Packing.from_mask(make_mask([[1, 0, 1], [0, 1, 0]]))
    x = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    y = torch.randn(1, 3, 2, dtype=torch.float64, requires_grad=True)
    for check in (torch.autograd.gradcheck, torch.autograd.gradgradcheck):
        assert check(lambda x: packing.pack(x).square(), x)
        assert check(lambda y: packing.unpack(y).square(), y)


def test_invalid_mask_and_other_batch_raise():
    with pytest.raises(UserError, match="mask: expected boolean"):
        Packing.from_mask(torch.ones(2, 3))
    with pytest.raises(UserError, match="x: expected a batch of shape"):
        Packing.from_mask(make_mask([[1, 0]])).pack(torch.ones(2, 1, 3))
