"""Masks, which are True at valid tokens and where a query may attend."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.sublayers import masks


@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4), extra=st.integers(0, 3))
def test_padding_and_prefix_masks(lengths, extra):
    length = max(lengths) + extra
    valid = masks.padding_mask(torch.tensor(lengths), length)
    visible = masks.prefix_mask(torch.tensor(lengths), length)
    assert valid.shape == (len(lengths), length)
    assert visible.shape == (len(lengths), length, length)
    for row, count in enumerate(lengths):
        for key in range(length):
            assert valid[row, key] == (key < count)
            for query in range(length):
                assert visible[row, query, key] == (key <= query or key < count)


@given(length=st.integers(1, 6), past=st.integers(0, 4))
def test_causal_mask(length, past):
    visible = masks.causal_mask(length, past)
    assert visible.shape == (length, past + length)
    for query in range(length):
        for key in range(past + length):
            assert visible[query, key] == (key <= past + query)


def test_default_length_is_the_longest():
    assert masks.padding_mask(torch.tensor([2, 5])).shape == (2, 5)
    assert masks.prefix_mask(torch.tensor([2, 5])).shape == (2, 5, 5)


def test_empty_and_full_prefix():
    assert torch.equal(masks.prefix_mask(torch.tensor([0]), 4)[0], masks.causal_mask(4))
    assert masks.prefix_mask(torch.tensor([4]), 4)[0].all()


def test_torch_masks_are_negated():
    padding = torch.tensor([[False, False, True]])
    assert masks.from_torch_padding(padding).tolist() == [[True, True, False]]
    added = torch.tensor([[0.0, 0.0, -torch.inf]])
    assert masks.from_torch_padding(added).tolist() == [[True, True, False]]
    rule = torch.nn.Transformer.generate_square_subsequent_mask(4)
    assert torch.equal(masks.from_torch_attention(rule), masks.causal_mask(4))
    assert torch.equal(masks.from_torch_attention(rule.isinf()), masks.causal_mask(4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: masks.from_torch_padding(torch.ones(2, 3)), "key_padding_mask: expected boolean"),
        (
            lambda: masks.from_torch_attention(torch.ones(3, 3).int()),
            "attn_mask: expected .* negat",
        ),
        (
            lambda: masks.padding_mask(torch.tensor([4]), 3),
            "length: expected at least 4, the longest sequence, got 3",
        ),
        (lambda: masks.padding_mask(torch.tensor([0.5])), "lengths: expected integers"),
        (lambda: masks.padding_mask(torch.tensor([[1]])), r"of shape \(B,\), got .* \(1, 1\)"),
    ],
)
def test_errors(call, message):
    with pytest.raises(UserError, match=message):
        call()
