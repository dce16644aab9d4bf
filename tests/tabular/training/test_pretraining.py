"""What pre-training asks of rows."""

import math

import torch
import torch.nn.functional as F

from addnorm.models.tabular import TableBatch, TableConfig, build_table_model
from addnorm.models.tabular.table_batch import ABSENT
from addnorm.tabular.training.pretraining import PretextModel

ROWS = 12


def cells(same=False):
    chance = torch.Generator().manual_seed(0)
    numbers = torch.randn(ROWS, 2, generator=chance)
    absent = torch.zeros(ROWS, 2, dtype=torch.bool)
    absent[0, 0] = True
    codes = torch.randint(2, 5, (ROWS, 2), generator=chance)
    made = TableBatch(numbers.masked_fill(absent, 0), absent, codes, codes[:, :0, None])
    return made.select_rows(torch.zeros(ROWS, dtype=torch.int64)) if same else made


def pretext(objective, model="saint", **changes):
    options = {"dim": 8, "heads": 2, "depth": 1, "activation": "geglu"} | changes
    table = {"numbers": 2, "categories": (5, 5), "outputs": 1}
    config = TableConfig.from_kwargs(model=model, wiring="res_post", **table, **options)
    return PretextModel(build_table_model(config, seed=0), objective).eval()


def test_only_cells_unlike_the_rows_own_count_as_replaced():
    made, met = pretext("replaced"), []
    made._replacement_loss = lambda states, where: met.append(where) or states.sum()
    made.loss(cells(same=True))
    made.loss(cells())
    assert not met[0].any()
    assert 0.1 < met[1].float().mean() < 0.3  # of 0.3 that were drawn, some are equal


def test_absent_cells_are_not_asked_for():
    made, x = pretext("masked"), cells()
    everywhere = torch.ones(ROWS, 4, dtype=torch.bool)
    states = made.model.states(x)
    nothing = x._replace(codes=torch.full_like(x.codes, ABSENT), absent=torch.ones_like(x.absent))
    assert [part.item() for part in made._reconstruction_losses(states, nothing, everywhere)] == [
        0,
        0,
    ]
    wanted = [
        F.cross_entropy(head(states[:, 2 + place]), x.codes[:, place])
        for place, head in enumerate(made.categories)
    ]
    torch.testing.assert_close(made._reconstruction_losses(states, x, everywhere)[1], sum(wanted))


def test_the_contrastive_loss_is_that_of_the_released_code():
    """0.5 * mean of both cross entropies + categories + 10 * numbers, of a mixed view."""
    made, x = pretext("contrastive"), cells()
    torch.manual_seed(3)
    loss = made.loss(x)
    torch.manual_seed(3)
    other = x.select_rows(torch.randperm(ROWS))
    mixed = x.replace_cells(other, torch.rand(ROWS, 4) < 0.3)
    shuffled = torch.randperm(ROWS)
    tokens = made.model.tokens(mixed)
    view = made.model.stack(0.8 * tokens + 0.2 * tokens[shuffled])[:, 1:]
    plain = made.model.stack(made.model.tokens(x))[:, 1:]
    one, two = (each / each.norm(dim=-1, keepdim=True) for each in (plain, view))
    one, two = made.project[0](one.flatten(1)), made.project[1](two.flatten(1))
    assert one.shape == (ROWS, 16)  # half of 4 cells of 8
    p = (one @ two.T / 0.7).log_softmax(1).diagonal().mean()
    q = (two @ one.T / 0.7).log_softmax(1).diagonal().mean()
    categories = sum(
        F.cross_entropy(head(view[:, 2 + place]), x.codes[:, place])
        for place, head in enumerate(made.categories)
    )
    said = (view[:, :2] * made.numbers.weight).sum(-1) + made.numbers.bias
    numbers = (said - x.numbers)[~x.absent].square().mean()
    wanted = 0.5 * -(p + q) / 2 + categories + 10 * numbers
    assert math.isclose(loss.item(), wanted.item(), rel_tol=1e-4)


def test_projections_of_wide_tables_are_bounded():
    made = pretext("contrastive", dim=512)
    assert [layer.out_features for layer in made.project[0][::2]] == [1024, 1024]
