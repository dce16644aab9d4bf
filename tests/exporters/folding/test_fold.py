"""`fold` returns a plainer model with the same outputs."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import addnorm
from addnorm import UserError
from addnorm.core.errors import ExportRefusedError
from addnorm.exporters.folding.stack_forms import PLAIN_WIRINGS
from addnorm.norms import registry as norms
from addnorm.wirings import registry as wirings
from tests.exporters.models import KINDS, WIRINGS, make_model, make_tokens

# What each wiring folds into, by its formula. Those that are not listed have no plainer form.
PLAIN = {
    "post_ln": "post_ln",
    "post_ln(final_norm=True)": "post_ln(final_norm=True)",
    "pre_ln": "pre_ln",
    "pre_ln(init=gpt2)": "pre_ln",
    "pre_ln(first_norm=False)": "pre_ln(first_norm=False)",
    "deepnorm": "post_ln",
    "admin": "post_ln",
    "rezero": "none",
    "rezero(per=site)": "none",
    "rezero(post_norm=True)": "post_ln",
    "skip_init": "none",
    "fixup": "none",
    "t_fixup": "none",
    "none": "none",
    "layer_scale": "pre_ln",
    "ln_scaling": "pre_ln",
    "gpas(inner=post_ln)": "post_ln",
    "gpas(inner=deepnorm, per=site)": "post_ln",
    "gpas(inner=post_ln, place=stream)": "post_ln",
    "gpas(inner=rezero(post_norm=True), place=skip)": "post_ln",
    "gpas(inner=none)": "none",
    "gpas(inner=rezero, place=skip)": "none",
    "false_pre_ln(final_norm=True)": "post_ln",
    "mix_ln(post=0.0)": "pre_ln",
    "mix_ln(post=1.0)": "post_ln(final_norm=True)",
    "drop_path": "pre_ln",
    "layer_drop": "pre_ln",
    "scaled": "pre_ln",
    "scaled(inner=sandwich, r=0.5)": "sandwich",
    "scaled(inner=b2t, r=0.5)": "b2t",
    "drop_path(deepnorm, rate=0.4)": "post_ln",
    "drop_path(inner=layer_drop(inner=rezero))": "none",
    "layer_drop(inner=b2t)": "b2t",
    "normformer": "normformer(head_scale=none)",
    "normformer(head_scale=post, res_scale=True)": "normformer(head_scale=none, res_scale=True)",
    "sandwich": "sandwich",
    "res_post": "res_post",
    "parallel": "parallel",
    "sub_ln": "sub_ln",
}
UNFOLDED = [
    *("b2t", "hybrid_norm", "ngpt", "gated", "resi_dual", "siamese", "dlcl", "denseformer"),
    *("u_skips", "attn_res", "hyper", "mhc", "keel", "false_pre_ln", "gpas"),
    *("res_scale", "deep_delta", "laurel", "mudd", "nanochat", "scaled(r=1.0, rule=unit)"),
    *("mix_ln(post=0.5)", "gpas(inner=sandwich)", "gpas(place=skip)"),
]


def outputs(model):
    """Return the outputs of a model at valid tokens."""
    ids, mask = make_tokens(4, 9)
    kind = model.config.kind
    with torch.no_grad():
        if model.config.image is not None:
            pixels = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
            return model(pixels.to(next(model.parameters()).dtype))
        if kind == "seq2seq":
            target, target_mask = make_tokens(4, 6, seed=1)
            return model(ids, target, source_mask=mask, target_mask=target_mask)[target_mask]
        if kind == "prefix_lm":
            return model(ids, torch.tensor([1, 2, 0, 3]), mask=mask)[mask]
        options = {"type_ids": (ids % 2)} if model.config.types else {}
        y = model(ids, mask=mask, **options)
        return y if y.ndim == 2 else y[mask]


def measure_rounding(model):
    """Return the change of the outputs if every weight moves by about one rounding error.

    Without norms, activations and with them rounding errors grow from layer to layer.
    """
    noisy, generator = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in noisy.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.mul_(1 + torch.finfo(weight.dtype).eps * noise)
    return float((outputs(noisy) - outputs(model)).abs().max())


def check_fold(model, *, atol=1e-12):
    """Fold a float64 model, compare the outputs, and return the plain model and the notes."""
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = outputs(model)
    plain, notes = addnorm.fold(model, max_length=20)
    torch.testing.assert_close(outputs(plain), expected, atol=atol, rtol=1e-12)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    return plain, notes


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wiring", PLAIN)
def test_wirings_fold_into_the_plain_form_of_their_formula(wiring, kind, norm):
    plain, notes = check_fold(make_model(kind, wiring=wiring, norm=norm, dtype=torch.float64))
    assert plain.config.wiring == PLAIN[wiring] and plain.config.encoder_wiring is None
    assert all(note.grade == "exact" for note in notes)
    if PLAIN[wiring] != wiring:
        assert notes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wiring", UNFOLDED)
def test_wirings_without_a_plainer_form_stay_and_say_why(wiring, kind):
    model = make_model(kind, wiring=wiring, dtype=torch.float64)
    plain, notes = check_fold(model, atol=0)
    assert plain.config.wiring == wiring
    assert [note.term for note in notes if not note.folded] == [wiring] * len(model.stacks)


def test_the_two_tables_name_every_wiring():
    names = {name.partition("(")[0] for name in (*PLAIN, *UNFOLDED)}
    assert names == set(WIRINGS)


def test_hyper_connections_name_their_number_of_streams():
    _, notes = addnorm.fold(make_model("lm", wiring="hyper(streams=3)"))
    assert "hyper-connections keep 3 streams" in str(notes[0])


@pytest.mark.parametrize("wiring", ["pre_ln", "post_ln", "deepnorm", "ln_scaling", "sandwich"])
@pytest.mark.parametrize(
    ("norm", "plain_norm"),
    [
        ("layer(affine=False)", "layer"),
        ("layer(bias=False, eps=0.001)", "layer(eps=0.001)"),
        ("layer(var=unbiased)", f"layer(eps={1e-5 * 11 / 12!r})"),
        ("detach", "layer"),
        ("group(groups=1)", "layer"),
        ("rms(affine=False)", "rms"),
        ("rms(gain=one_plus)", "rms"),
    ],
)
def test_norms_fold_exactly(wiring, norm, plain_norm):
    model = make_model("classifier", wiring=wiring, norm=norm, dtype=torch.float64)
    plain, _ = check_fold(model)
    assert plain.config.norm == plain_norm


@pytest.mark.parametrize("norm", ["scale", "l2"])
def test_division_by_the_length_folds_up_to_rounding(norm):
    model = make_model("lm", wiring="deepnorm", norm=norm, dtype=torch.float64)
    plain, notes = check_fold(model, atol=1e-10)
    assert plain.config.norm == "rms(eps=1e-12)"
    assert "rounding" in {note.grade for note in notes}


@pytest.mark.parametrize("norm", [name for name in norms if "cond" not in norms.card(name).needs])
@pytest.mark.parametrize("wiring", ["pre_ln", "post_ln", "deepnorm", "layer_scale", "b2t"])
def test_every_norm_keeps_the_outputs(wiring, norm):
    model = make_model("classifier", wiring=wiring, norm=norm, dtype=torch.float64)
    check_fold(model, atol=1e-10)


@pytest.mark.parametrize("norm", ["layer(affine=False)", "rms(bias=True)", "l2"])
@pytest.mark.parametrize("wiring", WIRINGS)
def test_every_wiring_keeps_the_outputs_with_variants_of_norms(wiring, norm):
    check_fold(make_model("lm", wiring=wiring, norm=norm, dtype=torch.float64), atol=1e-10)


@pytest.mark.parametrize("wiring", ["pre_ln", "post_ln", "rezero(post_norm=True)", "deepnorm"])
@pytest.mark.parametrize("norm", ["batch", "power", "power(warmup=0, affine=False)"])
def test_running_statistics_fold_into_weights(wiring, norm):
    model = make_model("classifier", wiring=wiring, norm=norm, dtype=torch.float64)
    plain, _ = check_fold(model)
    assert plain.config.wiring == "none"


def test_the_bias_of_rms_goes_into_the_readers():
    model = make_model("lm", norm="rms(bias=True)", bias=False, dtype=torch.float64)
    plain, _ = check_fold(model)
    assert plain.config.norm == "rms" and plain.config.bias and plain.config.ffn_bias
    assert plain.config.out_bias is False and plain.config.head_bias


def test_a_common_scale_of_embeddings_keeps_the_tie():
    model = make_model("lm", wiring="deepnorm", positions="rotary", head_dim=4, dtype=torch.float64)
    plain, _ = check_fold(model)
    assert plain.config.tied and plain.config.embed_scale == model.decoder.wiring.alpha


def test_scaled_sinusoids_become_a_table():
    model = make_model("lm", wiring="deepnorm", positions="sinusoid", dtype=torch.float64)
    plain, _ = check_fold(model)
    assert plain.config.positions == "learned(length=20)"
    embedded = make_model("lm", wiring="deepnorm", embed_norm="layer", dtype=torch.float64)
    assert check_fold(embedded)[0].config.positions == "sinusoid"  # the norm takes the scale


def test_images_fold():
    options = {"image": 8, "patch": 4, "class_tokens": 2, "positions": "learned(length=9)"}
    plain, _ = check_fold(make_model("classifier", wiring="admin", dtype=torch.float64, **options))
    assert plain.config.wiring == "post_ln"


def test_fixup_without_a_reader_of_its_output_stays():
    model = make_model("classifier", classes=None, wiring="fixup", dtype=torch.float64)
    plain, notes = check_fold(model)
    assert plain.config.wiring == "fixup" and not notes[0].folded


@pytest.mark.parametrize("wiring", ["post_ln", "deepnorm", "rezero"])
def test_encoders_without_a_head_fold(wiring):
    model = make_model("classifier", classes=None, wiring=wiring, dtype=torch.float64)
    plain, _ = check_fold(model)
    assert plain.config.wiring == ("none" if wiring == "rezero" else "post_ln")


@pytest.mark.parametrize("wiring", ["post_ln", "deepnorm", "rezero"])
def test_a_projection_of_the_embedding_stays(wiring):
    options = {"embed_dim": 8, "head_layer": True, "embed_norm": "layer", "wiring": wiring}
    plain, notes = check_fold(make_model("masked_lm", dtype=torch.float64, **options))
    assert plain.config.wiring == wiring and plain.config.embed_dim == 8
    assert wiring == "post_ln" or "projection of the embedding" in str(notes[0])


def test_learned_positions_with_a_relative_bias_are_scaled():
    options = {"positions": "learned_t5(length=20)", "wiring": "deepnorm"}
    plain, _ = check_fold(make_model("masked_lm", dtype=torch.float64, **options))
    assert plain.config.wiring == "post_ln" and plain.config.positions == "learned_t5(length=20)"


def test_one_stack_of_a_pair_may_fold_alone():
    model = make_model("seq2seq", wiring="deepnorm", encoder_wiring="b2t", dtype=torch.float64)
    plain, notes = check_fold(model)
    assert (plain.config.encoder_wiring, plain.config.wiring) == ("b2t", "post_ln")
    assert {(note.site, note.folded) for note in notes} >= {("encoder", False), ("decoder", True)}


ARRANGEMENTS = st.sampled_from([*PLAIN, "b2t", "hyper", "keel"])
OPTIONS = st.fixed_dictionaries(
    {
        "wiring": ARRANGEMENTS,
        "norm": st.sampled_from(["layer", "rms", "rms(bias=True)", "layer(bias=False)", "dyt"]),
        "positions": st.sampled_from(["none", "sinusoid", "learned(length=20)", "t5", "alibi"]),
        "embed_norm": st.sampled_from(["none", "layer", "rms(gain=one_plus)"]),
        "table_norm": st.sampled_from(["none", "fixnorm(length=3.0)"]),
        "embed_scale": st.sampled_from([1.0, 2.5, "sqrt_dim"]),
        "bias": st.booleans(),
        "out_bias": st.sampled_from([None, False, True]),
        "ffn_bias": st.sampled_from([None, False, True]),
        "activation": st.sampled_from(["relu", "swiglu"]),
        "scale": st.sampled_from([None, 0.7]),
        "kv_heads": st.sampled_from([None, 1]),
    }
)
HEADS = st.fixed_dictionaries(
    {
        "tied": st.booleans(),
        "head_bias": st.booleans(),
        "head_scale": st.sampled_from([1.0, 0.3]),
        "head_cap": st.sampled_from([None, 4.0]),
    }
)


@settings(max_examples=40)
@given(OPTIONS, HEADS, st.sampled_from(["lm", "prefix_lm", "seq2seq", "masked_lm"]), st.data())
def test_any_options_fold(options, head, kind, data):
    if kind == "seq2seq":
        options = options | {"encoder_wiring": data.draw(ARRANGEMENTS)}
        options |= {"source_vocab": data.draw(st.sampled_from([None, 19]))}
    if kind == "masked_lm":
        options = options | {"types": 2, "head_layer": options["activation"] == "relu"}
    model = make_model(kind, dtype=torch.float64, **options, **head)
    plain, _ = check_fold(model, atol=max(1e-10, 1000 * measure_rounding(model)))
    again, notes = addnorm.fold(plain, max_length=20)
    assert again.config == plain.config  # a plain model is a fixed point
    assert all(not note.folded for note in notes)
    assert PLAIN.get(options["wiring"], options["wiring"]).split("(")[0] in (
        *PLAIN_WIRINGS,
        *("b2t", "hyper", "keel", "normformer", "fixup", "false_pre_ln", "gpas"),
    )


INNER_OPTIONS = [
    {"gate": "element"},
    {"gate": "head", "bias": False},
    {"sink": "learned"},
    {"sink": "off_by_one"},
    {"exclusive": True},
    {"value_residual": "half"},
    {"value_residual": "scalar"},
    {"value_residual": "token"},
    {"value_embed": True},
    {"canon": "A"},
    {"canon": "BD"},
    {"experts": 3, "activation": "swiglu"},
    {"experts": 3, "shared_ffn_dim": 7, "normalize_routes": False},
]


@pytest.mark.parametrize(
    "arrangement",
    [
        {"wiring": "deepnorm"},
        {"wiring": "rezero", "attention_scale": 0.3},
        {"wiring": "layer_scale", "norm": "rms(affine=False)"},
        {"wiring": "ln_scaling", "norm": "rms(affine=False)"},
        {"wiring": "layer_scale", "norm": "rms(bias=True)"},
        {"wiring": "rezero(post_norm=True)", "norm": "layer(var=unbiased)"},
        {"wiring": "post_ln", "norm": "seednorm"},
        {"wiring": "scaled(pre_ln, r=0.3)", "norm": "gatednorm"},
    ],
    ids=str,
)
@pytest.mark.parametrize("options", INNER_OPTIONS, ids=str)
def test_options_inside_sublayers_keep_the_outputs(options, arrangement):
    """Each combination folds exactly, or stays with its reason."""
    model = make_model("lm", dtype=torch.float64, **arrangement, **options)
    plain, _ = check_fold(model, atol=max(1e-10, 1000 * measure_rounding(model)))
    assert {name: getattr(plain.config, name) for name in options} == options


@pytest.mark.parametrize("qk_norm", ["none", "l2", "cosine", "rms", "rms_head", "layer_head"])
def test_query_key_norms_keep_the_outputs(qk_norm):
    model = make_model("lm", wiring="rezero", qk_norm=qk_norm, dtype=torch.float64)
    plain, _ = check_fold(model, atol=1e-9)
    assert plain.config.qk_norm == ("rms_head(eps=1e-12)" if qk_norm == "l2" else qk_norm)


def test_a_shift_that_keys_without_bias_cannot_take_stays():
    model = make_model("lm", wiring="fixup", qk_norm="cosine", dtype=torch.float64)
    plain, notes = check_fold(model)
    assert plain.config.wiring == "fixup" and "keys have no bias" in str(notes[0])


def test_scales_near_zero_are_not_divided_by():
    model = make_model("lm", wiring="admin", dtype=torch.float64)
    with torch.no_grad():
        model.decoder.wiring.omega[1, 3] = 1e-9
    plain, notes = check_fold(model)
    assert plain.config.wiring == "admin"
    assert "skip scale of site 1" in str(notes[0])


def test_negative_skip_scales_fold():
    model = make_model("lm", wiring="admin", dtype=torch.float64)
    with torch.no_grad():
        model.decoder.wiring.omega.neg_()
    assert check_fold(model)[0].config.wiring == "post_ln"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_precision_stays(dtype):
    model = make_model("lm", wiring="deepnorm", dtype=dtype)
    plain, _ = addnorm.fold(model)
    assert next(plain.parameters()).dtype == dtype and not plain.training
    torch.testing.assert_close(outputs(plain), outputs(model), atol=1e-4, rtol=1e-4)


def test_half_precision_becomes_float32():
    plain, _ = addnorm.fold(make_model("lm", wiring="deepnorm", dtype=torch.bfloat16))
    assert next(plain.parameters()).dtype == torch.float32


def test_a_model_in_training_mode_is_folded_as_in_evaluation():
    model = make_model("lm", wiring="drop_path(deepnorm)", dropout=0.5, dtype=torch.float64)
    expected = outputs(model)
    plain, _ = addnorm.fold(model.train())
    assert model.training
    torch.testing.assert_close(outputs(plain), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("break_model", "error", "message"),
    [
        (lambda m: m.to("meta"), UserError, "meta device"),
        (lambda m: m.decoder.wiring.calibrated.fill_(False), ExportRefusedError, "calibrated"),
        (lambda m: m.embed.table.data.fill_(torch.nan), ExportRefusedError, "embed.table"),
        (
            lambda m: setattr(m.decoder.sublayers[1], "up_proj", torch.nn.Identity()),
            UserError,
            "expected decoder.sublayers.1.up_proj to be Linear, as in its config, got Identity",
        ),
    ],
)
def test_models_that_cannot_be_folded_are_rejected(break_model, error, message):
    model = make_model("lm", wiring="admin")
    break_model(model)
    with pytest.raises(error, match=message):
        addnorm.fold(model)


def test_other_objects_are_rejected():
    with pytest.raises(UserError, match=r"expected a model of addnorm\.build, got Linear"):
        addnorm.fold(torch.nn.Linear(2, 2))


def test_cards_say_what_wirings_fold_into():
    """By the table above, for the defaults of each wiring."""
    folded = {name: PLAIN[name] for name in WIRINGS if name in PLAIN and PLAIN[name] != name}
    folded = {name: call for name, call in folded.items() if not call.startswith(name)}
    assert {n: wirings.card(n).folds_to for n in WIRINGS if wirings.card(n).folds_to} == folded
