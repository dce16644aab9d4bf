"""Members: equality with the `tabm` package, for every wiring, and average of the predictions."""

import pytest
import rtdl_num_embeddings
import tabm
import torch

from addnorm.models.tabular import TableBatch, TableConfig, build_table_model
from addnorm.models.tabular.members import MemberLinear, MemberScale, average_members
from addnorm.tabular.training.loop import WeightedBatch, compute_losses
from addnorm.tabular.training.number_targets import NumberTarget
from addnorm.tabular.training.targets import ClassTarget
from addnorm.wirings import registry as wirings
from tests.helpers import perturb

MEMBERS, NUMBERS, BINS, CELL = 5, 3, 6, 8


def make_numbers(rows=7):
    numbers = torch.randn(rows, NUMBERS, generator=torch.Generator().manual_seed(0)).clamp(-2, 2)
    none = torch.zeros(rows, 0, dtype=torch.int64)
    return TableBatch(numbers, torch.zeros(rows, NUMBERS, dtype=torch.bool), none, none[:, :, None])


def small_model(model, **changes):
    options = {"dim": 16, "depth": 2, "heads": 2, "members": MEMBERS} | changes
    config = TableConfig(model=model, numbers=NUMBERS, outputs=2, **options)
    return perturb(build_table_model(config, seed=0)).eval()


def test_mlp_equals_tabm_on_copied_weights_with_gradients():
    """The residual of `none` is cancelled, since the network of tabm has none."""
    torch.manual_seed(0)
    edges = torch.linspace(-3, 3, BINS + 1)
    embeddings = rtdl_num_embeddings.PiecewiseLinearEmbeddings(
        [edges] * NUMBERS, CELL, activation=False, version="B"
    )
    width, inputs = 12, NUMBERS * CELL
    theirs = perturb(
        tabm.TabM.make(
            n_num_features=NUMBERS, d_out=2, num_embeddings=embeddings, k=MEMBERS,
            arch_type="tabm-mini", n_blocks=2, d_block=width, dropout=0.0,
        )
    )  # fmt: skip
    config = TableConfig(
        model="mlp", numbers=NUMBERS, outputs=2, members=MEMBERS, wiring="none", depth=1,
        numeric=f"piecewise(bins={BINS})", dim=inputs + width, ffn_dim=2 * inputs + width,
        activation="relu",
    )  # fmt: skip
    ours = build_table_model(config, seed=0)
    ffn, identity = ours.stack.sublayers[0], torch.eye(inputs)
    (first, *_), (second, *_) = theirs.backbone.blocks
    with torch.no_grad():
        for parameter in (*ours.join.parameters(), *ffn.parameters(), ours.head.weight):
            parameter.zero_()
        numeric = ours.tokens.numeric
        numeric.edges.copy_(edges)
        numeric.weight.copy_(embeddings.linear.weight)
        numeric.linear.weight.copy_(embeddings.linear0.weight)
        numeric.linear.bias.copy_(embeddings.linear0.bias)
        ours.member_scale.weight.copy_(theirs.backbone.affine.weight.view(MEMBERS, NUMBERS, CELL))
        ours.join.weight[:inputs] = identity
        ffn.up_proj.weight[:, :inputs] = torch.cat((first.weight, identity, -identity))
        ffn.up_proj.bias[:width] = first.bias
        ffn.down_proj.weight[:inputs, width:] = torch.cat((-identity, identity), 1)
        ffn.down_proj.weight[inputs:, :width] = second.weight
        ffn.down_proj.bias[inputs:] = second.bias
        ours.head.weight[:, :, inputs:] = theirs.output.weight.mT
        ours.head.bias.copy_(theirs.output.bias)
    cells = make_numbers()
    expected, got = theirs(cells.numbers), ours.forward_members(cells)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert (got[:, 0] - got[:, 1]).abs().max() > 1e-2
    targets = torch.arange(7) % 2
    batch = WeightedBatch(cells, targets, torch.ones(7))
    compute_losses(ours, batch, ClassTarget(2)).mean().backward()
    torch.nn.functional.cross_entropy(
        expected.flatten(0, 1), targets.repeat_interleave(MEMBERS)
    ).backward()
    for mine, other in (
        (ours.member_scale.weight.grad.flatten(1), theirs.backbone.affine.weight.grad),
        (ours.head.weight.grad[:, :, inputs:], theirs.output.weight.grad.mT),
        (ours.head.bias.grad, theirs.output.bias.grad),
        (ffn.down_proj.weight.grad[inputs:, :width], second.weight.grad),
        (ours.tokens.numeric.weight.grad, embeddings.linear.weight.grad),
    ):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


