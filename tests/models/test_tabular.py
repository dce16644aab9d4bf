"""Table models: equality with rtdl's code and with references of the papers, for every wiring."""

import math

import pytest
import torch
import torch.nn.functional as F
from rtdl_revisiting_models import FTTransformer as Rtdl

from addnorm.core.errors import UserError
from addnorm.models.tabular import MODELS, TableBatch, TableConfig, build_table_model
from addnorm.models.tabular.numeric_embeddings import make_numeric_embedding
from addnorm.models.tabular.numeric_embeddings import registry as numeric_embeddings
from addnorm.models.tabular.table_batch import ABSENT, NO_TEXT, PADDING
from addnorm.stacks import Encoder
from addnorm.wirings import registry as wirings
from tests.helpers import perturb

CARDS = (5, 4)
TABLE = {"numbers": 3, "categories": tuple(size + 2 for size in CARDS), "outputs": 2}
SMALL = {"dim": 16, "depth": 2, "heads": 2}
QUIET = {"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0}


def make_cells(rows=5, *, numbers=3, texts=0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    codes = [torch.randint(2, 2 + size, (rows, 1), generator=generator) for size in CARDS]
    return TableBatch(
        torch.randn(rows, numbers, generator=generator),
        torch.zeros(rows, numbers, dtype=torch.bool),
        torch.cat(codes, 1),
        torch.randint(0, 4, (rows, texts, 3), generator=generator),
    )


def small_model(model, **changes):
    options = MODELS[model].defaults | {"numeric": "linear"} | QUIET | SMALL | TABLE | changes
    return perturb(build_table_model(TableConfig(model=model, **options), seed=0)).eval()


# FT-Transformer and rtdl's code


def build_ours_and_rtdl(depth=3):
    """Return our model with the weights of rtdl's, and rtdl's."""
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
    theirs = perturb(Rtdl(n_cont_features=3, cat_cardinalities=list(CARDS), d_out=2, **options))
    theirs = theirs.eval()
    ours = small_model("ft_transformer", dim=24, depth=depth, heads=4)
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
            *_pair_weights(attention.q_proj, block["attention"].W_q),
            *_pair_weights(attention.k_proj, block["attention"].W_k),
            *_pair_weights(attention.v_proj, block["attention"].W_v),
            *_pair_weights(attention.out_proj, block["attention"].W_out),
            (ffn.up_proj.weight, theirs_in.weight[:32]),
            (ffn.gate_proj.weight, theirs_in.weight[32:]),
            (ffn.up_proj.bias, theirs_in.bias[:32]),
            (ffn.gate_proj.bias, theirs_in.bias[32:]),
            *_pair_weights(ffn.down_proj, block["ffn"].linear2),
            *_pair_weights(ours.encoder.wiring.norms[2 * number + 1], block["ffn_normalization"]),
        ]
        if number:
            norm = ours.encoder.wiring.norms[2 * number]
            pairs += _pair_weights(norm, block["attention_normalization"])
    with torch.no_grad():
        for mine, other in pairs:
            mine.copy_(other)
    return ours, theirs


def _pair_weights(mine, other):
    return [(mine.weight, other.weight), (mine.bias, other.bias)]


@pytest.mark.peer
def test_ft_transformer_equals_rtdl_on_copied_weights_with_gradients():
    ours, theirs = build_ours_and_rtdl()
    x = make_cells(7)
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
def test_every_layer_equals_rtdl_and_the_first_has_no_attention_norm():
    ours, theirs = build_ours_and_rtdl()
    assert "attention_normalization" not in theirs.backbone.blocks[0]
    assert not list(ours.encoder.wiring.norms[0].parameters())
    x, outputs = make_cells(7), []
    hooks = [
        block["output"].register_forward_hook(lambda _module, _inputs, out: outputs.append(out))
        for block in theirs.backbone.blocks
    ]
    theirs(x.numbers, x.codes - 2)
    for hook in hooks:
        hook.remove()
    with ours.encoder.taps.record() as tape:
        ours(x)
    after_each_layer = tape["stream"][1::2]
    for mine, other in zip(after_each_layer[:-1], outputs[:-1], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)
    # In its last block, rtdl writes the update of the first token into all tokens.
    torch.testing.assert_close(after_each_layer[-1][:, 0], outputs[-1][:, 0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("wiring", wirings)
def test_first_token_encoder_equals_full_encoder(wiring):
    model = small_model("ft_transformer", wiring=wiring)
    tokens = model.tokens(make_cells())
    first = model.encoder(tokens)
    assert first.shape[1] == 1
    torch.testing.assert_close(
        first, Encoder.forward(model.encoder, tokens)[:, :1], rtol=1e-4, atol=1e-5
    )


def test_first_token_encoder_with_norms_over_tokens():
    model = small_model("ft_transformer", norm="instance")
    tokens = model.tokens(make_cells())
    torch.testing.assert_close(model.encoder(tokens), model.encoder.all_tokens(tokens)[:, :1])


def test_zero_branches_give_a_constant_prediction():
    model = small_model("ft_transformer")
    with torch.no_grad():
        for sublayer in model.encoder.sublayers:
            for parameter in sublayer.parameters():
                parameter.zero_()
    outputs = model(make_cells(4))
    torch.testing.assert_close(outputs, outputs[:1].expand(4, -1))


# References of the papers


def torch_encoder_layer(ours, norms, *, dim, heads):
    """Return PyTorch's Post-LN encoder layer with the weights of two of our sub-layers."""
    theirs = torch.nn.TransformerEncoderLayer(
        dim, heads, 4 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=False
    )
    attention, ffn = ours
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    pairs = [
        (theirs.self_attn.in_proj_weight, torch.cat([part.weight for part in qkv])),
        (theirs.self_attn.in_proj_bias, torch.cat([part.bias for part in qkv])),
        *_pair_weights(theirs.self_attn.out_proj, attention.out_proj),
        *_pair_weights(theirs.linear1, ffn.up_proj),
        *_pair_weights(theirs.linear2, ffn.down_proj),
        *_pair_weights(theirs.norm1, norms[0]),
        *_pair_weights(theirs.norm2, norms[1]),
    ]
    with torch.no_grad():
        for mine, other in pairs:
            mine.copy_(other)
    return theirs.train()  # avoids the fast path of evaluation mode; there is no dropout


def test_tab_transformer_equals_torch_layers_and_an_mlp():
    """Huang et al. 2020: [c_j ; w_j], Post-LN layers, LayerNorm of numbers, 4 l and 2 l, relu."""
    model, x = small_model("tab_transformer", dim=32, depth=3, heads=8), make_cells(6)
    x.absent[1, 2] = True
    x.numbers[1, 2] = 0
    codes = x.codes + torch.tensor([0, CARDS[0] + 2])
    values = F.embedding(codes, model.tokens.table) + model.tokens.bias  # (6, 2, 28)
    z = torch.cat((model.columns.expand(6, 2, 4), values), -1)
    for number in range(3):
        part = slice(2 * number, 2 * number + 2)
        norms = model.encoder.wiring.norms[part]
        z = torch_encoder_layer(model.encoder.sublayers[part], norms, dim=32, heads=8)(z)
    numbers = F.layer_norm(x.numbers, (3,), model.scale.weight, model.scale.bias)
    numbers = numbers.masked_fill(x.absent, 0.0)
    h = torch.cat((z.flatten(1), numbers, x.absent.float()), 1)
    assert [model.layers[0].out_features, model.layers[3].out_features] == [
        *(4 * h.shape[1], 2 * h.shape[1])
    ]
    for layer in (model.layers[0], model.layers[3]):
        h = F.relu(h @ layer.weight.T + layer.bias)
    expected = h @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("numbers", [1, 2])
def test_tab_transformer_does_not_normalize_one_or_two_numbers(numbers):
    model, x = small_model("tab_transformer", numbers=numbers), make_cells(numbers=numbers)
    assert not torch.allclose(model(x), model(x._replace(numbers=2 * x.numbers + 1)))


def test_tab_transformer_numbers_bypass_attention():
    model, x = small_model("tab_transformer"), make_cells()
    other = x._replace(numbers=x.numbers.square())  # the norm would undo a shift
    assert torch.equal(model.states(x), model.states(other))
    assert model.columns.shape == (2, 2)  # dim / 8
    assert not torch.allclose(model(x), model(other))


def saint_attention(x, weights, heads):
    """Attend over the second last axis, with a bias in the output projection only."""
    q, k, v = (F.linear(x, weights[f"{name}_proj.weight"]) for name in "qkv")
    width = q.shape[-1] // heads
    q, k, v = (part.unflatten(-1, (heads, width)) for part in (q, k, v))
    logits = torch.einsum("...ihd,...jhd->...hij", q, k) / math.sqrt(width)
    values = torch.einsum("...hij,...jhd->...ihd", logits.softmax(-1), v).flatten(-2)
    return F.linear(values, weights["out_proj.weight"], weights["out_proj.bias"])


def saint_feed_forward(x, weights):
    """Apply a GEGLU feed-forward of width 4 * dim."""
    both = torch.cat((weights["up_proj.weight"], weights["gate_proj.weight"]))
    biases = torch.cat((weights["up_proj.bias"], weights["gate_proj.bias"]))
    values, gates = F.linear(x, both, biases).chunk(2, dim=-1)
    return F.linear(values * F.gelu(gates), weights["down_proj.weight"], weights["down_proj.bias"])


def named_weights(module):
    return dict(module.named_parameters())


def test_saint_equals_its_formula():
    """Somepalli et al. 2021: z + LN(f(z)) for columns, feed-forward, rows, feed-forward."""
    config = {name: MODELS["saint"].defaults[name] for name in ("dim", "depth", "heads", "numeric")}
    assert config == {"dim": 32, "depth": 1, "heads": 4, "numeric": "mlp"}
    model, x = small_model("saint", **config), make_cells(6)
    tokens, first = model.tokens, model.tokens.numeric
    numbers = [
        F.linear(
            F.relu(F.linear(x.numbers[:, [j]], first.inner[j][:, None], first.inner_bias[j])),
            first.weight[j].T,
            first.bias[j],
        )
        for j in range(3)
    ]
    codes = x.codes + torch.tensor([0, CARDS[0] + 2])
    categories = F.embedding(codes, tokens.table) + tokens.bias
    z = torch.cat((tokens.cls.expand(6, 1, 32), torch.stack(numbers, 1), categories), 1)
    columns, one, rows, two = map(named_weights, model.stack.sublayers)
    rows = {name.removeprefix("attention."): weight for name, weight in rows.items()}
    assert columns["q_proj.weight"].shape == (4 * 16, 32)
    assert rows["q_proj.weight"].shape == (4 * 64, 6 * 32)
    assert one["up_proj.weight"].shape == (4 * 32, 32)

    def add_normalized(z, branch, norm):
        return z + F.layer_norm(branch, (32,), norm.weight, norm.bias)

    norms = model.stack.wiring.norms
    z = add_normalized(z, saint_attention(z, columns, 4), norms[0])
    z = add_normalized(z, saint_feed_forward(z, one), norms[1])
    z = add_normalized(z, saint_attention(z.reshape(1, 6, -1), rows, 4).reshape(z.shape), norms[2])
    z = add_normalized(z, saint_feed_forward(z, two), norms[3])
    last = model.stack.wiring.final_norm  # of the wiring; paper and released code have none
    cls = F.layer_norm(z[:, 0], (32,), last.weight, last.bias)
    assert model.hidden.weight.shape == (1000, 32)
    hidden = F.relu(F.linear(cls, model.hidden.weight, model.hidden.bias))
    expected = F.linear(hidden, model.head.weight, model.head.bias)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)


def test_saint_rows_attend_to_each_other_or_to_reference_rows():
    model, x = small_model("saint"), make_cells(6)
    alone = x.select_rows(slice(0, 1))
    assert not torch.allclose(model(x)[:1], model(alone))
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    torch.testing.assert_close(model(x)[order], model(x.select_rows(order)), rtol=1e-4, atol=1e-4)
    memory = model.encode_reference(make_cells(9, seed=1))
    torch.testing.assert_close(model(x, memory)[:1], model(alone, memory))
    assert not torch.allclose(
        model(alone, memory), model(alone, model.encode_reference(make_cells(9, seed=2)))
    )


def test_reference_rows_equal_rows_of_the_batch():
    """With depth 1, a row gets the same output from reference rows as in one batch with them."""
    model, reference = small_model("saint", depth=1), make_cells(9, seed=1)
    x = make_cells(1)
    batch = TableBatch(*(torch.cat(both) for both in zip(reference, x, strict=True)))
    torch.testing.assert_close(model(batch)[-1:], model(x, model.encode_reference(reference)))


# All models


@pytest.mark.parametrize("wiring", wirings)
@pytest.mark.parametrize("model", ["tab_transformer", "saint", "mlp"])
def test_every_model_takes_every_wiring(model, wiring):
    module = small_model(model, wiring=wiring).train()
    y = module(make_cells())
    assert y.shape == (5, 2)
    y.square().mean().backward()
    module.after_step()
    assert all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())


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
    module = small_model(model, **table)
    x = make_cells(4, numbers=table["numbers"], texts=len(table["texts"]))
    x = x._replace(codes=x.codes[:, : len(table["categories"])])
    assert module(x).isfinite().all()
    assert module.embed(x).shape == (4, module.width)
    covered = range(module.config.features)[module.covered_features]
    assert module.states(x).shape[1] == max(len(covered), 1)


def test_permuted_numeric_columns_with_permuted_parameters():
    model, x = small_model("ft_transformer"), make_cells()
    order = torch.tensor([2, 0, 1])
    before = model(x)
    with torch.no_grad():
        for weight in (model.tokens.numeric.weight, model.tokens.numeric.bias, model.tokens.absent):
            weight.copy_(weight[order].clone())
    after = model(x._replace(numbers=x.numbers[:, order], absent=x.absent[:, order]))
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)


