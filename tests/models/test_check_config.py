"""A model whose parts were replaced is not written."""

import pytest
import torch
from torch import nn

import addnorm
from addnorm.core.errors import UserError
from addnorm.models.check_config import check_matches_config
from addnorm.norms import registry as norms
from addnorm.wirings import registry as wirings

KINDS = ["lm", "prefix_lm", "masked_lm", "seq2seq", "classifier"]


def build(kind="lm", **changes):
    classes = {"classes": 3} if kind == "classifier" else {}
    sizes = {"vocab": 31, "dim": 16, "depth": 2, "heads": 2}
    return addnorm.build(kind=kind, seed=0, **sizes | classes | changes)


@pytest.mark.parametrize("kind", KINDS)
def test_new_models_match_their_config(kind):
    model = build(kind, dropout=0.1)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    check_matches_config(model)
    assert model.training and all(module.training for module in model.modules())
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("wiring", list(wirings))
def test_every_wiring_matches_its_config(wiring):
    check_matches_config(build(wiring=wiring))


@pytest.mark.parametrize("norm", list(norms))
def test_every_norm_matches_its_config(norm):
    check_matches_config(build("masked_lm", norm=norm))


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model, "decoder", build(wiring="b2t").decoder),
        lambda model: setattr(model, "decoder", build(norm="rms").decoder),
        lambda model: setattr(model, "decoder", build(depth=3).decoder),
        lambda model: setattr(model, "embed", nn.Embedding(31, 16)),
        lambda model: setattr(model.embed, "table", nn.Parameter(torch.zeros(40, 16))),
        lambda model: model.decoder.sublayers.__setitem__(1, nn.Linear(16, 16)),
        lambda model: setattr(model.decoder.sublayers[0], "causal", False),
        lambda model: setattr(model.decoder.sublayers[1], "act", torch.tanh),
        lambda model: setattr(model.decoder.wiring.norms[0], "eps", 0.5),
        lambda model: model.decoder.sublayers[1].register_forward_hook(lambda m, i, out: out * 2),
        lambda model: setattr(model.head, "factor", 2.0),
        lambda model: setattr(model, "decoder", torch.compile(model.decoder, backend="eager")),
    ],
    ids=[
        *("wiring", "norm", "depth", "embedding", "vocabulary", "sublayer", "causal", "activation"),
        *("eps", "hook", "head_scale", "compiled"),
    ],
)
def test_replaced_parts_are_not_saved(change, tmp_path):
    model = build()
    change(model)
    with pytest.raises(UserError, match=r"model: expected .*, as its config describes, got"):
        model.save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.bfloat16(),
        lambda model: model.embed.table.data.fill_(float("nan")),
        lambda model: setattr(model.decoder, "packed", True),
        lambda model: setattr(model.decoder, "stream", torch.bfloat16),
        lambda model: setattr(model.decoder, "recompute", True),
        lambda model: model.requires_grad_(False),
        lambda model: model.decoder.sublayers[1].register_forward_hook(lambda m, i, out: None),
        lambda model: model.compile(backend="eager"),
    ],
    ids=["bfloat16", "nan", "packed", "stream", "recompute", "frozen", "observer", "compile"],
)
def test_settings_of_training_do_not_prevent_saving(change, tmp_path):
    model = build(positions="learned(length=2)")
    change(model)
    model.save(tmp_path)
    loaded = addnorm.load(tmp_path)
    torch.testing.assert_close(
        loaded.embed.table.float(), model.embed.table.float(), equal_nan=True
    )
