"""Benchmarks of exports: both candidates compute the same."""

import pytest
import torch

from addnorm.bench import export
from addnorm.bench.base import OURS


@pytest.mark.slow
@pytest.mark.parametrize("build", [export.build_classifiers, export.build_table_models])
def test_candidates_of_exports_run(build):
    torch.manual_seed(0)
    candidates = build(dim=16, depth=1)
    assert set(candidates) == {OURS, export.PEER}
    for candidate in candidates.values():
        candidate()
