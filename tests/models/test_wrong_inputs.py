"""Wrong types, dtypes and shapes get a message of ours, in one line, naming the argument."""

import pytest
import torch
from torch import nn

from addnorm import Decoder, Encoder, Stack, UserError, build, from_hf, load, make_norm
from addnorm.sublayers import CrossAttention, FeedForward, KVCache, SelfAttention
from addnorm.wirings import make_wiring

X, IDS = torch.ones(2, 3, 8), torch.ones(2, 3, dtype=torch.long)
NOT_TENSORS = [None, "x", 5, 1.5, [1, 2], {}, nn.Linear(2, 2), object()]
NOT_FLOATS = [*NOT_TENSORS, X.long(), X.bool(), X.to(torch.complex64), X.to_sparse(), X[0, 0]]
NOT_INTEGERS = [*NOT_TENSORS, IDS.float(), IDS.bool(), IDS.to_sparse(), torch.tensor(3)]
NOT_IDS = [*NOT_INTEGERS, torch.full((2, 3), 99), torch.full((2, 3), -1)]
NOT_NAMES = [5, 1.5, [1, 2], {}, nn.Linear(2, 2), object(), X, "no such name"]
NOT_PATHS = [None, 5, 1.5, [1, 2], {}, object(), X]

encoder = Encoder(dim=8, depth=1, heads=2)
decoder = Decoder(dim=8, depth=1, heads=2, other_depth=1)
plain = Stack([nn.Linear(8, 8), nn.Linear(8, 8)], dim=8)
SIZES = {"vocab": 11, "dim": 8, "depth": 1, "heads": 2}
lm = build(kind="lm", **SIZES)
seq2seq = build(kind="seq2seq", **SIZES)
masked = build(kind="masked_lm", types=2, **SIZES)
prefix = build(kind="prefix_lm", **SIZES)
classifier = build(kind="classifier", classes=3, **SIZES)
images = build(
    **SIZES | {"kind": "classifier", "vocab": None, "image": 4, "patch": 2, "classes": 3}
)


def without_none(values):
    return [value for value in values if value is not None]


