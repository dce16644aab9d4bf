"""Models of all kinds: wirings, masks, caches, saving, configs and presets."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn

from addnorm.core.errors import ArrangementMismatchError, UserError
from addnorm.models import (
    PRESETS,
    Classifier,
    Config,
    LanguageModel,
    MaskedLM,
    PrefixLM,
    Seq2Seq,
    build,
    load,
)
from addnorm.wirings import registry as wirings
from tests.helpers import perturb

SMALL = {"vocab": 31, "dim": 16, "depth": 2, "heads": 2, "ffn_dim": 24}


def ids(batch=3, length=7, vocab=31, seed=0):
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def small_model(kind, **overrides):
    return perturb(build(kind=kind, seed=0, **SMALL | overrides)).eval()


def right_padded(batch=3, length=7):
    return torch.arange(length) < torch.tensor([length, length - 2, length - 4])[:batch, None]


@pytest.mark.parametrize("wiring", wirings)
@pytest.mark.parametrize("kind", ["lm", "masked_lm", "seq2seq", "classifier"])
def test_every_kind_takes_every_wiring(kind, wiring):
    model = build(
        kind=kind, wiring=wiring, **SMALL, **({"classes": 5} if kind == "classifier" else {})
    )
    inputs = (ids(), ids(length=4, seed=1)) if kind == "seq2seq" else (ids(),)
    y = model(*inputs)
    assert y.isfinite().all()
    shape = {"lm": (3, 7, 31), "masked_lm": (3, 7, 31), "seq2seq": (3, 4, 31)}
    assert tuple(y.shape) == shape.get(kind, (3, 5))
    y.square().mean().backward()
    model.after_step()


def test_kind_selects_the_class():
    kinds = {"lm": LanguageModel, "prefix_lm": PrefixLM, "masked_lm": MaskedLM, "seq2seq": Seq2Seq}
    for kind, model in (kinds | {"classifier": Classifier}).items():
        assert type(build(kind=kind, **SMALL)) is model


def test_language_model_is_causal():
    model = small_model("lm")
    x, y = ids(), ids()
    y[:, 4:] = (y[:, 4:] + 1) % 31
    torch.testing.assert_close(model(x)[:, :4], model(y)[:, :4], rtol=0, atol=1e-6)
    assert not torch.allclose(model(x)[:, 4:], model(y)[:, 4:])


def test_prefix_is_bidirectional_and_the_rest_causal():
    model = small_model("prefix_lm")
    prefix = torch.tensor([4, 4, 4])
    x = ids()
    inside, behind = x.clone(), x.clone()
    inside[:, 3] = (inside[:, 3] + 1) % 31
    behind[:, 5] = (behind[:, 5] + 1) % 31
    base = model(x, prefix)
    assert not torch.allclose(base[:, 0], model(inside, prefix)[:, 0])  # the first sees the fourth
    torch.testing.assert_close(base[:, :5], model(behind, prefix)[:, :5], rtol=0, atol=1e-6)


def test_empty_prefix_equals_language_model_and_full_prefix_equals_encoder():
    prefix, plain = small_model("prefix_lm"), small_model("lm")
    plain.load_state_dict(prefix.model.state_dict())
    none, everything = torch.zeros(3, dtype=torch.long), torch.full((3,), 7)
    torch.testing.assert_close(prefix(ids(), none), plain(ids()))
    masked = small_model("masked_lm")
    weights = {key.replace("decoder", "encoder"): v for key, v in plain.state_dict().items()}
    weights["encoder._extra_state"] = masked.encoder.get_extra_state()
    masked.load_state_dict(weights)
    torch.testing.assert_close(prefix(ids(), everything), masked(ids()))


@pytest.mark.parametrize("kind", ["lm", "masked_lm", "classifier"])
@pytest.mark.parametrize("positions", ["sinusoid", "rotary", "learned(length=20)", "t5", "alibi"])
def test_padding_does_not_change_outputs(kind, positions):
    model = small_model(kind, positions=positions)
    mask = right_padded()
    x = ids()
    y = model(x, mask=mask)
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = model(x[row : row + 1, :length])
        torch.testing.assert_close(y[row, :length], alone[0], rtol=1e-4, atol=1e-5)


def test_seq2seq_ignores_padding_of_source_and_target():
    model = small_model("seq2seq", encoder_depth=3)
    source, target, mask = ids(), ids(length=5, seed=1), right_padded()
    y = model(source, target, source_mask=mask, target_mask=right_padded(length=5))
    for row, length in enumerate(mask.sum(1).tolist()):
        alone = model(source[row : row + 1, :length], target[row : row + 1])
        valid = right_padded(length=5)[row].sum()
        torch.testing.assert_close(y[row, :valid], alone[0, :valid], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_pooling_ignores_padding(pooling):
    model = small_model("classifier", classes=4, pooling=pooling, pooler=True)
    x, mask = ids(), right_padded()
    y = model(x, mask=mask)
    for row, length in enumerate(mask.sum(1).tolist()):
        torch.testing.assert_close(
            y[row], model(x[row : row + 1, :length])[0], rtol=1e-4, atol=1e-5
        )


def test_cached_decoding_equals_full_forward():
    model = small_model("lm", positions="rotary", kv_heads=1)
    cache = model.new_cache()
    parts = [model(part, cache=cache) for part in ids().split([3, 1, 1, 2], 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids()), rtol=1e-4, atol=1e-5)
    pair = small_model("seq2seq")
    memory, cache = pair.encode(ids()), pair.new_cache()
    steps = [pair.decode(part, memory, cache=cache) for part in ids(seed=1).split(1, 1)]
    full = pair.decode(ids(seed=1), memory)
    torch.testing.assert_close(torch.cat(steps, 1), full, rtol=1e-4, atol=1e-5)


def test_tied_and_untied_tables():
    tied, untied = build(kind="lm", **SMALL), build(kind="lm", tied=False, **SMALL)
    assert "head.table" not in tied.state_dict() and "head.table" in untied.state_dict()
    h = torch.randn(1, 2, 16)
    torch.testing.assert_close(tied.head(h, tied.embed), h @ tied.embed.table.T)


def test_embedding_scale_head_scale_cap_and_bias():
    model = small_model(
        "lm", embed_scale="sqrt_dim", head_scale="rsqrt_dim", head_cap=2.0, head_bias=True
    )
    x = model.embed(ids())
    torch.testing.assert_close(x, model.embed.table[ids()] * 4)
    h = model.hidden(ids())
    logits = (h / 4) @ model.embed.table.T + model.head.bias
    torch.testing.assert_close(model(ids()), 2 * torch.tanh(logits / 2))


def test_separate_source_vocabulary():
    model = small_model("seq2seq", source_vocab=50)
    assert model(ids(vocab=50), ids(seed=1)).shape == (3, 7, 31)
    assert model.source_embed.table.shape == (50, 16)


def test_encoder_and_decoder_with_different_wirings():
    model = small_model("seq2seq", encoder_wiring="deepnorm", wiring="b2t", encoder_norm="rms")
    assert type(model.encoder.wiring).__name__ == "DeepNorm"
    assert type(model.decoder.wiring).__name__ == "B2T"
    assert model.encoder.plan.other_depth == model.decoder.plan.depth


@pytest.mark.parametrize("name", PRESETS)
def test_save_and_load_round_trip(name, tmp_path):
    model = perturb(build(PRESETS[name].tiny, seed=0)).eval()
    model.save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    loaded = load(tmp_path).eval()
    assert loaded.config == model.config
    state = loaded.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_weights_of_another_arrangement_are_rejected(tmp_path):
    build(kind="lm", wiring="deepnorm", **SMALL).save(tmp_path)
    with pytest.raises(ArrangementMismatchError, match="expected weights of the arrangement"):
        build(kind="lm", wiring="post_ln", **SMALL).load(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "got no config at"),
        (lambda folder: (folder / "model.safetensors").unlink(), "got no weights at"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "a JSON object, got list"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 40), "has changed"),
        (
            lambda folder: (folder / "config.json").write_text('{"kind": "lm", "dmi": 3}'),
            "unknown config field 'dmi'; did you mean 'dim'|missing config field",
        ),
    ],
)
def test_damaged_folders_are_rejected(damage, message, tmp_path):
    build(kind="lm", **SMALL).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message):
        load(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dmi": 3}, "unknown config field 'dmi'; did you mean 'dim'"),
        ({"dim": 0}, "dim: expected a number greater than or equal to 1, got 0"),
        ({"dim": "many"}, "dim: expected .* got 'many'"),
        ({"kind": "lmm"}, "kind: expected 'lm'"),
        ({"wiring": "postln"}, "unknown wiring 'postln'; did you mean 'post_ln'"),
        ({"norm": "rms(epz=1)"}, "norm 'rms' has no option 'epz'"),
        ({"positions": "rotray"}, "unknown position 'rotray'; did you mean 'rotary'"),
        ({"classes": 3}, "classes: expected kind classifier, got kind 'lm'"),
        ({"encoder_depth": 3}, "encoder_depth: expected kind seq2seq, got kind 'lm'"),
        ({"image": 32, "patch": 8}, "image: expected kind classifier, got kind 'lm'"),
        ({"vocab": None}, "expected either vocab for tokens or image and patch"),
        ({"heads": 3}, "heads: expected a divisor of dim=16, got 3"),
        ({"norm": "batch"}, "norm batch computes statistics over several tokens"),
        ({"activation": "geluu"}, "geluu"),
        ({"dropout": 1.5}, "dropout: expected .* got 1.5"),
        ({"kv_heads": 3, "heads": 4}, "kv_heads: expected a divisor of heads=4, got 3"),
    ],
)
def test_invalid_configs_are_rejected(values, message):
    with pytest.raises(UserError, match=message):
        build(**{"kind": "lm"} | SMALL | values)


@pytest.mark.parametrize("field", ["head_bias", "head_cap", "channels"])
def test_fields_of_other_kinds_are_rejected(field):
    value = {"head_bias": True, "head_cap": 3.0, "channels": 1}[field]
    kind = "lm" if field == "channels" else "classifier"
    with pytest.raises(UserError, match=f"{field}: expected kind .*, got kind '{kind}'"):
        build(**{"kind": kind, field: value} | SMALL)


IMAGE = {"kind": "classifier", "dim": 16, "depth": 1, "heads": 2, "image": 8, "patch": 4}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (IMAGE | {"types": 2}, "types: expected the default because an image has no segments"),
        (IMAGE | {"embed_scale": 5.0}, "embed_scale: .* because an image has no token embedding"),
        (
            {"kind": "classifier", "pooling": "mean"} | SMALL,
            "pooling: .* because a model without classes or pooler does not pool",
        ),
        (
            IMAGE | {"positions": "learned(length=3)"},
            r"positions: expected a length of at least 5, .*; use learned\(length=5\)",
        ),
    ],
)
def test_unused_fields_are_rejected(values, message):
    with pytest.raises(UserError, match=message):
        build(**values)


def test_prefix_is_one_integer_or_one_per_sequence():
    model = small_model("prefix_lm")
    torch.testing.assert_close(model(ids(), 4), model(ids(), torch.tensor([4, 4, 4])))
    for wrong in (-1, torch.tensor([1, 2]), None, torch.tensor([1, -2, 3])):
        with pytest.raises(UserError, match="prefix: expected an integer >= 0"):
            model(ids(), wrong)


def test_preset_scales_to_gpt2_medium():
    medium = build("gpt2", depth=24, dim=1024, heads=16, device="meta")
    assert sum(p.numel() for p in medium.parameters()) == 354_823_168  # as released


def test_model_on_meta_device_cannot_be_saved(tmp_path):
    with pytest.raises(UserError, match="expected a model with weights to save"):
        build("gpt2", device="meta").save(tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_empty_window_is_rejected():
    with pytest.raises(UserError, match="window: expected an integer or a non-empty tuple"):
        build(kind="lm", window=(), **SMALL)


def test_unknown_presets_are_rejected_with_a_suggestion():
    with pytest.raises(UserError, match="unknown preset 'gpt-2'; did you mean 'gpt2'"):
        build("gpt-2")
    with pytest.raises(UserError, match="what: expected the name of a preset or a Config, got 3"):
        build(3)


def test_invalid_inputs_are_rejected():
    model = small_model("lm")
    with pytest.raises(UserError, match=r"ids: expected integers of shape \(B, L\)"):
        model(torch.zeros(2, 3))
    with pytest.raises(UserError, match="type_ids: expected None for a model without segments"):
        small_model("masked_lm")(ids(), type_ids=ids())
    vision = build(PRESETS["vit"].tiny)
    with pytest.raises(UserError, match=r"pixels: expected floats of shape \(B, 3, 16, 16\)"):
        vision(torch.zeros(2, 3, 16, 8))


def test_patches_are_in_row_major_order():
    model = build(PRESETS["vit"].tiny, seed=0)
    pixels = torch.randn(2, 3, 16, 16)
    x = model.embed(pixels)
    patch = pixels[:, :, 8:16, 0:8]  # second row, first column: the third patch
    project = model.embed.project
    expected = torch.einsum("bchw,dchw->bd", patch, project.weight) + project.bias
    torch.testing.assert_close(x[:, 3], expected, rtol=1e-4, atol=1e-5)
    assert model(pixels).shape == (2, 1000)


def test_seed_is_reproducible_and_keeps_the_global_generator():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    one, other = build(kind="lm", seed=1, **SMALL), build(kind="lm", seed=1, **SMALL)
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one.embed.table, build(kind="lm", seed=2, **SMALL).embed.table)


def test_no_decay_includes_that_of_the_stack():
    model = build(kind="prefix_lm", wiring="layer_scale", head_bias=True, **SMALL)
    excluded = model.no_decay()
    assert {"model.decoder.wiring.gamma", "model.head.bias"} <= excluded
    assert "model.embed.table" not in excluded and excluded <= {
        n for n, _ in model.named_parameters()
    }


def test_ngpt_normalizes_the_embedding_after_a_step():
    model = build(kind="lm", wiring="ngpt", bias=False, **SMALL)
    with torch.no_grad():
        model.embed.table.mul_(3)
    model.after_step()
    torch.testing.assert_close(model.embed.table.norm(dim=1), torch.ones(31))


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_published_parameter_count(name):
    model = build(name, device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == PRESETS[name].parameters


@pytest.mark.parametrize("name", PRESETS)
def test_tiny_presets_differ_in_size_only(name):
    big, tiny = PRESETS[name].config, PRESETS[name].tiny
    for field in ("kind", "wiring", "norm", "activation", "tied", "cap", "embed_scale", "qk_norm"):
        assert getattr(big, field) == getattr(tiny, field)
    assert sum(parameter.numel() for parameter in build(tiny).parameters()) < 120_000


def test_presets_take_overrides():
    model = build("gpt2", depth=3, dim=24, heads=4, ffn_dim=48, vocab=50, wiring="deepnorm")
    assert isinstance(model, LanguageModel) and len(model.decoder.sublayers) == 6
    assert model.config.positions == "learned(length=1024)"


def test_configs_are_frozen():
    config = Config(kind="lm", **SMALL)
    with pytest.raises(ValueError, match="frozen"):
        config.dim = 3
    assert config.replace(dim=32).dim == 32 and config.dim == 16


def test_meta_models_can_be_initialized_later():
    model = build("gpt2", depth=2, vocab=100, device="meta")
    assert all(parameter.is_meta for parameter in model.parameters())
    real = model.to_empty(device="cpu").init_weights(seed=1)
    direct = build("gpt2", depth=2, vocab=100, seed=1)
    assert all(
        torch.equal(a, b) for a, b in zip(real.parameters(), direct.parameters(), strict=True)
    )


def test_language_model_learns_to_count():
    torch.manual_seed(0)
    model = build(kind="lm", vocab=11, dim=32, depth=2, heads=4, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x = (torch.arange(12) + torch.arange(8)[:, None]) % 11
    for _ in range(40):
        logits = model(x[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3


def saved_lm(folder, **changes):
    model = build(kind="lm", vocab=20, dim=8, depth=2, heads=2, seed=0, **changes)
    model.save(folder)
    return model


def edit_config(folder, *, accept=True, **fields):
    path = folder / "config.json"
    data = json.loads(path.read_text()) | fields
    if accept:
        del data["checksum"]
    path.write_text(json.dumps(data))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_every_damage_of_a_saved_model_is_noticed(tmp_path, name):
    saved_lm(tmp_path)
    path = tmp_path / name
    data = path.read_bytes()
    for offset in range(0, len(data), max(1, len(data) // 97)):
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :])
        with pytest.raises(UserError) as error:
            load(tmp_path)
        assert "\n" not in str(error.value)


def test_weights_of_another_save_are_noticed(tmp_path):
    saved_lm(tmp_path / "a")
    build(kind="lm", vocab=20, dim=8, depth=2, heads=2, seed=1).save(tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").replace(tmp_path / "a" / "model.safetensors")
    with pytest.raises(UserError, match=r"model.safetensors has changed since it was written"):
        load(tmp_path / "a")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 1}, r"does not fit the model: expected no .*, got .* of shape"),
        ({"depth": 3}, r"does not fit the model: expected .* of shape .*, got no "),
        ({"dim": 16}, r"does not fit the model: expected .* of shape .*16.*, got .* of shape"),
        ({"depth": 9_999}, "does not fit the model: expected 9999 layers, got"),
        ({"depth": 10**9}, "depth: expected a number less than or equal to 10000"),
        ({"dim": 2**62, "heads": 1}, "dim: expected a number less than or equal to 131072"),
        ({"norm": "rms"}, "."),
        ({"dimm": 3}, "unknown config field 'dimm'"),
    ],
)
def test_config_that_does_not_fit_the_weights_is_one_line(tmp_path, fields, message):
    saved_lm(tmp_path)
    edit_config(tmp_path, accept=False, **fields)
    with pytest.raises(UserError, match=r"config.json has changed .*delete its .checksum"):
        load(tmp_path)
    saved_lm(tmp_path)
    edit_config(tmp_path, **fields)
    with pytest.raises(UserError, match=message) as error:
        load(tmp_path)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_edited_config_is_accepted_without_its_checksum(tmp_path):
    saved_lm(tmp_path)
    edit_config(tmp_path, dropout=0.25)
    assert load(tmp_path).config.dropout == 0.25


def test_saved_model_has_the_rights_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        saved_lm(tmp_path / "model")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()} == {0o640}


KILLED_WRITER = """
import os, signal, sys
from pathlib import Path
import addnorm
import addnorm.models.base as base

