"""Values of a monitor against independent computations, its rows, and bad input."""

import math
import warnings

import pytest
import torch
from torch import nn

import addnorm
from addnorm.core.errors import MonitorWarning, UserError
from addnorm.core.rows import read_rows
from addnorm.measure import forward_rows
from tests.monitor.models import (
    DIM,
    Handmade,
    TorchModel,
    build,
    compute_loss,
    make_batch,
    make_gpt2,
    train,
)


def monitored(model, *, steps=4, every=2, lr=1e-2, **options):
    """Train a model with a monitor and return it, closed."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    with addnorm.Monitor(model, optimizer, every=every, **options) as monitor:
        train(model, optimizer, monitor, steps=steps)
    return monitor


def values(monitor, name, *, step=1):
    rows = [r for r in monitor.rows() if r["name"] == name and r["step"] == step]
    return {row["site"]: row["value"] for row in rows}


def test_sites_and_rows_have_their_own_names():
    monitor = monitored(build(make_gpt2))
    assert [site.label for site in monitor.sites] == [
        "transformer.h.0: attention, pre_ln",
        "transformer.h.0: feed-forward, pre_ln",
        "transformer.h.1: attention, pre_ln",
        "transformer.h.1: feed-forward, pre_ln",
    ]
    site = monitor.sites[2]
    assert (site.path, site.kind, site.wiring) == ("transformer.h.1", "self-attention", "pre_ln")
    rows = monitor.rows()
    assert all({"name", "step", "site", "value"} <= set(row) for row in rows)
    labels = {row["site"]: row["label"] for row in rows if row["site"] is not None}
    assert labels == {site.index: site.label for site in monitor.sites}
    names = {row["name"] for row in rows if row["site"] is not None}
    assert names == {
        *("gradient_norm", "update_ratio", "stream_variance", "stream_rms", "dependency"),
        *("branch_ratio", "max_logit", "attention_entropy"),
        *("gain_min", "gain_max", "gain_dead", "gain_moved"),
    }


def test_values_equal_what_the_model_returns():
    model = build(lambda: make_gpt2(attn_implementation="eager"))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    ids = make_batch(10)[:4]
    with torch.no_grad():
        model.eval()
        out = model(ids, output_hidden_states=True, output_attentions=True)
        model.train()
    monitor = monitored(model)
    states = out.hidden_states
    variance = float(states[1].var(-1, correction=0).mean())
    assert values(monitor, "stream_variance")[1] == pytest.approx(variance, rel=1e-4)
    rms = float(states[1].square().mean().sqrt())
    assert values(monitor, "stream_rms")[1] == pytest.approx(rms, rel=1e-4)
    for layer, p in enumerate(out.attentions):
        entropy = -(p * p.clamp_min(1e-30).log()).sum(-1).mean()
        assert values(monitor, "attention_entropy")[2 * layer] == pytest.approx(
            float(entropy), rel=1e-4
        )
    # plain SGD: one update is lr * gradient
    names = [n for n in before if n.startswith("transformer.h.0.mlp") or ".0.ln_2" in n]
    length = math.sqrt(sum(float(before[n].square().sum()) for n in names))
    gradient = values(monitor, "gradient_norm")[1]
    assert values(monitor, "update_ratio")[1] == pytest.approx(0.01 * gradient / length, rel=1e-4)


def test_rows_of_an_addnorm_model_equal_those_of_its_taps():
    model = addnorm.build(kind="lm", vocab=23, dim=16, depth=2, heads=4, seed=0, wiring="pre_ln")
    expected = {(r["name"], r["site"]): r["value"] for r in forward_rows(model, make_batch(10)[:4])}
    monitor = monitored(model)
    for (name, site), value in expected.items():
        assert values(monitor, name)[site] == pytest.approx(value, rel=1e-5, abs=1e-6)


class Shared(Handmade):
    """One layer that is called three times."""

    def __init__(self):
        super().__init__(depth=1)

    def forward(self, ids):
        x = self.table[ids]
        for _ in range(3):
            x = self.layer(x, 0)
        return self.norm(x, -1) @ self.table.T


def test_layer_that_is_called_three_times():
    monitor = monitored(build(Shared))
    assert len({site.label for site in monitor.sites}) == 6
    assert len(set(values(monitor, "stream_rms").values())) == 6
    assert len(values(monitor, "gradient_norm")) == 7


class Stochastic(nn.Module):
    """Drops its second layer in training, and all additions are in place or fused."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))
        self.table, self.head = nn.Embedding(23, DIM), nn.Linear(DIM, 23)

    def forward(self, ids):
        x = self.table(ids)
        f = self.layers[0](self.norms[0](x))
        x = x * 1.0
        x += f
        if not self.training:
            x = torch.add(x, self.layers[1](self.norms[1](x)), alpha=0.5)
        h = self.norms[2](x)
        x = torch.addmm(x.flatten(0, 1), h.flatten(0, 1), self.layers[2].weight.T).view_as(x)
        return self.head(x)


