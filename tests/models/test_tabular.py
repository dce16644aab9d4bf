"""Models of tables: equal to rtdl's code and to twins of the papers, for every wiring."""

import math

import pytest
import torch
import torch.nn.functional as F
from rtdl_revisiting_models import FTTransformer as Rtdl

from addnorm.core.errors import UserError
from addnorm.models.tabular import MODELS, Cells, TableConfig, build_table_model
from addnorm.models.tabular.cells import ABSENT, NO_TEXT, PADDING
from addnorm.models.tabular.numeric import make_numeric
from addnorm.models.tabular.numeric import registry as numeric_embeddings
from addnorm.stacks import Encoder
from addnorm.wirings import registry as wirings
from tests.helpers import shaken

CARDS = (5, 4)
TABLE = {"numbers": 3, "categories": tuple(size + 2 for size in CARDS), "outputs": 2}
SMALL = {"dim": 16, "depth": 2, "heads": 2}


def cells(rows=5, *, numbers=3, texts=0, seed=0):
    chance = torch.Generator().manual_seed(seed)
    codes = [torch.randint(2, 2 + size, (rows, 1), generator=chance) for size in CARDS]
    return Cells(
        torch.randn(rows, numbers, generator=chance),
        torch.zeros(rows, numbers, dtype=torch.bool),
        torch.cat(codes, 1),
        torch.randint(0, 4, (rows, texts, 3), generator=chance),
    )


def small(model, **changes):
    usual = {"tab_transformer": "post_ln", "saint": "res_post"}
    options = SMALL | TABLE | {"wiring": usual.get(model, "pre_ln(first_norm=False)")} | changes
    return shaken(build_table_model(TableConfig.of(model=model, **options), seed=0)).eval()


# FT-Transformer and rtdl's code


def copied(depth=3):
    """rtdl's model, and ours with its weights."""
    torch.manual_seed(0)
    options = {
        "n_blocks": depth,
        "d_block": 24,
        "attention_n_heads": 4,
        "attention_dropout": 0.0,
        "ffn_d_hidden": None,
        "ffn_d_hidden_multiplier": 4 / 3,
        "ffn_dropout": 0.0,
        "residual_dropout": 0.0,
    }
    theirs = shaken(Rtdl(n_cont_features=3, cat_cardinalities=list(CARDS), d_out=2, **options))
    theirs = theirs.eval()
    ours = small("ft_transformer", dim=24, depth=depth, heads=4)
    t, blocks = ours.tokens, theirs.backbone.blocks
    pairs = [
        (t.cls, theirs.cls_embedding.weight),
        (t.numeric.weight, theirs.cont_embeddings.weight),
        (t.numeric.bias, theirs.cont_embeddings.bias),
        (t.bias, theirs.cat_embeddings.bias),
        (ours.head.weight, theirs.backbone.output.linear.weight),
        (ours.head.bias, theirs.backbone.output.linear.bias),
        (ours.encoder.wiring.final_norm.weight, theirs.backbone.output.normalization.weight),
        (ours.encoder.wiring.final_norm.bias, theirs.backbone.output.normalization.bias),
    ]
    for place, table in enumerate(theirs.cat_embeddings.embeddings):
        start = int(t.offsets[place]) + 2
        pairs.append((t.table[start : start + CARDS[place]], table.weight))
    for number, block in enumerate(blocks):
        attention, ffn = ours.encoder.sublayers[2 * number : 2 * number + 2]
        theirs_in = block["ffn"].linear1
        pairs += [
            *_linear(attention.q_proj, block["attention"].W_q),
            *_linear(attention.k_proj, block["attention"].W_k),
            *_linear(attention.v_proj, block["attention"].W_v),
            *_linear(attention.out_proj, block["attention"].W_out),
            (ffn.up_proj.weight, theirs_in.weight[:32]),
            (ffn.gate_proj.weight, theirs_in.weight[32:]),
            (ffn.up_proj.bias, theirs_in.bias[:32]),
            (ffn.gate_proj.bias, theirs_in.bias[32:]),
            *_linear(ffn.down_proj, block["ffn"].linear2),
            *_linear(ours.encoder.wiring.norms[2 * number + 1], block["ffn_normalization"]),
        ]
        if number:
            norm = ours.encoder.wiring.norms[2 * number]
            pairs += _linear(norm, block["attention_normalization"])
    with torch.no_grad():
        for mine, other in pairs:
            mine.copy_(other)
    return ours, theirs


