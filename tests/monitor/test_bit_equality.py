"""Training with a monitor ends with the same bits as without it."""

import functools

import pytest
import torch

import addnorm
from tests.monitor.models import (
    Handmade,
    TorchModel,
    build,
    compute_loss,
    make_batch,
    make_gpt2,
    train,
)

MODELS = {
    "handmade": functools.partial(Handmade, dropout=0.1),
    "torch": TorchModel,
    "gpt2": make_gpt2,
    "addnorm": lambda: addnorm.build(kind="lm", vocab=23, dim=16, depth=2, heads=4, dropout=0.1),
}


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def assert_same_bits(make, run, *, wrap=lambda model: model):
    """Run twice, once with a monitor, and compare weights, optimizer state and generators."""
    results = []
    for is_monitored in (False, True):
        model = build(make)
        run_model = wrap(model)
        optimizer = make_optimizer(model)
        monitor = None
        if is_monitored:
            monitor = addnorm.Monitor(run_model, optimizer, every=2)
        losses = run(model, optimizer, monitor, run_model)
        if monitor is not None:
            monitor.close()
        state = [value for each in optimizer.state.values() for value in each.values()]
        results.append((losses, list(model.state_dict().values()), state, torch.get_rng_state()))
    plain, monitored = results
    assert plain[0] == monitored[0]
    for one, other in zip([*plain[1], *plain[2]], [*monitored[1], *monitored[2]], strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    assert torch.equal(plain[3], monitored[3])
    assert not monitor.notes
    assert {row["step"] for row in monitor.rows() if row["name"] == "stream_rms"} == {1, 2, 4}
    return monitor


@pytest.mark.parametrize("name", MODELS)
def test_dropout_accumulation_and_clipping(name):
    monitor = assert_same_bits(
        MODELS[name],
        lambda model, optimizer, monitor, run: train(
            model, optimizer, monitor, run=run, accumulate=2, clip=0.3
        ),
    )
    assert len(monitor.sites) == 4


@pytest.mark.parametrize("name", ["handmade", "gpt2"])
def test_bfloat16_autocast(name):
    monitor = assert_same_bits(
        MODELS[name],
        lambda model, optimizer, monitor, run: train(
            model, optimizer, monitor, run=run,
            context=lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        ),
    )  # fmt: skip
    (first,) = (
        r for r in monitor.rows() if r["name"] == "max_logit" and r["site"] == 0 and r["step"] == 1
    )
    assert first["value"] == float(torch.tensor(first["value"]).bfloat16()) or name == "gpt2"


@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
def test_activation_checkpointing(reentrant):
    assert_same_bits(
        functools.partial(Handmade, dropout=0.1, reentrant=reentrant),
        lambda model, optimizer, monitor, run: train(model, optimizer, monitor, run=run),
    )


def test_gradient_checkpointing_of_transformers():
    def make():
        model = make_gpt2()
        model.gradient_checkpointing_enable()
        return model

    assert_same_bits(make, lambda m, optimizer, monitor, run: train(m, optimizer, monitor, run=run))


def test_grad_scaler_with_a_skipped_step():
    def run(model, optimizer, monitor, _):
        torch.manual_seed(3)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        losses = []
        for step in range(1, 7):
            loss = compute_loss(model, make_batch(step))
            scaler.scale(loss).backward()
            if step == 3:
                next(model.parameters()).grad.flatten()[0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
            if monitor is not None:
                monitor.step(loss)
        return losses

    monitor = assert_same_bits(functools.partial(Handmade, dropout=0.1), run)
    norms = {
        r["step"]: r["value"]
        for r in monitor.rows()
        if r["name"] == "gradient_norm" and r["site"] is None
    }
    assert all(0.01 < value < 100 for value in norms.values()), norms  # not the scaled gradients
    assert monitor.state_dict()["step"] == 5  # the skipped step is not an update


def test_buffers_attributes_and_python_generators_are_restored():
    import random

    class Counting(Handmade):
        def __init__(self):
            super().__init__()
            self.calls, self.last = 0, None
            self.register_buffer("steps", torch.zeros(()))

        def forward(self, ids):
            self.calls += 1
            self.steps += 1
            random.random()
            self.last = ids
            return super().forward(ids)

    states = []

    def run(model, optimizer, monitor, _):
        random.seed(0)
        losses = train(model, optimizer, monitor)
        states.append((model.calls, random.getstate(), model.last.tolist()))
        return losses

    assert_same_bits(Counting, run)
    assert states[0] == states[1]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["wrapper", "in place", "inner"])
def test_torch_compile(way):
    import torch._dynamo

    graphs = []

    def wrap(model):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        if way == "in place":
            model.compile(backend="aot_eager", fullgraph=True)
            return model
        return torch.compile(model, backend="aot_eager", fullgraph=True)

    def run(model, optimizer, monitor, run_model):
        losses = train(model, optimizer, monitor, run=run_model)
        graphs.append(dict(torch._dynamo.utils.counters["stats"]).get("unique_graphs"))
        return losses

    if way == "inner":  # the model is compiled after its monitor was made
        results = []
        for is_monitored in (False, True):
            model = build(make_gpt2)
            optimizer = make_optimizer(model)
            monitor = addnorm.Monitor(model, optimizer, every=2) if is_monitored else None
            results.append((run(model, optimizer, monitor, wrap(model)), model))
        assert results[0][0] == results[1][0]
        for one, other in zip(*(model.parameters() for _, model in results), strict=True):
            assert torch.equal(one, other)
        assert len(monitor.sites) == 4 and monitor.notes == ()
        monitor.close()
    else:
        assert_same_bits(make_gpt2, run, wrap=wrap)
    assert graphs == [1, 1]  # nothing is compiled again


def test_closure_and_several_optimizers():
    def run(model, optimizers, monitor):
        torch.manual_seed(3)
        for step in range(1, 5):

            def closure(step=step):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss = compute_loss(model, make_batch(step))
                loss.backward()
                return loss

            loss = optimizers[0].step(closure)
            for optimizer in optimizers[1:]:
                optimizer.step()
            if monitor is not None:
                monitor.step(loss)

    models = []
    for is_monitored in (False, True):
        model = build(Handmade)
        parameters = list(model.parameters())
        optimizers = [torch.optim.SGD(parameters[:5], lr=0.1), torch.optim.Adam(parameters[5:])]
        monitor = addnorm.Monitor(model, optimizers, every=2) if is_monitored else None
        run(model, optimizers, monitor)
        models.append(model)
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)
    norms = [r["value"] for r in monitor.rows() if r["name"] == "gradient_norm"]
    assert norms and all(value > 0 for value in norms)
    assert all(r["value"] > 0 for r in monitor.rows() if r["name"] == "update_ratio")
    monitor.close()
