"""The compiled training step: one graph, which serves all batch sizes and lengths of a bucket."""

from contextlib import nullcontext

import pytest
import torch

from addnorm.models import build
from addnorm.norms.base import registry as norms
from addnorm.tasks import Objective, get_task
from addnorm.wirings import registry as wirings

VOCAB = 40
BUCKET = [(3, 9), (3, 11), (4, 15), (2, 13), (5, 16)]
"""Sentences and tokens of the batches."""
RANDOM = {"drop_path", "layer_drop"}
"""Wirings that draw what they drop; a compiled graph draws other numbers."""
KINDS = {"lm": "lm", "translate": "seq2seq", "classify": "classifier", "mlm": "mlm"}


def make_batch(task, size, length, seed):
    """Return the inputs and targets of a batch, of which the first row is padded."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(4, VOCAB, (size, length), generator=generator)
    targets = torch.randint(4, VOCAB, (size, length), generator=generator)
    inputs[0, -2:], targets[0, -2:] = 0, -100
    if task == "classify":
        targets = targets[:, :1] % 2
    return inputs, targets


def check_one_graph(task, *, backend, autocast=False, compare=True, recompute=False, **config):
    """Train on all batches of the bucket with one compiled graph, and compare with eager steps."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    extra = {"classes": 2} if task == "classify" else {}
    settings = {"vocab": VOCAB, "dim": 16, "depth": 2, "heads": 2} | extra | config
    model = build(kind=KINDS[task], **settings).train()
    for stack in model.stacks:
        stack.packed, stack.recompute = True, recompute
    objective = Objective(model, get_task(task), smoothing=0.1)
    compiled = torch.compile(objective, dynamic=True, fullgraph=True, backend=backend)
    weights = [each for each in model.parameters() if each.requires_grad]
    context = torch.autocast("cpu", dtype=torch.bfloat16) if autocast else nullcontext()
    with torch._dynamo.config.patch(error_on_recompile=True), context:
        for seed, (size, length) in enumerate(BUCKET):
            inputs, targets = make_batch(task, size, length, seed)
            results = []
            for run in (compiled, objective) if compare else (compiled,):
                loss, sums = run(inputs, targets)
                grads = torch.autograd.grad(loss, weights, allow_unused=True)
                results.append([loss, *sums, *(each for each in grads if each is not None)])
            if compare:
                bound = 5e-2 if autocast else 1e-4
                largest = max(float(each.detach().abs().max()) for each in results[1])
                for one, other in zip(*results, strict=True):
                    torch.testing.assert_close(one, other, rtol=bound, atol=bound * largest)


@pytest.mark.parametrize("wiring", list(wirings))
def test_step_of_every_wiring_is_one_graph(wiring):
    check_one_graph("lm", backend="eager", wiring=wiring, compare=False)


@pytest.mark.slow
@pytest.mark.parametrize("norm", list(norms))
def test_step_of_every_norm_is_one_graph(norm):
    check_one_graph("classify", backend="eager", norm=norm, depth=1, compare=False)


@pytest.mark.slow
@pytest.mark.parametrize("wiring", list(wirings))
def test_gradients_of_one_graph_equal_eager_ones(wiring):
    check_one_graph("lm", backend="aot_eager", wiring=wiring, compare=wiring not in RANDOM)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"task": "translate", "wiring": "deepnorm"},
        {"task": "translate", "wiring": "hyper", "encoder_wiring": "b2t"},
        {"task": "classify"},
        {"task": "mlm"},
        {"autocast": True, "norm": "rms"},
        {"recompute": True},
        {"activation": "swiglu", "positions": "rotary", "kv_heads": 1, "qk_norm": "rms"},
        {"positions": "learned", "dropout": 0.1, "compare": False},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
def test_step_of_other_models_is_one_graph(changes):
    check_one_graph(**{"task": "lm", "backend": "aot_eager", "wiring": "pre_ln"} | changes)


@pytest.mark.slow
@pytest.mark.parametrize("wiring", ["post_ln", "pre_ln", "hyper"])
def test_step_is_one_graph_with_inductor(wiring):
    check_one_graph("lm", backend="inductor", wiring=wiring)


def test_recompilation_is_noticed():
    with (
        torch._dynamo.config.patch(error_on_recompile=True),
        pytest.raises(torch._dynamo.exc.RecompileError),
    ):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: x + x.shape[0], dynamic=False, backend="eager")
        compiled(torch.ones(2)), compiled(torch.ones(3))
