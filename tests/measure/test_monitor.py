"""Training monitor: values against references, and unchanged training."""

import os
import subprocess
import sys
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from addnorm import Stack, UserError, build
from addnorm.measure import SITE_METRICS, Monitor, forward_rows, site_parameters
from addnorm.measure.monitor import first_sequences
from tests.helpers import toy_stack
from tests.measure import reference
from tests.measure.cases import SELECTED_WIRINGS, compute_loss, make_batch, make_translator


def train_steps(model, monitor=None, *, count=4, run=None, accumulate=2, eps=1e-8):
    """Train a few steps and return the rows."""
    run = model if run is None else run
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=eps)
    torch.manual_seed(7)
    rows = []
    for step in range(1, count + 1):
        optimizer.zero_grad()
        for batch in range(accumulate):
            compute_loss(run, seed=10 * step + batch).backward()
        if monitor is not None:
            args, masks = make_batch(10 * step)
            monitor.before_update(step, *args, **masks)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.after_step()
        rows += [] if monitor is None else monitor.after_update()
    return rows


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("wiring", SELECTED_WIRINGS)
def test_training_is_bitwise_equal_with_and_without_monitor(wiring, recompute):
    plain, monitored = make_translator(wiring), make_translator(wiring)
    for stack in (*plain.stacks, *monitored.stacks):
        stack.recompute = recompute
    train_steps(plain)
    state = torch.get_rng_state()
    rows = train_steps(monitored, Monitor(monitored, every=2))
    assert rows
    assert torch.equal(torch.get_rng_state(), state)
    for (name, one), other in zip(
        plain.state_dict().items(), monitored.state_dict().values(), strict=True
    ):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("norm", ["batch", "power"])
def test_running_statistics_ignore_the_probe(norm):
    plain, monitored = (make_translator(encoder_norm=norm) for _ in range(2))
    train_steps(plain)
    train_steps(monitored, Monitor(monitored, every=1))
    for one, other in zip(plain.buffers(), monitored.buffers(), strict=True):
        assert torch.equal(one, other)


def test_rows_equal_the_reference():
    model, (args, masks) = make_translator("post_ln", dropout=0.0), make_batch()
    monitor = Monitor(model, every=1, sentences=5)
    compute_loss(model).backward()
    before = deepcopy(model)
    expected = forward_rows(model, *args, **masks)
    monitor.before_update(3, *args, **masks)
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    rows = monitor.after_update()
    assert [row for row in rows if row["name"] in SITE_METRICS] == [
        {"step": 3, **row} for row in expected
    ]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    old, new = dict(before.named_parameters()), dict(model.named_parameters())
    for row in rows:
        if row["name"] in SITE_METRICS:
            continue
        if "site" in row:
            stack = getattr(model, row["stack"])
            own = {id(each) for each in site_parameters(stack, stack.plan.sites[row["site"]])}
            names = [name for name in new if id(new[name]) in own]
            assert any("wiring.norms" in name for name in names)
        else:
            names = list(new)
        if row["name"] == "gradient_norm":
            value = reference.norm([gradients[name] for name in names])
        else:
            moved = [(new[name] - old[name]).detach() for name in names]
            value = reference.norm(moved) / reference.norm([old[name].detach() for name in names])
        assert row["value"] == pytest.approx(value, rel=1e-4), row
    assert sum(row["name"] == "gradient_norm" for row in rows) == 11
    assert sum(row["name"] == "update_ratio" for row in rows) == 11


def test_due_steps():
    monitor = Monitor(toy_stack("pre_ln"), every=50)
    assert [step for step in range(1, 151) if monitor.is_due(step)] == [1, 50, 100, 150]
    monitor.before_update(2, torch.zeros(3, 7, 10))
    assert monitor.after_update() == []


def test_skipped_step_has_no_rows():
    monitor, x = Monitor(toy_stack("pre_ln"), every=50), torch.zeros(3, 7, 10)
    monitor.before_update(50, x)
    monitor.before_update(51, x)
    assert monitor.after_update() == []
    monitor.before_update(100, x)
    assert {row["step"] for row in monitor.after_update()} == {100}
    assert monitor.after_update() == []


def test_without_arguments_there_are_no_site_metrics():
    monitor = Monitor(toy_stack("pre_ln"), every=1)
    monitor.before_update(1)
    assert {row["name"] for row in monitor.after_update()} == {"gradient_norm", "update_ratio"}


def test_missing_gradients_count_as_zero():
    stack = toy_stack("rezero", depth=1)
    stack.sublayers[0].requires_grad_(False)
    monitor = Monitor(stack, every=1)
    monitor.before_update(1)
    rows = monitor.after_update()
    assert {row.get("site") for row in rows} == {None, 1}  # nothing at site 0 is trained
    assert all(row["value"] == 0 for row in rows)