def test_in_place_and_fused_additions_and_a_dropped_layer():
    model = build(Stochastic)
    with torch.no_grad():
        x = model.table(make_batch(10)[:4])
        f = model.layers[0](model.norms[0](x))
        expected = [(x, f)]
        x = x + f
        f = 0.5 * model.layers[1](model.norms[1](x))
        expected.append((x, f))
        x = x + f
        f = model.norms[2](x) @ model.layers[2].weight.T
        expected.append((x, f))
    monitor = monitored(model)
    assert len(monitor.sites) == 3
    for site, (before, branch) in enumerate(expected):
        ratio = float(branch.square().mean().sqrt() / before.square().mean().sqrt())
        assert values(monitor, "branch_ratio")[site] == pytest.approx(ratio, rel=1e-4)
        fraction = float(branch.var(correction=0) / (before + branch).var(correction=0))
        assert values(monitor, "dependency")[site] == pytest.approx(fraction, rel=1e-4)


def test_wrappers_keep_the_names():
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = build(TorchModel)
    plain = monitored(build(TorchModel))
    for number, layer in enumerate(model.encoder.layers):
        model.encoder.layers[number] = checkpoint_wrapper(layer)
    wrapped = monitored(model)
    assert [s.label for s in wrapped.sites] == [s.label for s in plain.sites]
    assert [s.weights for s in wrapped.sites] == [s.weights for s in plain.sites]
    assert {k: round(v, 5) for k, v in values(wrapped, "gradient_norm").items()} == {
        k: round(v, 5) for k, v in values(plain, "gradient_norm").items()
    }


def test_effective_gain_of_one_plus_weight():
    class Zero(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(DIM))

        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * (1 + self.weight)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.norm = nn.Embedding(23, DIM), Zero()
            self.mlp, self.final = nn.Linear(DIM, DIM), Zero()
            self.head = nn.Linear(DIM, 23)

        def forward(self, ids):
            x = self.table(ids)
            return self.head(self.final(x + self.mlp(self.norm(x))))

    monitor = monitored(build(Model))
    gains = [r for r in monitor.rows() if r["name"] == "gain_min" and r["step"] == 1]
    assert {row["norm"]: row["value"] for row in gains} == {"norm": 1.0, "final": 1.0}


def test_folder_has_rows_that_equal_those_in_memory(tmp_path):
    monitor = monitored(build(Handmade), folder=tmp_path / "watch", steps=5)
    stored = list(read_rows(tmp_path / "watch" / "rows.jsonl"))
    assert stored == monitor.rows()
    assert [r["step"] for r in stored if r["name"] == "loss"] == [1, 2, 3, 4, 5]
    assert stored[-1]["ending"] == "done"


def test_step_returns_the_rows_of_due_steps():
    model = build(Handmade)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with addnorm.Monitor(model, optimizer, every=3) as monitor:
        looks = []
        for step in range(1, 8):
            loss = compute_loss(model, make_batch(step))
            loss.backward()
            optimizer.step()
            looks.append(monitor.step(loss))
    assert [bool(look) for look in looks] == [True, False, True, False, False, True, False]
    assert {row["step"] for row in looks[2]} == {3}


def test_without_an_optimizer():
    model = build(Handmade)
    plain = addnorm.Monitor(model, every=2, example=make_batch(1))
    assert len(plain.sites) == 4
    for step in range(1, 4):
        model.zero_grad()
        loss = compute_loss(model, make_batch(step))
        loss.backward()
        plain.step(loss)
    assert {r["step"] for r in plain.rows() if r["name"] == "gradient_norm"} == {1, 2}
    assert not [r for r in plain.rows() if r["name"] == "update_ratio"]
    plain.close()
    manual = addnorm.Monitor(model, every=2)
    for step in range(1, 4):
        model.zero_grad()
        loss = compute_loss(model, make_batch(step))
        loss.backward()
        manual.before_update()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        manual.after_update()
        manual.step(loss)
    ratios = [r["value"] for r in manual.rows() if r["name"] == "update_ratio"]
    assert len(ratios) == 2 * 5 and all(value > 0 for value in ratios)
    manual.close()


def test_state_dict_continues_the_steps():
    model = build(Handmade)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with addnorm.Monitor(model, optimizer, every=4) as monitor:
        train(model, optimizer, monitor, steps=6)
        state = monitor.state_dict()
    with addnorm.Monitor(model, optimizer, every=4) as resumed:
        resumed.load_state_dict(state)
        train(model, optimizer, resumed, steps=3)
    assert {r["step"] for r in resumed.rows() if r["name"] == "stream_rms"} == {8}


# bad input