def test_ft_transformer_equals_the_layers_of_tabm():
    model = small_model("ft_transformer")
    affine = tabm.ElementwiseAffine(
        (MEMBERS, 1 + NUMBERS, 16), bias=False, scaling_init="normal", scaling_init_chunks=None
    )
    output = tabm.LinearEnsemble(16, 2, k=MEMBERS)
    with torch.no_grad():
        affine.weight.copy_(model.member_scale.weight)
        output.weight.copy_(model.head.weight.mT)
        output.bias.copy_(model.head.bias)
    cells = make_numbers()
    tokens = affine(model.tokens(cells)[:, None].expand(-1, MEMBERS, -1, -1))
    members = [model.encoder(tokens[:, index])[:, 0] for index in range(MEMBERS)]
    expected = output(torch.stack(members, 1).relu())
    torch.testing.assert_close(model.forward_members(cells), expected, rtol=1e-5, atol=1e-5)


def test_scale_starts_like_tabm_with_one_value_for_each_token():
    torch.manual_seed(0)
    weight = MemberScale(200, 30, 4).weight.detach()
    assert (weight == weight[..., :1]).all()
    assert abs(float(weight.mean())) < 0.05 and abs(float(weight.std()) - 1) < 0.05


@pytest.mark.parametrize("model", ["mlp", "ft_transformer"])
@pytest.mark.parametrize("wiring", wirings)
def test_members_are_separate_networks_in_every_wiring(model, wiring):
    """Each member equals a model of two members that are both this one."""
    model = small_model(model, wiring=wiring)
    cells = make_numbers()
    outputs = model.forward_members(cells)
    assert outputs.shape == (7, MEMBERS, 2)
    for name in ("member_scale.weight", "head.weight", "head.bias"):
        parameter = model.get_parameter(name)
        with torch.no_grad():
            parameter.copy_(parameter[2:3].expand_as(parameter))
    copies = model.forward_members(cells)
    torch.testing.assert_close(copies[:, 0], outputs[:, 2], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(copies[:, 0], copies[:, -1], rtol=1e-4, atol=1e-5)


def test_member_linear_equals_separate_layers():
    layer = MemberLinear(3, 4, 2)
    x = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0))
    expected = torch.stack([x[:, i] @ layer.weight[i].T + layer.bias[i] for i in range(3)], 1)
    torch.testing.assert_close(layer(x), expected)


def test_average_is_of_probabilities_or_of_outputs():
    outputs = 3 * torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(0))
    averaged = average_members(outputs, "probabilities").softmax(-1)
    torch.testing.assert_close(averaged, outputs.softmax(-1).mean(1))
    assert (averaged - outputs.mean(1).softmax(-1)).abs().max() > 1e-2
    torch.testing.assert_close(average_members(outputs, "outputs"), outputs.mean(1))


def test_loss_is_the_mean_of_the_losses_of_members():
    model = build_table_model(TableConfig(model="mlp", numbers=3, outputs=1, members=4), seed=0)
    cells, targets = make_numbers(), torch.linspace(-1, 1, 7)
    losses = compute_losses(
        model, WeightedBatch(cells, targets, torch.ones(7)), NumberTarget(0.0, 1.0)
    )
    outputs = model.forward_members(cells)[..., 0]
    torch.testing.assert_close(losses, (outputs - targets[:, None]).square().mean(1))
    assert (losses > (model(cells)[:, 0] - targets).square()).all()


@pytest.mark.parametrize("model", ["mlp", "ft_transformer"])
def test_scale_and_biases_of_members_do_not_decay(model):
    model = small_model(model)
    assert {"member_scale.weight", "head.bias"} <= model.no_decay()
    assert "head.weight" not in model.no_decay()
    assert model.embed(make_numbers()).shape == (7, 16)
    assert model.states(make_numbers()).shape == (7, NUMBERS, 16)