CASES = {
    "x of a stack": (plain, NOT_FLOATS[:-1]),
    "x of an encoder": (encoder, NOT_FLOATS),
    "x of attention": (SelfAttention(8, 2), NOT_FLOATS),
    "x of a feed-forward": (FeedForward(8), NOT_FLOATS),
    "x of a norm": (make_norm("layer", 8), NOT_FLOATS[:-1]),
    "x of calibrate": (Encoder(dim=8, depth=1, heads=2, wiring="admin").calibrate, NOT_FLOATS),
    "cond of a norm": (lambda v: make_norm("ada_ln", 8)(X, cond=v), without_none(NOT_FLOATS)[:-1]),
    "mask": (lambda v: encoder(X, mask=v), [*without_none(NOT_TENSORS), IDS, X]),
    "visible": (lambda v: encoder(X, visible=v), [*without_none(NOT_TENSORS), IDS, X]),
    "cond": (lambda v: encoder(X, cond=v), [X]),
    "position_index": (lambda v: lm(IDS, position_index=v), without_none(NOT_INTEGERS)),
    "memory": (lambda v: decoder(X, memory=v), NOT_FLOATS),
    "memory of attention": (lambda v: CrossAttention(8, 2)(X, v), NOT_FLOATS),
    "memory_mask": (
        lambda v: decoder(X, memory=X, memory_mask=v),
        [*without_none(NOT_TENSORS), IDS, X],
    ),
    "cache": (lambda v: lm(IDS, cache=v), [*without_none(NOT_TENSORS), KVCache(7)]),
    "ids": (lm, NOT_IDS),
    "ids of calibrate": (lm.calibrate, NOT_IDS),
    "source": (lambda v: seq2seq(v, IDS), NOT_IDS),
    "target": (lambda v: seq2seq(IDS, v), NOT_IDS),
    "ids of a classifier": (classifier, NOT_IDS),
    "type_ids": (lambda v: masked(IDS, type_ids=v), without_none(NOT_IDS)),
    "pixels": (images, NOT_FLOATS),
    "prefix": (lambda v: prefix(IDS, v), [None, "x", 1.5, [1, 2], torch.tensor([-1, 0]), X]),
    "targets": (lambda v: lm.loss(v, IDS), NOT_INTEGERS),
    "targets of a classifier": (lambda v: classifier.loss(v, IDS), NOT_INTEGERS),
    "ids of loss": (lambda v: lm.loss(IDS, v), NOT_IDS),
    "smoothing": (lambda v: lm.loss(IDS, IDS, smoothing=v), [*NOT_TENSORS, X, 1.0, -0.1]),
    "sublayers": (lambda v: Stack(v, dim=8), [None, "x", 5, [], [5], [None], X, nn.Linear(2, 2)]),
    "kinds": (lambda v: Stack([nn.Tanh()], dim=8, kinds=v), [None, 5, [], [5], {}, X]),
    "wiring": (lambda v: Encoder(dim=8, depth=1, heads=2, wiring=v), NOT_NAMES),
    "norm": (lambda v: Encoder(dim=8, depth=1, heads=2, norm=v), NOT_NAMES),
    "positions": (lambda v: Encoder(dim=8, depth=1, heads=2, positions=v), NOT_NAMES),
    "embed_norm": (lambda v: Encoder(dim=8, depth=1, heads=2, embed_norm=v), NOT_NAMES),
    "qk_norm": (lambda v: Encoder(dim=8, depth=1, heads=2, qk_norm=v), NOT_NAMES),
    "activation": (lambda v: Encoder(dim=8, depth=1, heads=2, activation=v), NOT_NAMES),
    "bias": (lambda v: Encoder(dim=8, depth=1, heads=2, bias=v), NOT_NAMES),
    "dropout": (lambda v: Encoder(dim=8, depth=1, heads=2, dropout=v), NOT_NAMES[1:]),
    "role": (lambda v: Stack([nn.Tanh()], dim=8, kinds="ffn", role=v), NOT_NAMES),
    "name of a norm": (lambda v: make_norm(v, 8), NOT_NAMES),
    "plan": (lambda v: make_wiring("pre_ln", v), NOT_TENSORS),
    "scheme": (lambda v: plain.init_weights(scheme=v), NOT_NAMES),
    "seed": (lambda v: plain.init_weights(seed=v), ["x", 1.5, [1], {}, -1, 2**64, True, X]),
    "preset": (build, NOT_NAMES),
    "kind": (lambda v: build(**SIZES | {"kind": v}), NOT_NAMES),
    "device": (lambda v: build(kind="lm", **SIZES, device=v), ["x", 1.5, [1], {}, object(), X]),
    "seed of build": (lambda v: build(kind="lm", **SIZES, seed=v), ["x", 1.5, [1], {}, -1, X]),
    "folder of load": (load, [*NOT_PATHS, "no such folder"]),
    "folder of save": (lm.save, NOT_PATHS),
    "sites": (KVCache, [None, "x", 1.5, [1], 0, X]),
    "model of transformers": (from_hf, [*NOT_TENSORS, X]),
}


@pytest.mark.parametrize("name", CASES)
def test_wrong_input_is_rejected_in_one_line(name):
    call, values = CASES[name]
    for value in values:
        with pytest.raises(UserError) as caught:
            call(value)
        assert str(caught.value).isprintable()


def test_wrong_ids_are_named_with_the_vocabulary():
    with pytest.raises(UserError, match="ids: expected token ids from 0 to 10, got 99"):
        lm(torch.full((2, 3), 99))
    with pytest.raises(UserError, match="type_ids: expected segments from 0 to 1, got -1"):
        masked(IDS, type_ids=torch.full((2, 3), -1))
    with pytest.raises(UserError, match=r"type_ids: expected the shape of ids, \(2, 3\), got"):
        masked(IDS, type_ids=IDS[:1])
