"""Losses of the pre-training objectives."""

import math

import torch
import torch.nn.functional as F

from addnorm.models.tabular import TableBatch, TableConfig, build_table_model
from addnorm.models.tabular.table_batch import ABSENT
from addnorm.tabular.training.pretraining import PretextModel

ROWS = 12


def make_cells(equal_rows=False):
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn(ROWS, 2, generator=generator)
    absent = torch.zeros(ROWS, 2, dtype=torch.bool)
    absent[0, 0] = True
    codes = torch.randint(2, 5, (ROWS, 2), generator=generator)
    cells = TableBatch(numbers.masked_fill(absent, 0), absent, codes, codes[:, :0, None])
    return cells.select_rows(torch.zeros(ROWS, dtype=torch.int64)) if equal_rows else cells


def make_pretext(objective, model="saint", **changes):
    options = {"dim": 8, "heads": 2, "depth": 1, "activation": "geglu"} | changes
    table = {"numbers": 2, "categories": (5, 5), "outputs": 1}
    config = TableConfig(model=model, wiring="res_post", **table, **options)
    return PretextModel(build_table_model(config, seed=0), objective).eval()


def test_equal_replacements_do_not_count_as_replaced():
    pretext, masks = make_pretext("replaced"), []
    pretext._replacement_loss = lambda states, mask: masks.append(mask) or states.sum()
    pretext.loss(make_cells(equal_rows=True))
    pretext.loss(make_cells())
    assert not masks[0].any()
    assert 0.1 < masks[1].float().mean() < 0.3  # 0.3 are replaced, some by an equal cell


def test_missing_cells_are_not_reconstructed():
    pretext, x = make_pretext("masked"), make_cells()
    mask = torch.ones(ROWS, 4, dtype=torch.bool)
    states = pretext.model.states(x)
    empty = x._replace(codes=torch.full_like(x.codes, ABSENT), absent=torch.ones_like(x.absent))
    losses = pretext._reconstruction_losses(states, empty, mask)
    assert [loss.item() for loss in losses] == [0, 0]
    expected = [
        F.cross_entropy(head(states[:, 2 + index]), x.codes[:, index])
        for index, head in enumerate(pretext.categories)
    ]
    torch.testing.assert_close(pretext._reconstruction_losses(states, x, mask)[1], sum(expected))


def test_contrastive_loss_matches_the_released_code():
    """0.5 * mean of both cross entropies + categories + 10 * numbers, of an augmented view."""
    pretext, x = make_pretext("contrastive"), make_cells()
    torch.manual_seed(3)
    loss = pretext.loss(x)
    torch.manual_seed(3)
    other = x.select_rows(torch.randperm(ROWS))
    mixed = x.replace_cells(other, torch.rand(ROWS, 4) < 0.3)
    shuffled = torch.randperm(ROWS)
    tokens = pretext.model.tokens(mixed)
    view = pretext.model.stack(0.8 * tokens + 0.2 * tokens[shuffled])[:, 1:]
    plain = pretext.model.stack(pretext.model.tokens(x))[:, 1:]
    one, two = (each / each.norm(dim=-1, keepdim=True) for each in (plain, view))
    one, two = pretext.project[0](one.flatten(1)), pretext.project[1](two.flatten(1))
    assert one.shape == (ROWS, 16)  # half of 4 cells of 8
    p = (one @ two.T / 0.7).log_softmax(1).diagonal().mean()
    q = (two @ one.T / 0.7).log_softmax(1).diagonal().mean()
    categories = sum(
        F.cross_entropy(head(view[:, 2 + index]), x.codes[:, index])
        for index, head in enumerate(pretext.categories)
    )
    predicted = (view[:, :2] * pretext.numbers.weight).sum(-1) + pretext.numbers.bias
    numbers = (predicted - x.numbers)[~x.absent].square().mean()
    expected = 0.5 * -(p + q) / 2 + categories + 10 * numbers
    assert math.isclose(loss.item(), expected.item(), rel_tol=1e-4)


def test_projections_of_wide_tables_are_bounded():
    pretext = make_pretext("contrastive", dim=512)
    assert [layer.out_features for layer in pretext.project[0][::2]] == [1024, 1024]
