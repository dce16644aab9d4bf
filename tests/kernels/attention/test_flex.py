"""The two implementations for GPUs, as far as a CPU can run them, against ours.

torch refuses gradients of flex attention on a CPU, although its uncompiled version has them; the
refusal is lifted here. torch's varlen kernel has no CPU version, so a function with its documented
contract stands for it.
"""

import gc
import warnings

import pytest
import torch
from torch.nn.attention import flex_attention

from addnorm.kernels.attention import flex, varlen
from addnorm.kernels.attention.reference import SequenceOffsets, padded_attention
from tests.kernels.attention.test_varlen import random_inputs, reference_attention

pytest.importorskip("torch.nn.attention.varlen", reason="newer than torch 2.6")

CASES = [
    ([5, 0, 3, 9], [5, 0, 3, 9], True),
    ([5, 1, 3, 9], [5, 1, 3, 9], False),
    ([4, 2, 3], [7, 0, 1], False),
]


@pytest.fixture
def flex_on_cpu(monkeypatch):
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is not compiled
        yield


def run_with_gradients(function, lengths, key_lengths, causal):
    *inputs, grad = random_inputs(lengths, key_lengths, dim=16, dtype=torch.float32)
    leaves = [each.clone().requires_grad_() for each in inputs]
    offsets = SequenceOffsets.from_lengths(lengths), SequenceOffsets.from_lengths(key_lengths)
    out = function(*leaves, *offsets, causal=causal, scale=0.3)
    return [out, *torch.autograd.grad(out, leaves, grad)]


@pytest.mark.parametrize(("lengths", "key_lengths", "causal"), CASES)
@pytest.mark.usefixtures("flex_on_cpu")
def test_flex_attention_equals_ours(lengths, key_lengths, causal):
    ours = run_with_gradients(varlen.varlen_attention, lengths, key_lengths, causal)
    padded = run_with_gradients(padded_attention, lengths, key_lengths, causal)
    found = run_with_gradients(flex.flex_varlen_attention, lengths, key_lengths, causal)
    for one, other, third in zip(found, ours, padded, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(one, third, rtol=1e-4, atol=1e-5)
    assert found[0].transpose(0, 1).is_contiguous()


def test_masks_are_shared_by_layers_and_freed():
    offsets = SequenceOffsets.from_lengths([2, 3])
    first = flex._find_mask(offsets, offsets, 5, 5, causal=True)
    assert flex._find_mask(offsets, offsets, 5, 5, causal=True) is first
    assert flex._find_mask(offsets, offsets, 5, 5, causal=False) is not first
    before = len(flex._MASKS)
    del offsets
    gc.collect()
    assert len(flex._MASKS) == before - 1


@pytest.mark.parametrize(("lengths", "key_lengths", "causal"), CASES)
def test_arguments_of_the_varlen_kernel(monkeypatch, lengths, key_lengths, causal):
    def varlen_attn(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa):
        assert cu_seq_q.tolist()[-1] == len(q) and cu_seq_k.tolist()[-1] == len(k)
        assert (max_q, max_k) == (max(lengths), max(key_lengths))
        assert enable_gqa == (k.shape[1] < q.shape[1])
        assert window_size in ((-1, 0), (-1, -1))
        q, k, v = (each.transpose(0, 1) for each in (q, k, v))
        out = reference_attention(
            *(q, k, v),
            cu_seq_q.diff().tolist(),
            cu_seq_k.diff().tolist(),
            causal=window_size == (-1, 0),
            scale=scale,
        )
        return out.transpose(0, 1)

    monkeypatch.setattr(torch.nn.attention.varlen, "varlen_attn", varlen_attn)
    found = run_with_gradients(varlen._flash_attention, lengths, key_lengths, causal)
    ours = run_with_gradients(varlen.varlen_attention, lengths, key_lengths, causal)
    for one, other in zip(found, ours, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_choice_on_a_gpu(monkeypatch):
    """Flash for half precision, flex for float32, padding where neither is possible."""
    monkeypatch.setattr(flex, "_is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))

    def choose(dtype, width):
        q = torch.empty(1, 4, width, dtype=dtype, device="meta")
        q = type("Cuda", (), {"device": torch.device("cuda"), "dtype": dtype, "shape": q.shape})()
        flash, flexible = varlen._can_use_flash(q, q, dtype), flex.can_use_flex(q, q, dtype)
        return "flash" if flash else "flex" if flexible else "padded"

    assert choose(torch.bfloat16, 64) == "flash"
    assert choose(torch.bfloat16, 72) == "flash"
    assert choose(torch.float32, 64) == "flex"
    assert choose(torch.float32, 72) == choose(torch.float64, 64) == "padded"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose(torch.bfloat16, 64) == choose(torch.float32, 64) == "padded"
