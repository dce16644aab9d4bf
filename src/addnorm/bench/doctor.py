"""Benchmark of the doctor against one forward and backward pass of the same model."""

import importlib.util
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

from addnorm.bench.base import OURS, Benchmark, Candidates
from addnorm.core.errors import UserError

PEER = "forward and backward"


def make_benchmarks() -> Iterator[Benchmark]:
    """Yield the benchmark on BERT-base; the goal is at most 1.5 times the plain pass."""
    yield Benchmark("doctor BERT-base", build_candidates, {PEER: 1 / 1.5}, rounds=5)


def build_candidates() -> Candidates:
    """Build both candidates on a batch of 2 x 128 tokens with a mask."""
    if not importlib.util.find_spec("transformers"):
        raise UserError("the doctor benchmark requires transformers; run pip install transformers")
    transformers: Any = import_module("transformers")  # untyped
    from addnorm.doctor import doctor

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertModel(transformers.BertConfig()).eval()
        ids = torch.randint(5, 30000, (2, 128))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def plain() -> None:
        model(**inputs).last_hidden_state.square().mean().backward()
        model.zero_grad(set_to_none=True)

    return {OURS: lambda: doctor(model, inputs), PEER: plain}
