"""`KVCache` is a pytree: it passes through torch.export and tree functions."""

import io

import pytest
import torch
from torch.utils import _pytree as pytree

import addnorm
from addnorm.sublayers.cache import KVCache


def fill_cache(kind="seq2seq", steps=3):
    model = addnorm.build(kind=kind, dim=8, depth=2, heads=2, vocab=11, seed=0).eval()
    cache = model.new_cache()
    mask = torch.tensor([[False, True, True], [True, True, True]])
    ids = torch.randint(11, (2, steps), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        if kind == "lm":
            model(ids, mask=mask, cache=cache)
        else:
            memory = torch.randn(2, 5, 8)
            source_mask = torch.tensor([[True] * 5, [True] * 4 + [False]])
            model.decode(ids, memory, target_mask=mask, source_mask=source_mask, cache=cache)
    return model, cache


@pytest.mark.parametrize("kind", ["lm", "seq2seq"])
@pytest.mark.parametrize("beams", [False, True])
def test_flattening_and_rebuilding_keeps_what_the_next_step_returns(kind, beams):
    model, cache = fill_cache(kind)
    if beams:
        cache.expand_beams(3)
        cache.reorder_beams(torch.tensor([[0, 2, 1], [1, 1, 0]]))
    rows = 6 if beams else 2
    leaves, spec = pytree.tree_flatten(cache)
    assert leaves and all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    rebuilt = pytree.tree_unflatten([leaf.clone() for leaf in leaves], spec)
    ids = torch.full((rows, 1), 4)
    with torch.no_grad():
        if kind == "lm":
            expected, got = (model(ids, cache=each) for each in (cache, rebuilt))
        else:
            memory = torch.zeros(rows, 5, 8)
            expected, got = (model.decode(ids, memory, cache=each) for each in (cache, rebuilt))
    assert torch.equal(expected, got)
    assert rebuilt.length == cache.length == 4


def test_an_empty_cache_has_no_leaves():
    leaves, spec = pytree.tree_flatten(KVCache(3))
    assert leaves == []
    rebuilt = pytree.tree_unflatten(leaves, spec)
    assert len(rebuilt) == 3 and rebuilt.length == 0


def test_tree_map_moves_all_tensors():
    _, cache = fill_cache()
    doubled = pytree.tree_map_only(torch.Tensor, lambda each: each.clone(), cache)
    assert isinstance(doubled, KVCache)
    assert torch.equal(doubled[0].keys, cache[0].keys)
    assert doubled[1].is_memory and not doubled[0].is_memory


class Step(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, cache):
        return self.model(ids, cache=cache), cache


def test_torch_export_takes_and_returns_a_cache_and_saves_the_program():
    model, cache = fill_cache("lm")
    ids = torch.full((2, 1), 4)
    program = torch.export.export(Step(model), (ids, cache), strict=False)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    logits, after = torch.export.load(file).module()(ids, fill_cache("lm")[1])
    with torch.no_grad():
        expected = model(ids, cache=cache)
    torch.testing.assert_close(logits, expected)
    assert isinstance(after, KVCache) and after.length == cache.length == 4
