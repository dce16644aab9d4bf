"""A visit of the doctor beside one plain forward and backward."""

import importlib.util
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

from addnorm.bench.base import OURS, Benchmark, Candidates
from addnorm.core.errors import UserError

PEER = "forward and backward"


def benches() -> Iterator[Benchmark]:
    """BERT-base; the goal is at most 1.5 times the plain pass."""
    yield Benchmark("doctor BERT-base", build_candidates, {PEER: 1 / 1.5}, rounds=5)


def build_candidates() -> Candidates:
    """2 x 128 tokens with their mask."""
    if not importlib.util.find_spec("transformers"):
        raise UserError("the doctor is measured on BERT; try pip install transformers")
    transformers: Any = import_module("transformers")  # has no types
    from addnorm.doctor import doctor

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.BertModel(transformers.BertConfig()).eval()
        ids = torch.randint(5, 30000, (2, 128))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def plain() -> None:
        model(**given).last_hidden_state.square().mean().backward()
        model.zero_grad(set_to_none=True)

    return {OURS: lambda: doctor(model, given), PEER: plain}