def killed(tensors, path):
    Path(path).with_name(".tmpAbC123").write_bytes(b"half a file")  # as safetensors names it
    os.kill(os.getpid(), signal.SIGKILL)

base.save_file = killed
addnorm.build(kind="lm", dim=16, depth=1, heads=2, vocab=20).save(sys.argv[1])
"""


@pytest.mark.slow
def test_leftovers_of_a_killed_save_are_removed_by_the_next(tmp_path):
    killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, str(tmp_path)], timeout=600)
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.rglob(".tmp*")] == [".tmpAbC123"]
    build(kind="lm", dim=16, depth=1, heads=2, vocab=20).save(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.json", "model.safetensors"]


def test_advice_about_a_damaged_config_can_help(tmp_path):
    """A file that is not JSON has no checksum that could be deleted."""
    build(kind="lm", vocab=9, dim=8, depth=1, heads=2).save(tmp_path)
    path = tmp_path / "config.json"
    text = path.read_text()
    path.write_text(text.replace('"dim": 8', '"dim": 4'))
    with pytest.raises(UserError, match='restore it, or delete its "checksum" to accept'):
        load(tmp_path)
    path.write_text(text[:-5])
    with pytest.raises(UserError, match=r"is not JSON \(.*\); restore it$"):
        load(tmp_path)
