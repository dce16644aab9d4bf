"""Mixtures of experts: formula, gradients, tracing, and how options around them are refused."""

import pytest
import torch
from torch.nn.functional import linear, silu

import addnorm
from addnorm.core.errors import UserError
from addnorm.decode import DecodingOptions, Sentence, decode
from addnorm.sublayers import MixtureOfExperts
from tests.helpers import perturb


def make_mixture(dtype=torch.float64, **options):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        options = {"experts": 5, "activation": "swiglu", "bias": False} | options
        return perturb(MixtureOfExperts(10, 13, **options)).to(dtype)


def textbook(module, x):
    """Apply the formula token by token, with the weights of a module."""

    def network(ffn, token):
        hidden = linear(token, ffn.up_proj.weight) * silu(linear(token, ffn.gate_proj.weight))
        return linear(hidden, ffn.down_proj.weight)

    outputs = []
    for token in x.flatten(0, 1):
        logits = linear(token, module.router.weight)
        chosen = sorted(range(len(logits)), key=lambda e: -logits[e].item())[: module.k]
        weights = torch.exp(logits) / torch.exp(logits).sum()
        total = sum(weights[e] for e in chosen) if module.normalize else 1.0
        y = sum(weights[e] / total * network(module.experts[e], token) for e in chosen)
        if module.shared_expert is not None:
            gate = 1 / (1 + torch.exp(-linear(token, module.shared_gate.weight)))
            y = y + gate * network(module.shared_expert, token)
        outputs.append(y)
    return torch.stack(outputs).view_as(x)


@pytest.mark.parametrize(
    "options",
    [{}, {"k": 1}, {"k": 5}, {"normalize": False}, {"shared_hidden": 7, "k": 3}],
    ids=str,
)
def test_output_and_gradients_match_the_formula(options):
    module = make_mixture(**options)
    x = torch.randn(3, 4, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    ours, theirs = module(x), textbook(module, x)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(2))
    parameters = list(module.parameters())
    gradients = [
        torch.autograd.grad((y * weights).sum(), parameters, allow_unused=True)
        for y in (ours, theirs)
    ]
    for left, right in zip(*gradients, strict=True):
        assert (left is None) == (right is None)
        if left is not None:
            torch.testing.assert_close(left, right)


def test_all_experts_on_all_tokens_give_the_same():
    module = make_mixture(shared_hidden=7)
    x = torch.randn(2, 6, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weights, index = (each.flatten(0, 1) for each in module.route(x))
    runs = [run(x.flatten(0, 1), weights, index) for run in (module._run_all, module._run_chosen)]
    torch.testing.assert_close(*runs)
    program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    other = torch.cat((x, -x, x[:1]))
    torch.testing.assert_close(program.module()(other), module(other))


def test_padding_and_cache_do_not_change_the_tokens():
    options = {"dim": 16, "depth": 2, "heads": 2, "vocab": 19, "experts": 4, "wiring": "deepnorm"}
    model = perturb(addnorm.build(kind="lm", activation="swiglu", **options)).eval()
    ids = torch.randint(4, 19, (2, 7), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    with torch.no_grad():
        padded = model(ids, mask=mask)
        torch.testing.assert_close(padded[1:, :4], model(ids[1:, :4]))
        [[best], _] = decode(
            model, [Sentence((1, 5, 6), 4), Sentence((1, 7), 4)], DecodingOptions(beam=3)
        )
        logits = model(torch.tensor([[1, 5, 6, *best.tokens]]))[0].log_softmax(-1)
    steps = [*best.tokens, 2][: best.length]
    score = sum(float(logits[2 + step, token]) for step, token in enumerate(steps))
    assert best.score == pytest.approx(score, abs=1e-4)


def test_a_model_is_saved_trained_and_initialized(tmp_path):
    options = {"dim": 16, "depth": 1, "heads": 2, "vocab": 19, "experts": 3, "seed": 0}
    model = addnorm.build(kind="lm", shared_ffn_dim=8, normalize_routes=False, **options)
    assert 0.01 < model.decoder.sublayers[1].router.weight.std().item() < 0.03
    model.save(tmp_path / "model")
    loaded = addnorm.load(tmp_path / "model")
    ids = torch.randint(4, 19, (4, 9), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(loaded(ids), model(ids))
    model(ids).square().mean().backward()
    assert model.decoder.sublayers[1].router.weight.grad.abs().max().item() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experts": 2, "experts_per_token": 3}, "experts_per_token: expected at most experts=2"),
        ({"experts": 1}, "experts: expected an integer of at least 2, got 1"),
        ({"experts_per_token": 1}, "experts_per_token: expected the default because the model has"),
        ({"experts": 4, "canon": "C"}, "canon: expected A and B only with experts"),
        ({"experts": 4, "wiring": "normformer"}, "norms or scales inside the feed-forward"),
        ({"experts": 4, "scale": "mup(base_dim=16)"}, "scale: expected None for a model with"),
    ],
)
def test_what_does_not_fit_is_rejected(options, message):
    with pytest.raises(UserError, match=message):
        addnorm.build(kind="lm", vocab=19, dim=16, depth=1, heads=2, **options)


def test_exports_take_experts_or_say_why_not(tmp_path):
    options = {"dim": 16, "depth": 1, "heads": 2, "vocab": 19, "experts": 3}
    model = perturb(addnorm.build(kind="lm", wiring="deepnorm", **options)).eval()
    plain, notes = addnorm.fold(model)
    assert plain.config.wiring == "post_ln" and all(note.folded for note in notes)
    with pytest.raises(UserError, match="experts"):
        addnorm.export(model, to="ctranslate2", out=tmp_path / "fast")
    report = addnorm.export(model, to="hf", out=tmp_path / "out")
    assert (report.form, report.grade) == ("AddnormForCausalLM", "exact")
    assert report.proof.greedy[0] == report.proof.greedy[1]