def test_invalid_arguments():
    with pytest.raises(UserError, match=r"^every: expected .*, got 0"):
        addnorm.Monitor(Handmade(), every=0)
    with pytest.raises(UserError, match=r"^model: expected a torch.nn.Module, got int"):
        addnorm.Monitor(3)
    with pytest.raises(UserError, match=r"^optimizer: expected a torch.optim.Optimizer, got str"):
        addnorm.Monitor(Handmade(), "adam")
    with pytest.raises(UserError, match=r"^sinks: unknown sink 'wanbd'; did you mean 'wandb'"):
        addnorm.Monitor(Handmade(), sinks=["wanbd"])


def test_optimizer_of_another_model():
    with pytest.warns(MonitorWarning, match="updates none of them"):
        monitor = addnorm.Monitor(Handmade(), torch.optim.SGD(TorchModel().parameters(), lr=1.0))
    monitor.close()


def test_model_without_residual_adds():
    model = build(lambda: nn.Sequential(nn.Embedding(23, DIM), nn.Tanh(), nn.Linear(DIM, 23)))
    with pytest.warns(MonitorWarning, match="expected residual adds, found none") as seen:
        monitor = monitored(model)
    assert len(seen) == 1
    assert monitor.sites == ()
    names = {r["name"] for r in monitor.rows()}
    assert names == {"gradient_norm", "update_ratio", "lr", "loss", "ended"}


def test_example_that_the_model_does_not_accept():
    text = r"^example: the model does not run on it \(TypeError: .*first training call are used"
    with pytest.warns(MonitorWarning, match=text) as seen:
        monitor = monitored(build(Handmade), example=(make_batch(1), make_batch(2)))
    assert len(seen) == 1
    assert set(values(monitor, "stream_rms")) == {0, 1, 2, 3}


def test_model_that_is_not_called():
    model = build(lambda: nn.ModuleDict({"net": Handmade()}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = addnorm.Monitor(model, optimizer)
    with pytest.warns(MonitorWarning, match="expected a call of the model") as seen, monitor:
        train(model["net"], optimizer, monitor, steps=3)
    assert len(seen) == 1


class Growing(nn.Module):
    """A model that gets another layer during training."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(23, DIM), nn.Linear(DIM, 23)
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def test_model_that_changes_shape():
    model = build(Growing)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with addnorm.Monitor(model, optimizer, every=2) as monitor:
        train(model, optimizer, monitor, steps=2)
        model.layers.append(nn.Linear(DIM, DIM))
        with pytest.warns(MonitorWarning, match="other names or shapes since step 4") as seen:
            train(model, optimizer, monitor, steps=2)
    assert len(seen) == 1
    assert len(values(monitor, "stream_rms", step=2)) == 2
    assert len(values(monitor, "stream_rms", step=4)) == 3


def test_probe_that_fails_is_noted_once():
    model = build(Growing)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with addnorm.Monitor(model, optimizer, every=1) as monitor:
        train(model, optimizer, monitor, steps=2)
        forward = model.forward
        model.forward = lambda ids: forward(ids) if model.training else 1 / 0
        with pytest.warns(MonitorWarning, match="forward pass of the monitor failed") as seen:
            train(model, optimizer, monitor, steps=3)
    assert len(seen) == 1
    assert {r["step"] for r in monitor.rows() if r["name"] == "gradient_norm"} == {1, 2, 3, 4, 5}


def test_batch_that_cannot_be_cut():
    class Whole(Handmade):
        def forward(self, ids):
            assert len(ids) == 6
            return super().forward(ids)

    monitor = monitored(build(Whole))
    assert {r["step"] for r in monitor.rows() if r["name"] == "stream_rms"} == {1, 2, 4}


def test_closed_monitor_and_second_monitor():
    model = build(Handmade)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = addnorm.Monitor(model, optimizer)
    with pytest.warns(MonitorWarning, match="an earlier monitor measured it; that one is off now"):
        second = addnorm.Monitor(model, optimizer)
    train(model, optimizer, first, steps=1)
    assert first.rows() == [] and second.rows()
    second.close()
    with pytest.warns(MonitorWarning, match="step: expected an open monitor, got one that was clo"):
        assert second.step(1.0) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert second.step(1.0) == []
    first.close()


def test_warnings_as_errors_do_not_stop_training():
    model = build(lambda: nn.Sequential(nn.Embedding(23, DIM), nn.Linear(DIM, 23)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor = monitored(model)
    assert any("found none" in note for note in monitor.notes)


def test_loss_that_is_not_a_number():
    model = build(Handmade)
    monitor = addnorm.Monitor(model, example=make_batch(1))
    compute_loss(model, make_batch(1)).backward()
    with pytest.warns(MonitorWarning, match=r"^loss: expected a number, got Tensor of shape \(3,"):
        assert monitor.step(torch.ones(3))
    with pytest.warns(MonitorWarning, match=r"^loss: expected a number, got str"):
        monitor.step("high")
    monitor.close()


def test_no_hook_stays_on_model_and_optimizer():
    model = build(Handmade)
    monitor = monitored(model)
    assert not model._forward_pre_hooks and not model._forward_hooks
    assert monitor.notes == ()
