"""Native kernels under tracing, export, forward-mode gradients, hooks and default dtypes."""

from contextlib import contextmanager

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from addnorm import Encoder
from addnorm.kernels import library
from addnorm.kernels.add_norm.ops import add_norm
from addnorm.kernels.add_norm.reference import NormParams
from addnorm.kernels.attention import decode
from addnorm.kernels.attention.varlen import SequenceOffsets, varlen_attention
from addnorm.kernels.cross_entropy import linear_cross_entropy
from addnorm.kernels.cross_entropy_rows import logsumexp
from addnorm.sublayers import CrossAttention, KVCache, SelfAttention

pytestmark = pytest.mark.skipif(
    not library.list_levels(), reason="the native library was not built"
)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def rms_weight_gradient(x, f, weight):
    """Return the weight gradient of an RMSNorm that runs natively."""
    weight = weight.clone().requires_grad_()
    y = add_norm(x, f, NormParams(True, weight, None, 1e-6), rate=0.1)
    y.square().sum().backward()
    return weight.grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_default_dtype_does_not_change_results(dtype):
    x, f, weight = randn(64, 256), randn(64, 256, seed=1), randn(256, seed=2)
    q = randn(2, 40, 16)
    bounds = SequenceOffsets.from_lengths([30, 10])

    def run_all():
        torch.manual_seed(0)
        leaf = q.clone().requires_grad_()
        varlen_attention(leaf, leaf, leaf, bounds, bounds, scale=0.3).square().sum().backward()
        return rms_weight_gradient(x, f, weight), leaf.grad

    expected = run_all()
    with default_dtype(dtype):
        actual = run_all()
    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("share", ["one", "through"])
def test_second_order_gradients_when_q_k_and_v_share_a_tensor(share):
    bounds = SequenceOffsets.from_lengths([3, 4])

    def run_attention(level):
        q = randn(2, 7, 8).requires_grad_()
        k = q if share == "one" else q.tanh()
        with library.use_level(level), sdpa_kernel(SDPBackend.MATH):
            out = varlen_attention(q, k, k, bounds, bounds, scale=0.4)
            (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), q)
        return first.detach(), second

    for one, other in zip(
        run_attention(library.list_levels()[-1]), run_attention("off"), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_jit_trace_matches_eager():
    stack = Encoder(dim=32, depth=2, heads=2, norm="rms", wiring="post_ln").eval()
    x = randn(4, 40, 32)
    traced = torch.jit.trace(stack, (x,), check_trace=False)
    for each in (x, randn(4, 40, 32, seed=5)):
        torch.testing.assert_close(traced(each), stack(each))


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_stack_exports_with_dynamic_length(norm):
    stack = Encoder(dim=32, depth=1, heads=2, norm=norm, wiring="post_ln").eval()
    length = torch.export.Dim("length", min=2, max=512)
    shapes = {"x": {1: length}}
    program = torch.export.export(stack, (), {"x": randn(2, 20, 32)}, dynamic_shapes=shapes)
    for tokens in (5, 30):
        x = randn(2, tokens, 32, seed=tokens)
        torch.testing.assert_close(program.module()(x=x), stack(x))


def test_attention_exports_with_dynamic_length():
    attention = SelfAttention(32, 2).eval()
    length = torch.export.Dim("length", min=2, max=512)
    program = torch.export.export(attention, (randn(2, 20, 32),), dynamic_shapes=({1: length},))
    for tokens in (5, 30):
        x = randn(2, tokens, 32, seed=tokens)
        torch.testing.assert_close(program.module()(x), attention(x))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_forward_mode_tangents_propagate():
    x, f = randn(64, 256), randn(64, 256, seed=1)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        y = add_norm(dual, f, NormParams(True, None, None, 1e-6), rate=0.0)
        assert forward_ad.unpack_dual(y).tangent is not None
        assert forward_ad.unpack_dual(logsumexp(dual)).tangent is not None
        assert not decode.can_use_decode_attention(dual[None, None, :1], *[x[None, None]] * 2, None)


def test_backward_hooks_of_norms_and_dropout_run():
    stack = Encoder(dim=256, depth=1, heads=2, norm="rms", wiring="post_ln", dropout=0.1)
    hooked = []
    for name, module in stack.named_modules():
        if name.endswith(("norms.0", "norms.1")) or isinstance(module, torch.nn.Dropout):
            module.register_full_backward_hook(lambda *_, name=name: hooked.append(name))
    stack(randn(4, 40, 256)).sum().backward()
    with library.use_level("off"):
        native_hooked, hooked[:] = list(hooked), []
        stack(randn(4, 40, 256)).sum().backward()
    assert native_hooked == hooked and hooked


def test_integer_targets_of_other_dtype():
    h, table, targets = randn(40, 8), randn(300, 8, seed=1), torch.arange(40) % 300
    expected = linear_cross_entropy(h, table, targets).loss
    torch.testing.assert_close(linear_cross_entropy(h, table, targets.int()).loss, expected)


def test_frozen_table_saves_no_gradient():
    h, table = randn(40, 8).requires_grad_(), randn(300, 8, seed=1)
    loss = linear_cross_entropy(h, table, torch.arange(40)).loss
    saved = [each for each in loss.grad_fn.saved_tensors if each is not None]
    assert [each.shape for each in saved] == [h.shape]


def test_cache_of_other_batch_size_raises():
    attention = CrossAttention(32, 2).eval()
    cache = KVCache(1)
    with torch.no_grad():
        attention(randn(1, 1, 32), randn(1, 6, 32), cache=cache[0])
        with pytest.raises(ValueError, match="cache: expected a batch of 1, got 3"):
            attention(randn(3, 1, 32), randn(3, 6, 32), cache=cache[0])
    q, k = randn(3, 2, 1, 16), randn(1, 2, 6, 16)
    assert not decode.can_use_decode_attention(q, k, k, None)


def test_nan_value_propagates_with_zero_probability():
    q, k, v = torch.full((1, 1, 1, 16), 30.0), torch.zeros(1, 1, 2, 16), randn(1, 1, 2, 16)
    k[0, 0, 0] = 1
    v[0, 0, 1, 3] = torch.nan
    actual = decode.decode_attention(q, k, v, None, scale=1.0)
    assert actual[..., 3].isnan().all() and actual[..., :3].isfinite().all()