def test_zero_weights_have_no_update_ratio():
    stack = toy_stack("none", depth=1)
    nn.init.zeros_(stack.sublayers[0][0].weight)
    nn.init.zeros_(stack.sublayers[0][0].bias)
    monitor = Monitor(stack, every=1)
    monitor.before_update(1)
    ratios = [row.get("site") for row in monitor.after_update() if row["name"] == "update_ratio"]
    assert ratios == [None, 1]


def test_shared_sublayer_counts_at_both_sites_and_once_in_total():
    shared = nn.Linear(4, 4)
    stack = Stack([shared, shared], dim=4, wiring="none", kinds=("ffn",))
    stack(torch.ones(1, 2, 4)).sum().backward()
    monitor = Monitor(stack, every=1)
    monitor.before_update(1)
    norms = [row["value"] for row in monitor.after_update() if row["name"] == "gradient_norm"]
    assert norms == pytest.approx([reference.norm([shared.weight.grad, shared.bias.grad])] * 3)


def test_probe_reads_first_sequences_only():
    args, masks = make_batch()
    cut, named = first_sequences(args, masks | {"visible": torch.ones(5, 5), "flag": None}, 2)
    assert [each.shape for each in cut] == [(2, 7), (2, 6)]
    assert torch.equal(named["source_mask"], masks["source_mask"][:2])
    assert named["visible"].shape == (5, 5)
    assert first_sequences((), {"ids": torch.ones(5, 3), "position_index": torch.ones(5)}, 2)[1][
        "position_index"
    ].shape == (5,)
    with pytest.raises(UserError, match="args: expected the arguments of the model, got no tensor"):
        first_sequences((1,), {}, 2)


@pytest.mark.parametrize("options", [{"every": 0}, {"sentences": 0}])
def test_counts_must_be_positive(options):
    with pytest.raises(UserError, match="expected an integer of at least 1, got 0"):
        Monitor(toy_stack("pre_ln"), **options)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["wrapped", "in place"])
def test_compiled_model_is_measured_without_recompilation(mode):
    plain, monitored = make_translator(dropout=0.0), make_translator(dropout=0.0)
    compiled = []

    def backend(graph, _inputs):
        compiled.append(graph)
        return graph.forward

    run = monitored
    if mode == "wrapped":
        run = torch.compile(monitored, backend=backend)
    else:
        monitored.compile(backend=backend)
    expected = train_steps(plain, Monitor(plain, every=1), count=3)
    compute_loss(run, seed=10).backward()  # compile
    count = len(compiled)
    assert count > 0
    rows = train_steps(monitored, Monitor(run, every=1), count=3, run=run)
    assert len(compiled) == count
    assert [{**row, "value": 0} for row in rows] == [{**row, "value": 0} for row in expected]
    assert [row["value"] for row in rows] == pytest.approx(
        [row["value"] for row in expected], rel=1e-3, abs=1e-6
    )
    torch._dynamo.reset()


DISTRIBUTED_SCRIPT = """
import sys
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from addnorm.measure import Monitor
from tests.measure.cases import make_translator
from tests.measure.test_monitor import train_steps

mode, rank, store = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
distributed.init_process_group(
    "gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2
)
# A softmax does not see the bias of the keys, so its gradient is 0 but for rounding, below 1e-8.
# With its default eps Adam turns that into steps of the learning rate, and the logits, not the
# outputs, follow them. This eps is far above the rounding of gradients.
eps = 1e-4
alone = make_translator("gated", dropout=0.0)
expected = train_steps(alone, Monitor(alone, every=2), eps=eps)


def parallelize():
    model = make_translator("gated", dropout=0.0)
    if mode == "ddp":
        return model, DistributedDataParallel(model)
    for stack in model.stacks:
        for sublayer in stack.sublayers:
            fully_shard(sublayer)
    return model, fully_shard(model)


plain, run = parallelize()
train_steps(plain, run=run, eps=eps)
model, run = parallelize()
rows = train_steps(model, Monitor(run, every=2), run=run, eps=eps)
assert [{**row, "value": 0} for row in rows] == [{**row, "value": 0} for row in expected]
for row, other in zip(rows, expected):
    # float32 rounds to 6e-8, and the halves of each sum are added in another order: some hundred
    # roundings in two backward passes and four steps.
    assert abs(row["value"] - other["value"]) <= 1e-5 * abs(other["value"]) + 1e-7, (row, other)
for one, other in zip(model.parameters(), plain.parameters()):
    one, other = (each.to_local() if mode == "fsdp" else each for each in (one, other))
    assert torch.equal(one, other)
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_two_processes_give_the_rows_of_one(mode, tmp_path):
    running = [
        subprocess.Popen(
            [sys.executable, "-c", DISTRIBUTED_SCRIPT, mode, str(rank), str(tmp_path / "store")],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=600)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], errors


def test_wrappers_are_removed():
    model = build(kind="lm", vocab=9, dim=8, depth=1, heads=2, seed=0)
    wrapped = DistributedDataParallel.__new__(DistributedDataParallel)
    nn.Module.__init__(wrapped)
    wrapped.module = model
    assert Monitor(wrapped).model is model
