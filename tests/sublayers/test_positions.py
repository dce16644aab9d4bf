"""Positions against independent formulas and published values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from addnorm.core.errors import UserError
from addnorm.sublayers.positions import make_positions, registry
from addnorm.sublayers.relative import alibi_slopes
from tests.helpers import perturb, tokens
from tests.sublayers import reference


def make_test_positions(call, dim=16, heads=2, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return perturb(make_positions(call, dim=dim, heads=heads, **options))


@pytest.mark.parametrize("name", registry)
def test_every_kind_has_its_mechanism(name):
    positions, x, index = make_test_positions(name), tokens(3, 5, 16), torch.arange(5)
    rows = index.expand(3, 5)
    added, bias = positions.add(x, index), positions.bias(index, torch.arange(7))
    rotation = positions.rotation(index)
    active = [not torch.equal(added, x), bias is not None, rotation is not None]
    assert sum(active) == {"none": 0, "learned_t5": 2}.get(name, 1)
    assert added.shape == x.shape
    torch.testing.assert_close(positions.add(x, rows), added)
    if bias is not None:
        assert bias.shape == (2, 5, 7)
        batched = positions.bias(rows, torch.arange(7).expand(3, 7))
        torch.testing.assert_close(batched.expand(3, 2, 5, 7), bias.expand(3, 2, 5, 7))
    if rotation is not None:
        q = tokens(3, 2, 5, 8)
        torch.testing.assert_close(positions.rotation(rows)(q), rotation(q))


def test_learned_t5_is_learned_and_t5_by_the_place_in_the_row():
    both = make_test_positions("learned_t5(length=9, buckets=8, distance=20)")
    learned = make_test_positions("learned(length=9)")
    t5 = make_test_positions("t5(buckets=8, distance=20)")
    with torch.no_grad():
        learned.table.copy_(both.absolute.table)
        t5.table.copy_(both.relative.table)
    x, index = tokens(3, 5, 16), torch.tensor([1, 4, 2, 2, 8])
    torch.testing.assert_close(both.add(x, index), learned.add(x, index))
    places = torch.arange(5)
    torch.testing.assert_close(both.bias(index, index), t5.bias(places, places))
    torch.testing.assert_close(both.bias(index[-2:], index), t5.bias(places, places)[:, -2:])


@pytest.mark.parametrize("name", registry)
def test_half_precision_does_not_round_frequencies(name):
    """Frequencies are not buffers, because .bfloat16() would round them."""
    positions, index = make_test_positions(name), torch.arange(300, 305)
    low = make_test_positions(name).bfloat16()
    assert not list(low.buffers())
    x, q = tokens(3, 5, 16), tokens(3, 2, 5, 8)
    tolerance = {"rtol": 2e-2, "atol": 2e-2}
    added = low.add(x.bfloat16(), index)
    assert added.dtype == torch.bfloat16
    torch.testing.assert_close(added.float(), positions.add(x, index), **tolerance)
    rotation = low.rotation(index)
    if rotation is not None:
        rotated = rotation(q.bfloat16())
        assert rotated.dtype == torch.bfloat16
        torch.testing.assert_close(rotated.float(), positions.rotation(index)(q), **tolerance)


@pytest.mark.parametrize("card", registry.cards(), ids=lambda card: card.name)
def test_cards_are_complete(card):
    assert card.title and card.formula and card.summary and card.year and card.arxiv


@pytest.mark.parametrize("dim", [16, 7])
def test_sinusoid_matches_paper(dim):
    positions, x = make_test_positions("sinusoid", dim=dim, heads=1), torch.zeros(1, 4, dim)
    added = positions.add(x, torch.tensor([0, 1, 17, 300]))
    for row, position in enumerate((0, 1, 17, 300)):
        for feature in range(dim):
            angle = position / 10000 ** (2 * (feature // 2) / dim)
            wave = math.sin(angle) if feature % 2 == 0 else math.cos(angle)
            assert added[0, row, feature].item() == pytest.approx(wave, abs=1e-4)


def test_learned_positions_are_looked_up():
    positions, x = make_test_positions("learned(length=6)"), tokens(2, 3, 16)
    index = torch.tensor([[0, 5, 1], [2, 2, 3]])
    torch.testing.assert_close(positions.add(x, index), x + positions.table[index])


@pytest.mark.parametrize("base", [10000.0, 100.0])
def test_rotary_matches_complex_multiplication(base):
    positions, q = make_test_positions(f"rotary(base={base})"), tokens(3, 2, 5, 8)
    indices = [0, 1, 2, 7, 40]
    rotated = positions.rotation(torch.tensor(indices))(q)
    expected = reference.rotate(q, indices, base)
    torch.testing.assert_close(rotated, expected, rtol=1e-4, atol=1e-5)


def test_rotary_layouts_are_permutations_of_each_other():
    half, mixed = make_test_positions("rotary"), make_test_positions("rotary(layout=interleaved)")
    q, index = tokens(3, 2, 5, 8), torch.arange(5)
    order = torch.arange(8).view(2, 4).T.flatten()  # 0 4 1 5 2 6 3 7
    rotated = half.rotation(index)(q)[..., order]
    torch.testing.assert_close(mixed.rotation(index)(q[..., order]), rotated)
    assert not torch.allclose(mixed.rotation(index)(q), half.rotation(index)(q))


def test_rotary_share_keeps_last_features():
    positions, q = make_test_positions("rotary(share=0.5)"), tokens(3, 2, 5, 8)
    rotated = positions.rotation(torch.arange(5))(q)
    assert torch.equal(rotated[..., 4:], q[..., 4:])
    torch.testing.assert_close(rotated[..., :4], reference.rotate(q[..., :4], list(range(5))))


@settings(max_examples=25)
@given(i=st.integers(0, 200), j=st.integers(0, 200), shift=st.integers(0, 200))
def test_rotary_depends_only_on_differences(i, j, shift):
    positions, q, k = make_test_positions("rotary"), tokens(1, 1, 1, 8), tokens(1, 1, 1, 8, seed=9)

    def product(a, b):
        rotated_q = positions.rotation(torch.tensor([a]))(q)
        return (rotated_q * positions.rotation(torch.tensor([b]))(k)).sum()

    torch.testing.assert_close(product(i, j), product(i + shift, j + shift), rtol=0, atol=5e-4)
    rotated = positions.rotation(torch.tensor([i]))(q)
    torch.testing.assert_close(rotated.norm(), q.norm())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(32, 128), (8, 20)])
def test_t5_buckets_match_reference(causal, shape):
    buckets, limit = shape
    call = f"t5(buckets={buckets}, distance={limit})"
    positions = make_test_positions(call, causal=causal)
    distances = torch.arange(-300, 301)
    actual = positions.bucket(distances).tolist()
    assert actual == [
        reference.t5_bucket(d, causal=causal, buckets=buckets, limit=limit)
        for d in distances.tolist()
    ]
    assert set(actual) == set(range(buckets)) - (set() if causal else {buckets // 2})
    bias = positions.bias(torch.tensor([3]), torch.tensor([1, 3, 4]))
    for key, distance in enumerate((-2, 0, 1)):
        bucket = reference.t5_bucket(distance, causal=causal, buckets=buckets, limit=limit)
        assert torch.equal(bias[:, 0, key], positions.table[bucket])


@pytest.mark.peer
@pytest.mark.slow  # imports transformers
@pytest.mark.parametrize("causal", [False, True])
def test_t5_buckets_equal_transformers(causal):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    distances = torch.arange(-500, 501)
    theirs = modeling.T5Attention._relative_position_bucket(distances, bidirectional=not causal)
    assert torch.equal(make_test_positions("t5", causal=causal).bucket(distances), theirs)


@pytest.mark.peer
@pytest.mark.slow  # imports transformers
def test_rotary_equals_llama_in_transformers():
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama")
    q, k, index = tokens(3, 2, 5, 8), tokens(3, 2, 5, 8, seed=9), torch.arange(5)
    angle = index[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    wide = torch.cat((angle, angle), -1)[None]
    theirs = modeling.apply_rotary_pos_emb(q, k, wide.cos(), wide.sin())
    rotation = make_test_positions("rotary").rotation(index)
    torch.testing.assert_close((rotation(q), rotation(k)), theirs)


def test_alibi_slopes_match_paper():
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]  # section 3: 1/2, 1/4, ..., 1/256
    sixteen = [2 ** (-i / 2) for i in range(1, 17)]  # section 3: 1/sqrt(2), 1/2, ...
    assert alibi_slopes(16) == pytest.approx(sixteen)
    # The authors' get_slopes(12): those of 8 heads, then every other one of 16.
    assert alibi_slopes(12) == pytest.approx([*alibi_slopes(8), *sixteen[0:8:2]])
    assert alibi_slopes(1) == [2.0**-8]
    assert len({*alibi_slopes(25)}) == 25


@pytest.mark.parametrize("causal", [False, True])
def test_alibi_bias_is_proportional_to_distance(causal):
    """Where a causal query may attend, the bias is the published slope * (j - i)."""
    positions = make_test_positions("alibi", dim=8, heads=4, causal=causal)
    bias = positions.bias(torch.tensor([2, 3]), torch.arange(5))
    for head, slope in enumerate((1 / 4, 1 / 16, 1 / 64, 1 / 256)):
        expected = torch.tensor([[-2.0, -1, 0, -1, -2], [-3, -2, -1, 0, -1]]) * slope
        torch.testing.assert_close(bias[head], expected)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: make_test_positions("rope"), "unknown position 'rope'"),
        (lambda: make_test_positions("rotary", dim=10), "even number of features from 2, got 5"),
        (lambda: make_test_positions("rotary(share=0.1)"), "even number of features from 2, got 0"),
        (lambda: make_test_positions("rotary(layout=gptj)"), "one of half, interleaved"),
        (lambda: make_test_positions("t5(buckets=6)"), "buckets divisible by 4"),
        (lambda: make_test_positions("t5(distance=8)"), "distance above buckets / 4"),
        (
            lambda: make_test_positions("sinusoid", dim=15),
            "heads: expected a divisor of dim=15, got 2",
        ),
        (
            lambda: make_test_positions("learned(length=3)").add(tokens(1, 4, 16), torch.arange(4)),
            "expected below 3, the learned positions, got 3",
        ),
        (
            lambda: make_test_positions("rotary").rotation(torch.arange(2))(tokens(1, 1, 2, 4)),
            "expected heads of at least 8 features, got 4",
        ),
    ],
)
def test_errors(build, message):
    with pytest.raises(UserError, match=message):
        build()


def test_longrope_divides_by_its_own_numbers_up_to_a_length():
    options = "scaling=longrope, short='1.0 2.0', long='3.0 4.0', length=4, factor=1.0"
    positions = make_positions(f"rotary({options})", dim=4, heads=1)
    plain = make_positions("rotary", dim=4, heads=1)
    frequencies = torch.tensor([1.0, 0.01])
    for length, divisors in ((4, [1.0, 2.0]), (5, [3.0, 4.0])):
        index = torch.arange(length)
        angles = index[:, None] * frequencies / torch.tensor(divisors)
        torch.testing.assert_close(positions.rotation(index).sin, angles.sin())
        assert plain.rotation(index).local is None
    with pytest.raises(UserError, match="short: expected 2 positive numbers separated by spaces"):
        make_positions("rotary(scaling=longrope, short='1.0', long='1.0 2.0')", dim=4, heads=1)


def test_dynamic_scaling_grows_the_base_beyond_a_length():
    positions = make_positions("rotary(scaling=dynamic, factor=3.0, length=4)", dim=8, heads=1)
    for length, growth in ((3, 1.0), (4, 1.0), (5, 3 * 5 / 4 - 2), (9, 3 * 9 / 4 - 2)):
        index = torch.arange(length)
        base = 10000.0 * growth ** (8 / 6)
        angles = index[:, None] * base ** (-torch.arange(0, 8, 2) / 8)
        torch.testing.assert_close(positions.rotation(index).cos, angles.cos())
    with pytest.raises(UserError, match="expected at least 4 rotated features and a factor from 1"):
        make_positions("rotary(scaling=dynamic)", dim=2, heads=1)


def test_layers_with_a_window_have_the_local_base():
    positions = make_positions("rotary(base=1e6, local_base=100.0)", dim=4, heads=1)
    rotation = positions.rotation(torch.arange(5))
    local = make_positions("rotary(base=100.0)", dim=4, heads=1).rotation(torch.arange(5))
    torch.testing.assert_close(rotation.for_window(3).sin, local.sin)
    assert rotation.for_window(None) is rotation and local.for_window(3) is local