def test_missing_numbers_have_a_learned_token():
    model, x = small_model("ft_transformer"), make_cells()
    x.absent[:, 1] = True
    tokens = model.tokens(x)
    torch.testing.assert_close(tokens[:, 2], model.tokens.absent[1].expand(5, -1))
    model(x).sum().backward()
    assert model.tokens.absent.grad[1].abs().sum() > 0
    assert model.tokens.absent.grad[0].abs().sum() == 0


def test_word_order_does_not_matter():
    model = small_model("ft_transformer", texts=(5,))
    x = make_cells(texts=1)._replace(
        words=torch.tensor([[[2, 3, PADDING]], [[3, 2, PADDING]]] + [[[4, 0, 0]]] * 3)
    )
    tokens = model.tokens(x)[:, -1]
    start = int(model.tokens.offsets[2])
    expected = (model.tokens.table[start + 2] + model.tokens.table[start + 3]) / math.sqrt(2)
    torch.testing.assert_close(tokens[0], expected + model.tokens.bias[2])
    torch.testing.assert_close(tokens[0], tokens[1])


def test_masked_cells_are_missing():
    x = make_cells(3, texts=1)
    mask = torch.zeros(3, 6, dtype=torch.bool)
    mask[0] = True
    y = x.masked(mask)
    assert y.absent[0].all() and (y.numbers[0] == 0).all() and (y.codes[0] == ABSENT).all()
    assert y.words[0, 0].tolist() == [NO_TEXT, PADDING, PADDING]
    assert torch.equal(y.numbers[1:], x.numbers[1:]) and torch.equal(y.codes[1:], x.codes[1:])


