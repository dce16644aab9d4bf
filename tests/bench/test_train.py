"""Training benchmark: batches, model sizes and dropout of all candidates."""

import pytest
import torch

from addnorm.bench import train
from addnorm.core.errors import UserError
from addnorm.kernels.cross_entropy import IGNORE_INDEX

SMALL = train.ModelSize(1, 16, 2, 60)


def test_batches_have_requested_tokens_and_sorting_reduces_padding():
    random, by_length = (
        train.make_batches(400, count=8),
        train.make_batches(400, by_length=True, count=8),
    )
    tokens = [
        [int((target != IGNORE_INDEX).sum()) for _, target in each] for each in (random, by_length)
    ]
    sizes = [sum(target.numel() for _, target in each) for each in (random, by_length)]
    assert len(random) == len(by_length) == 8
    assert all(300 < count <= 400 for count in (*tokens[0], *tokens[1]))
    assert sum(tokens[0]) / sizes[0] < 0.8 < 0.9 < sum(tokens[1]) / sizes[1]
    assert abs(sum(tokens[0]) / sum(tokens[1]) - 1) < 0.05


def test_all_candidates_run():
    pytest.importorskip("transformers")
    candidates = train.build_candidates(SMALL)
    assert len(candidates) == 6
    for candidate in candidates.values():
        candidate()


def test_peers_have_same_number_of_parameters_except_final_norms():
    counts = {
        sum(each.numel() for each in build(SMALL).parameters())
        for build in (train._build_addnorm, train._build_torch)
    }
    assert max(counts) - min(counts) <= 4 * SMALL.dim  # nn.Transformer normalizes twice at the end


def test_peer_has_same_dropout_rate():
    model = train._build_torch(SMALL).train()
    rates = {
        module.p for module in model.modules() if isinstance(module, torch.nn.Dropout) and module.p
    }
    assert rates == {train.DROPOUT_RATE}


def test_bfloat16_requires_cpu_support(monkeypatch):
    monkeypatch.setattr(train, "has_bfloat16", lambda: False)
    with pytest.raises(UserError, match="no instructions for bfloat16"):
        train.build_candidates(SMALL, bf16=True)
    monkeypatch.setattr(train, "has_bfloat16", lambda: True)
    assert f"{train.TORCH}, random" not in train.build_candidates(SMALL, bf16=True)


def test_matmul_flops_are_counted():
    x = torch.ones(8, 16)
    assert train.count_matmul_flops(lambda: x @ x.T) == 2 * 8 * 16 * 8
    train.run_matmuls(train.MATMUL_SIZE**3 * 2)
