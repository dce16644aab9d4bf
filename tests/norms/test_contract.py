"""Properties of every registered norm; new norms are tested automatically."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch.func import functional_call

from addnorm.core.errors import UserError
from addnorm.norms import base, make_norm, registry
from tests.norms.cases import (
    CASES,
    DIM,
    SHAPE,
    build,
    cond_for,
    name_of,
    needs,
    ragged_mask,
    randn,
)

every_case = pytest.mark.parametrize("call", CASES)
every_name = pytest.mark.parametrize("name", list(registry))
both_modes = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])

# Norms whose backward is not, by design, the derivative of their forward in training.
STOPS_GRADIENT = ("ada", "detach")


def has_same_state(norm, other):
    one, two = norm.state_dict(), other.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def run_training_step(norm):
    x = randn(*SHAPE).requires_grad_()
    norm(x).sum().backward()


# Names and cards.


def test_every_module_registers_a_norm():
    files = {path.stem for path in Path(base.__file__).parent.glob("*.py")}
    assert files - {"__init__", "base", "affine", "statistics"} == set(registry)
    for name in registry:
        assert registry.member(name).__module__ == f"addnorm.norms.{name}"


@every_name
def test_card_is_complete(name):
    card = registry.card(name)
    assert card.title and card.formula and card.summary.endswith(".")
    assert card.year is not None, "the paper of a card needs a year"
    symbols = dict(card.symbols)
    assert re.match(r"x, [yz]$", next(iter(symbols))) and all(symbols.values())
    assert registry.member(name).__doc__.splitlines()[0].endswith(".")


@every_name
def test_card_lists_every_parameter_and_buffer(name):
    symbols = dict(registry.card(name).symbols)
    norm = make_norm(name, DIM)
    for key in norm.state_dict():
        assert re.match(r"(\(.+\)|scalar), .*starts at", symbols[key]), key
    for key, _ in norm.named_buffers():
        assert "buffer" in symbols[key]


@every_name
def test_parameters_start_at_the_values_on_the_card(name):
    symbols = dict(registry.card(name).symbols)
    for key, tensor in make_norm(name, DIM).state_dict().items():
        number = re.search(r"starts at (-?\d+(?:\.\d+)?)", symbols.get(key, ""))
        if number:
            assert (tensor == float(number[1])).all(), key


def alternatives(option):
    """Return values of an option other than its default; some may be invalid."""
    default = option.default
    if option.choices:
        return [choice for choice in option.choices if choice != default]
    if isinstance(default, bool):
        return [not default]
    if isinstance(default, int | float):
        return [type(default)(value) for value in (default / 2, default * 2, 2, 5, 0.25, 0)]
    return [1, 2, 3, 0.5]  # the default is None


def list_values(call):
    """Return what a norm computes in training and evaluation: outputs, gradients and state."""
    values = []
    for size in (1.0, 1e-3):  # epsilons count only beside small variances
        norm = make_norm(call, DIM)
        x = (size * randn(*SHAPE)).requires_grad_()
        cond = cond_for(norm, 3)
        for step in range(3):
            y = norm(x, cond=cond) if cond is not None else norm(x)
            (gradient,) = torch.autograd.grad((y * randn(*y.shape, seed=step)).sum(), x)
            values += [y.detach(), gradient]
        norm.eval()
        values.append((norm(x, cond=cond) if cond is not None else norm(x)).detach())
        values += norm.state_dict().values()
    return values


@pytest.mark.parametrize(
    ("name", "key"), [(card.name, key) for card in registry.cards() for key in card.options]
)
def test_every_option_has_an_effect(name, key):
    reference = list_values(name)
    changed = []
    for value in alternatives(registry.card(name).options[key]):
        try:
            values = list_values(f"{name}({key}={value})")
        except UserError:
            continue
        same = len(values) == len(reference) and all(map(torch.equal, values, reference))
        changed.append(not same)
    assert any(changed), f"{name}: no value of {key} changes the result"


@every_case
def test_call_string_round_trip(call):
    assert str(registry.resolve(call)) == call


@every_name
def test_call_string_omits_default_options(name):
    options = registry.card(name).options
    explicit = ", ".join(f"{key}={option.default!r}" for key, option in options.items())
    assert str(registry.resolve(f"{name}({explicit})")) == name


@pytest.mark.parametrize(
    ("one", "other"), [pair for card in registry.cards() for pair in card.reduces_to]
)
def test_reduction_listed_on_a_card_holds_at_initialization(one, other):
    x = 2 * randn(*SHAPE, dtype=torch.float64) + 0.5
    first, second = (build(call, dtype=torch.float64, start=True) for call in (one, other))
    torch.testing.assert_close(first(x), second(x), rtol=1e-4, atol=1e-4)  # eps may differ


# Shapes and dtypes.


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@every_case
def test_shape_and_dtype_are_kept_and_the_input_is_unchanged(call, dtype):
    norm = build(call)
    for shape in (SHAPE, (5, DIM), (2, 3, 4, DIM), (1, 1, DIM), (0, 7, DIM), (3, 0, DIM)):
        x = randn(*shape).to(dtype)
        before = x.clone()
        y = norm(x)
        assert y.shape == x.shape and y.dtype == dtype and y.isfinite().all()
        assert torch.equal(x, before)


@every_case
def test_single_vector_is_a_token(call):
    if name_of(call) == "instance":  # requires a sequence of tokens
        with pytest.raises(UserError, match=r"InstanceNorm: expected a sequence of tokens"):
            build(call)(randn(DIM))
        return
    x = randn(DIM)
    torch.testing.assert_close(build(call).eval()(x), build(call).eval()(x[None])[0])


@pytest.mark.parametrize("dim", [1, 2, 3, 7, 13])
@every_name
def test_any_dim_gives_finite_values_and_gradients(name, dim):
    x = randn(3, 7, dim).requires_grad_()
    y = build(name, dim)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert y.shape == x.shape and y.isfinite().all() and gradient.isfinite().all()


@both_modes
@every_case
def test_bfloat16_statistics_are_precise_far_from_zero(call, training):
    x = (1000 + 20 * randn(*SHAPE)).bfloat16()
    ours = build(call).train(training)(x, ragged_mask())
    exact = build(call, dtype=torch.float64).train(training)(x.double(), ragged_mask())
    size = exact.abs().max().clamp_min(1)
    torch.testing.assert_close(ours.double() / size, exact / size, rtol=1e-2, atol=1e-2)


@every_case
def test_autocast_changes_neither_dtype_nor_result(call):
    norm, x = build(call), randn(*SHAPE)
    cond = cond_for(norm, SHAPE[0])
    plain = copy.deepcopy(norm)(x, ragged_mask(), cond)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = norm(x, ragged_mask(), cond)
    assert y.dtype == torch.float32
    tolerance = 5e-2 if needs(call, "cond") else 1e-6  # autocast rounds its matrix product
    torch.testing.assert_close(y, plain, rtol=tolerance, atol=tolerance)


@every_case
def test_parameters_of_another_precision_than_the_input(call):
    """Weights in bfloat16 with a float32 input, and vice versa."""
    x = randn(*SHAPE)
    y = build(call, dtype=torch.bfloat16)(x, ragged_mask())
    torch.testing.assert_close(y, build(call)(x, ragged_mask()), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(
        build(call)(x.double(), ragged_mask()).float(), build(call)(x, ragged_mask())
    )


# Gradients.


def passes_gradcheck(norm, x, mask, cond):
    names = list(dict(norm.named_parameters()))
    inputs = (x, *([] if cond is None else [cond.requires_grad_()]))

    def run(*values):
        tensors, parameters = values[: len(inputs)], values[len(inputs) :]
        c = None if cond is None else tensors[1]
        parameters = dict(zip(names, parameters, strict=True))
        return functional_call(norm, parameters, (tensors[0], mask, c))

    values = (*inputs, *(p.detach().clone().requires_grad_() for p in norm.parameters()))
    return torch.autograd.gradcheck(run, values, raise_exception=False)


@both_modes
@every_case
def test_gradient_is_the_derivative_unless_documented(call, training):
    norm = build(call, 6, dtype=torch.float64).train(training)
    x = randn(2, 3, 6, dtype=torch.float64).requires_grad_()
    mask = ragged_mask((2, 3))
    approximate = name_of(call) in STOPS_GRADIENT or (training and call.startswith("power(warmup"))
    exact = passes_gradcheck(norm, x, mask, cond_for(norm, 2))
    assert exact is not approximate


@both_modes
@every_case
def test_degenerate_rows_give_finite_values_and_gradients(call, training):
    """Zeros, constants, and a sentence that is all padding."""
    rows = torch.stack([torch.zeros(4, DIM), torch.full((4, DIM), 3.0), randn(4, DIM)])
    valid = torch.tensor([[True] * 4, [True] * 4, [False] * 4])
    for x, mask in [
        (rows, valid),
        (rows[:1], valid[:1]),  # zeros alone
        (rows[1:2], valid[1:2]),  # constants alone
        (rows[2:], valid[2:]),  # padding alone
        (rows[2:, :1], None),  # one token
    ]:
        norm = build(call).train(training)
        x = x.clone().requires_grad_()
        y = norm(x, mask, cond_for(norm, len(x)))
        assert y.isfinite().all()
        for gradient in torch.autograd.grad(y.square().sum(), [x, *norm.parameters()]):
            assert gradient.isfinite().all()
        assert all(tensor.isfinite().all() for tensor in norm.state_dict().values())


# Padding and causality.


@both_modes
@every_case
def test_padded_equals_trimmed(call, training):
    x, lengths = randn(2, 7, DIM), (5, 3)
    trimmed = torch.arange(5) < torch.tensor(lengths)[:, None]
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    x[~mask] = 1e4  # arbitrary values in the padding
    short, long = (build(call).train(training) for _ in range(2))
    cond = cond_for(short, 2)
    y, padded = short(x[:, :5], trimmed, cond)[trimmed], long(x, mask, cond)[mask]
    if needs(call, "mask"):
        torch.testing.assert_close(padded, y)
        torch.testing.assert_close(dict(long.named_buffers()), dict(short.named_buffers()))
    elif any(parameter.ndim > 1 for parameter in short.parameters()):
        # The rounding of a matrix product depends on the number of its rows.
        torch.testing.assert_close(padded, y, rtol=1e-5, atol=1e-6)
    else:
        assert torch.equal(padded, y)


@both_modes
@pytest.mark.parametrize("call", [call for call in CASES if needs(call, "mask")])
def test_masked_norms_ignore_padding_and_return_zero_there(call, training):
    norm, mask = build(call).train(training), ragged_mask()
    x = randn(*SHAPE).masked_fill(~mask[..., None], torch.nan).requires_grad_()
    y = norm(x, mask)
    assert y.isfinite().all() and not y[~mask].any()
    gradients = torch.autograd.grad(y.square().sum(), [x, *norm.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert not gradients[0][~mask].any()


@every_case
def test_card_needs_match_the_inputs_that_matter(call):
    norm, x = build(call), randn(*SHAPE)
    plain = copy.deepcopy(norm)(x)
    masked = copy.deepcopy(norm)(x, ragged_mask())
    conditional = copy.deepcopy(norm)(x, cond=randn(SHAPE[0], getattr(norm, "cond_dim", DIM)))
    assert torch.equal(plain, masked) is not needs(call, "mask")
    assert torch.equal(plain, conditional) is not needs(call, "cond")


@every_case
def test_causal_norms_do_not_depend_on_later_tokens(call):
    norm = build(call)
    x = randn(*SHAPE)
    changed = x.clone()
    changed[:, -1] += 1
    before, after = copy.deepcopy(norm)(x)[:, :-1], copy.deepcopy(norm)(changed)[:, :-1]
    assert torch.equal(before, after) is norm.causal


# State.


@every_case
def test_evaluation_changes_no_state(call):
    norm, x = build(call).eval(), randn(*SHAPE).requires_grad_()
    before = copy.deepcopy(norm)
    y = norm(x, ragged_mask())
    y.sum().backward()
    assert torch.equal(y, norm(x, ragged_mask()))
    assert has_same_state(norm, before)


@every_case
def test_state_dict_is_complete(call):
    norm, fresh, x = build(call), make_norm(call, DIM), randn(*SHAPE)
    run_training_step(norm)
    fresh.load_state_dict(norm.state_dict())
    cond = cond_for(norm, SHAPE[0])
    for training in (True, False):
        results = [each.train(training)(x, ragged_mask(), cond) for each in (norm, fresh)]
        assert torch.equal(*results)
    assert has_same_state(norm, fresh)


@every_case
def test_deepcopy_is_equal_and_independent(call):
    norm, x = build(call), randn(*SHAPE)
    before = copy.deepcopy(norm)
    other = copy.deepcopy(norm)
    run_training_step(other)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 1
    assert has_same_state(norm, before)
    assert torch.equal(norm(x), before(x))


@every_case
def test_reset_parameters_restores_the_initial_state(call):
    norm, fresh = build(call), make_norm(call, DIM)
    run_training_step(norm)
    norm.reset_parameters()
    assert has_same_state(norm, fresh)


@every_case
def test_norm_on_meta_device_is_initialized_by_reset(call):
    with torch.device("meta"):
        norm = make_norm(call, DIM)
    assert all(tensor.is_meta for tensor in norm.state_dict().values())
    norm.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in norm.state_dict().values():
            tensor.fill_(77)
    norm.reset_parameters()
    assert has_same_state(norm, make_norm(call, DIM))


@every_case
def test_construction_draws_no_random_numbers(call):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    make_norm(call, DIM)
    assert torch.equal(torch.get_rng_state(), before)


@every_case
def test_set_gain_scales_the_output_or_raises(call):
    norm, x = make_norm(call, DIM), randn(*SHAPE)
    if norm.gain is None or getattr(norm, norm.gain) is None:
        with pytest.raises(UserError, match=r"has no gain to start at 0.25; choose a norm with"):
            norm.set_gain(0.25)
        return
    start = make_norm(call, DIM)(x)
    for value in (1.0, 0.25, 0.0):
        fresh = make_norm(call, DIM)
        fresh.set_gain(value)
        torch.testing.assert_close(fresh(x), value * start)


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # dynamo's own
@pytest.mark.parametrize("call", [*registry, "power(warmup=0)"])
def test_compiles_to_one_graph(call):
    """Forward, backward and buffers have no graph break and no data-dependent branch."""
    torch._dynamo.reset()
    plain, x = build(call), randn(*SHAPE).requires_grad_()
    norm = copy.deepcopy(plain)
    compiled = torch.compile(norm, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        pairs = [
            (y, *torch.autograd.grad(y.square().sum(), x))
            for y in (compiled(x, ragged_mask()), plain(x, ragged_mask()))
        ]
        torch.testing.assert_close(*pairs)
    torch.testing.assert_close(norm.state_dict(), plain.state_dict())