# Numeric embeddings


def test_piecewise_embedding_is_linear_between_quantiles():
    module = make_numeric_embedding("piecewise(bins=4)", 1, 6)
    x = torch.arange(101.0)[:, None]
    module.fit_bins(x, absent=torch.zeros_like(x, dtype=torch.bool), weights=torch.ones(101))
    assert module.edges[0].tolist() == [0, 25, 50, 75, 100]
    with torch.no_grad():
        module.weight.normal_(generator=torch.Generator().manual_seed(0))
    for value, fractions in ((30.0, [1, 0.2, 0, 0]), (-5.0, [0] * 4), (200.0, [1] * 4)):
        point = torch.tensor([[value]])
        piecewise = torch.tensor(fractions, dtype=torch.float32) @ module.weight[0]
        torch.testing.assert_close(module(point)[0, 0], piecewise + module.linear(point)[0, 0])


def test_piecewise_embedding_of_a_constant_column():
    module = make_numeric_embedding("piecewise(bins=4)", 1, 6)
    x = torch.full((9, 1), 2.0)
    module.fit_bins(x, absent=torch.zeros_like(x, dtype=torch.bool), weights=torch.ones(9))
    assert module(x).isfinite().all()


def test_periodic_embedding_equals_its_formula():
    module = perturb(make_numeric_embedding("periodic(waves=3)", 2, 5))
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    for column in range(2):
        angle = 2 * math.pi * x[:, column, None] * module.frequencies[column]
        waves = torch.cat((angle.sin(), angle.cos()), 1)
        expected = (waves @ module.weight[column] + module.bias[column]).relu()
        torch.testing.assert_close(module(x)[:, column], expected)


