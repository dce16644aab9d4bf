"""Axis layouts, checked against the indices of reshaped tensors."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.doctor.graph.axis_layout import (
    AxisFactor,
    collect_origins,
    identity_layout,
    make_axis,
    reshape_layout,
    resize_axis,
)
from addnorm.doctor.graph.contractions import to_einsum


def moved(before, after):
    """Return the old axes that vary along each axis of a reshaped tensor."""
    places = np.stack(np.unravel_index(np.arange(math.prod(before)), before)).reshape(-1, *after)
    found = []
    for axis in range(len(after)):
        changes = np.ptp(places, axis=axis + 1).reshape(len(before), -1).any(1)
        found.append({int(i) - len(before) for i in np.flatnonzero(changes)})
    return found


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_reshape_moves_factors_with_their_entries(data):
    before = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    left, after = math.prod(before), []
    while left > 1 and len(after) < 5:
        after.append(data.draw(st.sampled_from([n for n in range(1, left + 1) if left % n == 0])))
        left //= after[-1]
    after = (*after, left)
    layout = reshape_layout(identity_layout(before), after)
    assert [math.prod(part.size for part in axis) for axis in layout] == list(after)
    for axis, wanted in zip(layout, moved(before, after), strict=True):
        assert wanted <= collect_origins([axis])


def test_reshape_and_inverse_are_exact():
    before = (2, 6, 12)
    there = reshape_layout(identity_layout(before), (2, 3, 2, 4, 3))
    assert [sorted(collect_origins([axis])) for axis in there] == [[-3], [-2], [-2], [-1], [-1]]
    flat = reshape_layout(there, (144,))
    assert [collect_origins([a]) for a in reshape_layout(flat, before)] == [{-3}, {-2}, {-1}]


def test_multiple_of_size_means_copies():
    copied = resize_axis(make_axis({-2}, 6), 12)
    assert copied == (AxisFactor(frozenset({-2}), 6), AxisFactor(frozenset(), 2))
    assert resize_axis(make_axis({-2}, 6), 5) == make_axis({-2}, 5)
    assert resize_axis(make_axis({-2}, 6), 6) == make_axis({-2}, 6)
    assert make_axis({-2}, 1) == make_axis({-2}, 0) == ()


def test_empty_axis_can_be_resized_again():
    empty = resize_axis(make_axis({-2}, 6), 0)  # a cache without tokens
    assert empty == () and resize_axis(empty, 6) == make_axis((), 6)


@pytest.mark.parametrize(
    ("op", "call", "shapes", "detail"),
    [
        ("linear", torch.nn.functional.linear, [(2, 3, 4), (5, 4)], {}),
        ("linear", torch.nn.functional.linear, [(2, 3, 4), (4,)], {}),
        ("matmul", torch.matmul, [(2, 3, 4), (2, 4, 5)], {}),
        ("matmul", torch.matmul, [(3, 4), (2, 4, 5)], {}),
        ("matmul", torch.matmul, [(6, 2, 3, 4), (2, 4, 5)], {}),
        ("matmul", torch.matmul, [(4,), (2, 4, 5)], {}),
        ("matmul", torch.matmul, [(2, 3, 4), (4,)], {}),
        ("matmul", torch.matmul, [(4,), (4,)], {}),
        ("tensordot", torch.tensordot, [(2, 3, 4), (3, 4, 5)], {"dims": 2}),
        ("tensordot", torch.tensordot, [(2, 3, 4), (5, 3)], {"dims": ([1], [-1])}),
    ],
)
def test_product_equals_its_einsum(op, call, shapes, detail):
    torch.manual_seed(0)
    tensors = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    terms, out = to_einsum(op, shapes, detail=detail)
    from_einsum = torch.einsum(f"{','.join(terms)}->{out}", *tensors)
    torch.testing.assert_close(from_einsum, call(*tensors, **detail))


def test_ellipsis_and_implicit_output_are_expanded():
    assert to_einsum("einsum", [(2, 3, 4), (4, 5)], detail={"equation": "...d, df -> ...f"}) == (
        ["21d", "df"], "21f"
    )  # fmt: skip
    assert to_einsum("einsum", [(3, 4), (4, 5)], detail={"equation": "td,df"})[1] == "ft"
    assert to_einsum("einsum", [(3, 4)], detail={"equation": "td,df"}) is None
    assert to_einsum("mul", [(3, 4), (3, 4)], detail={}) is None
