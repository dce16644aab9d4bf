"""Training loops and models that are unusual: nothing is lost, nothing stops."""

import copy
import io
import math
import warnings

import pytest
import torch
from torch import nn

import addnorm
from addnorm.core.errors import MonitorWarning, UserError
from tests.monitor.models import Handmade, build, compute_loss, make_batch, train
from tests.monitor.test_monitor import monitored, values


def measured_steps(monitor, name="stream_rms"):
    return sorted({row["step"] for row in monitor.rows() if row["name"] == name})


@pytest.mark.parametrize("order", ["listed", "reversed", "repeated"])
def test_optimizers_step_in_any_order(order):
    model = build(Handmade)
    parameters = list(model.parameters())
    first = torch.optim.SGD(parameters[:5], lr=0.1)
    second = torch.optim.SGD(parameters[5:], lr=0.1)
    norms = []
    with addnorm.Monitor(model, [first, second], every=1) as monitor:
        for step in range(1, 4):
            loss = compute_loss(model, make_batch(step))
            loss.backward()
            gradients = [p.grad for p in parameters]
            norms.append(
                float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients])))
            )
            if order == "repeated":  # one of them never steps
                first.step()
            else:
                for each in (first, second) if order == "listed" else (second, first):
                    each.step()
            model.zero_grad()
            monitor.step(loss)
    found = [
        r["value"] for r in monitor.rows() if r["name"] == "gradient_norm" and r["site"] is None
    ]
    count = 2 if order == "repeated" else 3  # the last update has not ended
    assert found == pytest.approx(norms[:count], rel=1e-5)
    changes = {
        r["value"] for r in monitor.rows() if r["name"] == "update_ratio" and r["site"] is None
    }
    assert min(changes) > 0


def test_nested_blocks_close_once():
    model = build(Handmade)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = addnorm.Monitor(model, optimizer, every=1)
    with monitor:
        with monitor:
            train(model, optimizer, monitor, steps=1)
        train(model, optimizer, monitor, steps=1)
    assert measured_steps(monitor) == [1, 2]
    assert [r["name"] for r in monitor.rows()].count("ended") == 1


def test_model_that_empties_its_input():
    class Popping(Handmade):
        def forward(self, batch):
            return super().forward(batch.pop("ids"))

    model = build(Popping)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with addnorm.Monitor(model, optimizer, every=1) as monitor:
        for step in range(1, 5):
            ids = make_batch(step)
            loss = compute_loss(lambda _, ids=ids: model({"ids": ids}), ids)
            loss.backward()
            if step == 4:
                next(model.parameters()).grad[:] = math.nan
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
    assert measured_steps(monitor) == [1, 2, 3, 4]
    assert monitor.notes == ()
    assert [row["pass"] for row in monitor.rows() if row["name"] == "nonfinite"] == ["backward"]


def test_input_that_cannot_be_used_again():
    class Reading(Handmade):
        def forward(self, batches):
            return super().forward(next(batches))

    model = build(Reading)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    text = r"^model: it does not run again on the inputs of its first call \(StopIteration"
    monitor = addnorm.Monitor(model, optimizer, every=2)
    with pytest.warns(MonitorWarning, match=text) as seen, monitor:
        for step in range(1, 5):
            ids = make_batch(step)
            loss = compute_loss(lambda _, ids=ids: model(iter([ids])), ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
    assert len(seen) == 1 and monitor.sites == ()
    assert measured_steps(monitor, "gradient_norm") == [1, 2, 4]
    assert measured_steps(monitor, "loss") == [1, 2, 3, 4]


def test_mapping_that_is_not_a_dict_is_copied():
    from collections import UserDict

    class Reading(Handmade):
        def forward(self, batch):
            return super().forward(batch["ids"])

    model = build(Reading)
    batch = UserDict(ids=make_batch(1))
    monitor = addnorm.Monitor(model, every=1, example=batch)
    first = {r["site"]: r["value"] for r in monitor.step() if r["name"] == "stream_rms"}
    batch["ids"].zero_()
    assert first == {r["site"]: r["value"] for r in monitor.step() if r["name"] == "stream_rms"}
    monitor.close()


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.warns(MonitorWarning, match="the sink JsonLines failed") as seen:
        monitor = monitored(build(Handmade), folder=tmp_path / "file")
    assert len(seen) == 1
    assert measured_steps(monitor) == [1, 2, 4]


def test_gradients_that_are_gone():
    model = build(Handmade)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    text = r"^gradients: expected those of the update, got none"
    with pytest.warns(MonitorWarning, match=text) as seen, addnorm.Monitor(model) as monitor:
        train(model, optimizer, monitor, steps=2)
    assert len(seen) == 1
    names = {row["name"] for row in monitor.rows()}
    assert "stream_rms" in names and "gradient_norm" not in names


def test_optimizer_that_never_steps():
    model = build(Handmade)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = addnorm.Monitor(model, optimizer)
    with pytest.warns(MonitorWarning, match=r"^optimizer: expected its step to be called"), monitor:
        monitor.step(1.0)


def test_one_sink_needs_no_list():
    rows = []
    monitor = monitored(build(Handmade), sinks=rows.extend)
    assert rows == monitor.rows()
    with pytest.raises(UserError, match=r"^sinks: unknown sink 'tensorbord'"):
        addnorm.Monitor(build(Handmade), sinks="tensorbord")
    with pytest.raises(UserError, match=r"^folder: expected a path, got int"):
        addnorm.Monitor(build(Handmade), folder=3)


def test_closed_monitor_takes_no_rows():
    monitor = monitored(build(Handmade))
    before = monitor.rows()
    with pytest.warns(MonitorWarning, match=r"^log: expected an open monitor"):
        monitor.log("accuracy", 0.5)
    assert monitor.rows() == before


def test_warnings_name_the_training_code():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        monitored(build(lambda: nn.Sequential(nn.Embedding(23, 4), nn.Linear(4, 23))))
    (warning,) = [each for each in seen if each.category is MonitorWarning]
    assert warning.filename.endswith("tests/monitor/models.py")


def test_copies_of_a_monitored_model_are_free_of_it():
    model = build(Handmade)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with addnorm.Monitor(model, optimizer, every=1) as monitor:
        compute_loss(model, make_batch(1)).backward()
        clone = copy.deepcopy(model)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        optimizer.step()
        monitor.step()
        for other in (clone, loaded):
            (hook,) = other._forward_pre_hooks.values()
            assert hook.__self__.__class__.__name__ == "_InertObserver"
            compute_loss(other, make_batch(2))
    assert measured_steps(monitor) == [1]


def test_sites_of_a_loop_in_the_model_itself_have_the_name_of_their_layer():
    class Flat(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(23, 16), nn.Linear(16, 23)
            self.layers = nn.ModuleList(
                nn.ModuleDict({"norm": nn.LayerNorm(16), "up": nn.Linear(16, 16)}) for _ in range(3)
            )

        def forward(self, ids):
            x = self.table(ids)
            for layer in self.layers:
                x = x + torch.relu(layer["up"](layer["norm"](x)))
            return self.head(x)

    monitor = monitored(build(Flat))
    assert [site.name for site in monitor.sites] == ["layers.0", "layers.1", "layers.2"]


def test_entropy_of_nan_logits_is_nan():
    model = build(Handmade)
    with torch.no_grad():
        model.qkv[0][0] = math.nan
    monitor = monitored(model, steps=1)
    assert all(math.isnan(value) for value in values(monitor, "attention_entropy").values())