def test_column_mlp_equals_torch_layers():
    module = perturb(make_numeric_embedding("mlp(hidden=7)", 2, 5))
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    for column in range(2):
        theirs = torch.nn.Sequential(torch.nn.Linear(1, 7), torch.nn.ReLU(), torch.nn.Linear(7, 5))
        with torch.no_grad():
            theirs[0].weight.copy_(module.inner[column][:, None])
            theirs[0].bias.copy_(module.inner_bias[column])
            theirs[2].weight.copy_(module.weight[column].T)
            theirs[2].bias.copy_(module.bias[column])
        torch.testing.assert_close(module(x)[:, column], theirs(x[:, [column]]))


@pytest.mark.parametrize("name", numeric_embeddings)
@pytest.mark.parametrize(
    "model", [each for each in MODELS if "numeric" not in MODELS[each].unused_fields]
)
def test_every_model_takes_every_numeric_embedding(model, name):
    module, x = small_model(model, numeric=name), make_cells()
    assert type(module.tokens.numeric) is numeric_embeddings.member(name)
    other = x._replace(numbers=x.numbers + 0.5)
    assert module(x).isfinite().all() and not torch.allclose(module(x), module(other))


# Errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"numbers": 0, "categories": ()}, "expected a table with at least one column, got none"),
        ({"dimm": 3}, "unknown config field 'dimm'; did you mean 'dim'"),
        ({"numeric": "linera"}, "unknown numeric embedding 'linera'; did you mean 'linear'?"),
        ({"numeric": "piecewise(bin=3)"}, "has no option 'bin'; did you mean 'bins'?"),
        ({"wiring": "postln"}, "unknown wiring 'postln'"),
        ({"heads": 3}, "heads: expected a divisor of dim=16, got 3"),
    ],
)
def test_invalid_configs_are_rejected(changes, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace("?", r"\?")):
        small_model("ft_transformer", **changes)