def _linear(mine, other):
    return [(mine.weight, other.weight), (mine.bias, other.bias)]


@pytest.mark.peer
def test_ft_transformer_equals_rtdl_on_copied_weights_with_gradients():
    ours, theirs = copied()
    x = cells(7)
    mine, other = ours(x), theirs(x.numbers, x.codes - 2)
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    for y in (mine, other):
        y.square().sum().backward()
    torch.testing.assert_close(
        ours.tokens.numeric.weight.grad, theirs.cont_embeddings.weight.grad, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        ours.encoder.sublayers[0].q_proj.weight.grad,
        theirs.backbone.blocks[0]["attention"].W_q.weight.grad,
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.peer
def test_every_layer_equals_rtdls_and_the_first_has_no_norm_before_its_attention():
    ours, theirs = copied()
    assert "attention_normalization" not in theirs.backbone.blocks[0]
    assert not list(ours.encoder.wiring.norms[0].parameters())
    x, seen = cells(7), []
    hooks = [
        block["output"].register_forward_hook(lambda _module, _inputs, out: seen.append(out))
        for block in theirs.backbone.blocks
    ]
    theirs(x.numbers, x.codes - 2)
    for hook in hooks:
        hook.remove()
    with ours.encoder.taps.record() as tape:
        ours(x)
    after_each_layer = tape["stream"][1::2]
    for mine, other in zip(after_each_layer[:-1], seen[:-1], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    # In the last block their package writes the first token's update into all tokens.
    torch.testing.assert_close(after_each_layer[-1][:, 0], seen[-1][:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wiring", wirings)
def test_the_first_token_alone_is_the_first_of_all_tokens(wiring):
    model = small("ft_transformer", wiring=wiring)
    tokens = model.tokens(cells())
    alone = model.encoder(tokens)
    assert alone.shape[1] == 1
    torch.testing.assert_close(
        alone, Encoder.forward(model.encoder, tokens)[:, :1], rtol=1e-4, atol=1e-5
    )


def test_norms_over_tokens_see_all_of_them():
    model = small("ft_transformer", norm="instance")
    tokens = model.tokens(cells())
    torch.testing.assert_close(model.encoder(tokens), model.encoder.whole(tokens)[:, :1])


def test_a_model_whose_branches_are_zero_answers_from_its_first_token_alone():
    model = small("ft_transformer")
    with torch.no_grad():
        for sublayer in model.encoder.sublayers:
            for parameter in sublayer.parameters():
                parameter.zero_()
    answers = model(cells(4))
    torch.testing.assert_close(answers, answers[:1].expand(4, -1))


# Twins of the papers


def attention(x, layer, heads):
    """Textbook attention over the second last axis."""
    q, k, v = (part(x) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(-2, -3) for part in (q, k, v))
    p = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return layer.out_proj((p @ v).transpose(-2, -3).flatten(-2))


def reglu(x, ffn):
    return ffn.down_proj(ffn.up_proj(x) * ffn.gate_proj(x).relu())


def test_tab_transformer_equals_a_twin_of_its_paper():
    model, x = small("tab_transformer"), cells(6)
    x.absent[1, 2] = True
    x.numbers[1, 2] = 0
    table, offsets = model.tokens.table, model.tokens.offsets
    rows = []
    for row in range(6):
        columns = []
        for place in range(2):
            value = table[offsets[place] + x.codes[row, place]] + model.tokens.bias[place]
            columns.append(torch.cat((model.columns[place], value)))
        z = torch.stack(columns)
        for number in range(2):
            one, two = model.encoder.sublayers[2 * number : 2 * number + 2]
            norms = model.encoder.wiring.norms[2 * number : 2 * number + 2]
            z = norms[0](z + attention(z, one, 2))
            z = norms[1](z + reglu(z, two))
        numbers = F.layer_norm(x.numbers[row], (3,), model.scale.weight, model.scale.bias)
        numbers = torch.where(x.absent[row], 0.0, numbers)
        rows.append(torch.cat((z.flatten(), numbers, x.absent[row].float())))
    h = torch.stack(rows)
    for place in (0, 3):
        h = model.layers[place](h).relu()
    torch.testing.assert_close(model(x), model.head(h), rtol=1e-4, atol=1e-5)


def test_in_tab_transformer_numbers_never_reach_the_attention_and_columns_share_a_part():
    model, x = small("tab_transformer"), cells()
    other = x._replace(numbers=x.numbers.square())  # a shift alone its norm would undo
    assert torch.equal(model.states(x), model.states(other))
    assert model.columns.shape == (2, 2)  # dim / 8
    assert not torch.allclose(model(x), model(other))


def test_saint_equals_a_twin_of_its_paper():
    """z + LN(f(z)) for columns, feed-forward, rows and feed-forward."""
    model, x = small("saint", depth=1), cells(6)
    z = model.tokens(x)
    columns, first, rows, second = model.stack.sublayers
    norms = model.stack.wiring.norms
    z = z + norms[0](attention(z, columns, 2))
    z = z + norms[1](reglu(z, first))
    z = z + norms[2](attention(z.flatten(1), rows.attention, 2).view_as(z))
    z = z + norms[3](reglu(z, second))
    y = model.stack.wiring.close((z,))
    torch.testing.assert_close(model(x), model.head(y[:, 0].relu()), rtol=1e-4, atol=1e-5)


def test_rows_of_saint_see_each_other_in_training_and_reference_rows_at_prediction():
    model, x = small("saint"), cells(6)
    alone = x.rows(slice(0, 1))
    assert not torch.allclose(model(x)[:1], model(alone))
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    torch.testing.assert_close(model(x)[order], model(x.rows(order)))
    memory = model.remember(cells(9, seed=1))
    torch.testing.assert_close(model(x, memory)[:1], model(alone, memory))
    assert not torch.allclose(model(alone, memory), model(alone, model.remember(cells(9, seed=2))))


def test_a_remembered_row_is_seen_as_in_a_batch():
    """A row beside reference rows gets what it got in one batch with them, if they ignore it."""
    model, reference = small("saint", depth=1), cells(9, seed=1)
    x = cells(1)
    batch = Cells(*(torch.cat(both) for both in zip(reference, x, strict=True)))
    torch.testing.assert_close(model(batch)[-1:], model(x, model.remember(reference)))


# All models


@pytest.mark.parametrize("wiring", wirings)
@pytest.mark.parametrize("model", ["tab_transformer", "saint", "mlp"])
def test_every_model_takes_every_wiring(model, wiring):
    made = small(model, wiring=wiring).train()
    y = made(cells())
    assert y.shape == (5, 2)
    y.square().mean().backward()
    made.after_step()
    assert all(p.grad is None or p.grad.isfinite().all() for p in made.parameters())


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "table",
    [
        {"numbers": 3, "categories": (), "texts": ()},
        {"numbers": 0, "categories": (7, 6), "texts": ()},
        {"numbers": 0, "categories": (), "texts": (4,)},
        {"numbers": 1, "categories": (7, 6), "texts": (4, 4)},
    ],
)
def test_tables_may_lack_numbers_categories_or_texts(model, table):
    made = small(model, **table)
    x = cells(4, numbers=table["numbers"], texts=len(table["texts"]))
    x = x._replace(codes=x.codes[:, : len(table["categories"])])
    assert made(x).isfinite().all()
    assert made.embed(x).shape == (4, made.width)
    told = range(made.config.features)[made.told]
    assert made.states(x).shape[1] == max(len(told), 1)


def test_permuting_numeric_columns_with_their_parameters_changes_nothing():
    model, x = small("ft_transformer"), cells()
    order = torch.tensor([2, 0, 1])
    before = model(x)
    with torch.no_grad():
        for weight in (model.tokens.numeric.weight, model.tokens.numeric.bias, model.tokens.absent):
            weight.copy_(weight[order].clone())
    after = model(x._replace(numbers=x.numbers[:, order], absent=x.absent[:, order]))
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)


def test_an_absent_number_is_a_token_of_its_own_and_gets_a_gradient():
    model, x = small("ft_transformer"), cells()
    x.absent[:, 1] = True
    tokens = model.tokens(x)
    torch.testing.assert_close(tokens[:, 2], model.tokens.absent[1].expand(5, -1))
    model(x).sum().backward()
    assert model.tokens.absent.grad[1].abs().sum() > 0
    assert model.tokens.absent.grad[0].abs().sum() == 0


def test_words_are_a_bag():
    model = small("ft_transformer", texts=(5,))
    x = cells(texts=1)._replace(
        words=torch.tensor([[[2, 3, PADDING]], [[3, 2, PADDING]]] + [[[4, 0, 0]]] * 3)
    )
    tokens = model.tokens(x)[:, -1]
    start = int(model.tokens.offsets[2])
    wanted = (model.tokens.table[start + 2] + model.tokens.table[start + 3]) / math.sqrt(2)
    torch.testing.assert_close(tokens[0], wanted + model.tokens.bias[2])
    torch.testing.assert_close(tokens[0], tokens[1])


def test_hidden_cells_are_absent():
    x = cells(3, texts=1)
    where = torch.zeros(3, 6, dtype=torch.bool)
    where[0] = True
    y = x.hidden(where)
    assert y.absent[0].all() and (y.numbers[0] == 0).all() and (y.codes[0] == ABSENT).all()
    assert y.words[0, 0].tolist() == [NO_TEXT, PADDING, PADDING]
    assert torch.equal(y.numbers[1:], x.numbers[1:]) and torch.equal(y.codes[1:], x.codes[1:])


# Numeric embeddings


def test_a_piecewise_embedding_is_linear_between_quantiles():
    made = make_numeric("piecewise(bins=4)", 1, 6)
    x = torch.arange(101.0)[:, None]
    made.learn(x, absent=torch.zeros_like(x, dtype=torch.bool), weights=torch.ones(101))
    assert made.edges[0].tolist() == [0, 25, 50, 75, 100]
    with torch.no_grad():
        made.weight.normal_(generator=torch.Generator().manual_seed(0))
    for at, shares in ((30.0, [1, 0.2, 0, 0]), (-5.0, [0, 0, 0, 0]), (200.0, [1, 1, 1, 1])):
        point = torch.tensor([[at]])
        wanted = (
            torch.tensor(shares, dtype=torch.float32) @ made.weight[0] + made.linear(point)[0, 0]
        )
        torch.testing.assert_close(made(point)[0, 0], wanted)


def test_a_column_of_one_value_has_bins_without_width():
    made = make_numeric("piecewise(bins=4)", 1, 6)
    x = torch.full((9, 1), 2.0)
    made.learn(x, absent=torch.zeros_like(x, dtype=torch.bool), weights=torch.ones(9))
    assert made(x).isfinite().all()


def test_a_periodic_embedding_is_its_formula():
    made = shaken(make_numeric("periodic(waves=3)", 2, 5))
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    for column in range(2):
        angle = 2 * math.pi * x[:, column, None] * made.frequencies[column]
        waves = torch.cat((angle.sin(), angle.cos()), 1)
        wanted = (waves @ made.weight[column] + made.bias[column]).relu()
        torch.testing.assert_close(made(x)[:, column], wanted)


@pytest.mark.parametrize("name", numeric_embeddings)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_takes_every_numeric_embedding(model, name):
    assert small(model, numeric=name)(cells()).isfinite().all()


# Refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"numbers": 0, "categories": ()}, "a table needs at least one column, got none"),
        ({"dimm": 3}, "a config has no 'dimm'; did you mean 'dim'"),
        ({"numeric": "linera"}, "unknown numeric embedding 'linera'; did you mean 'linear'?"),
        ({"numeric": "piecewise(bin=3)"}, "has no option 'bin'; did you mean 'bins'?"),
        ({"wiring": "postln"}, "unknown wiring 'postln'"),
        ({"heads": 3}, "dim 16 cannot be split into 3 heads"),
    ],
)
def test_mistakes_are_told(changes, words):
    with pytest.raises(UserError, match=words.replace("(", r"\(").replace("?", r"\?")):
        small("ft_transformer", **changes)
