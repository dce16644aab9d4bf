"""Every wiring, norm and kind of model exports with dynamic batch and length.

A graph is traced at one size and then run at others: a size that was fixed while tracing would
fail, or give the wrong result.
"""

import itertools

import pytest
import torch

from addnorm.exporters.graph_engine import GraphSpec
from addnorm.exporters.graphs import make_graphs
from addnorm.exporters.targets.onnx import OnnxTarget
from addnorm.exporters.targets.torch_program import trace_graph
from tests.exporters.models import KINDS, TOKENWISE_NORMS, WIRINGS, make_model

SIZES = ((1, 1, 1), (2, 4, 9), (5, 13, 3))
"""Batch, length and length of the memory."""
POSITIONS = ("none", "sinusoid", "learned(length=20)", "rotary", "alibi", "t5")
FAST = {("lm", "post_ln"), ("seq2seq", "b2t"), ("classifier", "mhc")}
CASES = [
    pytest.param(kind, wiring, marks=() if (kind, wiring) in FAST else pytest.mark.slow)
    for kind, wiring in itertools.product(KINDS, WIRINGS)
]
OTHERS = [
    *(("classifier", {"norm": norm}) for norm in TOKENWISE_NORMS),
    ("classifier", {"norm": "batch"}),
    ("classifier", {"norm": "power"}),
    *((kind, {"positions": name}) for kind in KINDS for name in POSITIONS),
    ("lm", {"positions": "t5", "window": 3, "kv_heads": 1, "cap": 5.0, "qk_norm": "rms_head"}),
    ("lm", {"activation": "swiglu", "head_cap": 3.0, "tied": False, "table_norm": "fixnorm"}),
    ("lm", {"gate": "element", "sink": "learned", "exclusive": True, "value_residual": "token"}),
    ("lm", {"gate": "head", "sink": "off_by_one", "value_embed": True}),
    ("lm", {"canon": "ABCD", "activation": "swiglu_clamped"}),
    ("lm", {"activation": "poly_norm"}),
    ("lm", {"experts": 4, "activation": "swiglu", "shared_ffn_dim": 12}),
    ("seq2seq", {"gate": "element", "sink": "learned", "value_residual": "half"}),
    ("lm", {"positions": "rotary(scaling=dynamic, length=5)"}),
    ("lm", {"positions": "rotary(scaling=longrope, short='1.0 2.0', long='2.0 3.0', length=5)"}),
    ("prefix_lm", {}),
    ("masked_lm", {"types": 2, "head_layer": True, "activation": "gelu"}),
    ("classifier", {"pooling": "mean", "pooler": True}),
    ("classifier", {"pooling": "none"}),
    ("classifier", {"image": 8, "patch": 4, "class_tokens": 2}),
]


def resize(graph, size):
    """Return inputs of a graph in another size: random numbers, right-padded masks."""
    batch, length, memory_length = size
    named = {"batch": batch, "length": length, "past_length": length}
    named |= {"source_length": memory_length, "rows": batch}
    generator = torch.Generator().manual_seed(batch)
    inputs = {}
    for name, example in graph.inputs.items():
        shape = list(example.shape)
        for axis, label in graph.axes.get(name, {}).items():
            shape[axis] = named[label]
        if example.dtype == torch.bool:
            lengths = torch.randint(1, shape[1] + 1, (shape[0], 1), generator=generator)
            inputs[name] = torch.arange(shape[1]) < lengths
        elif example.is_floating_point():
            inputs[name] = torch.randn(shape, generator=generator).to(example.dtype)
        else:
            high = 2 if name == "type_ids" else length + 1 if name == "prefix" else 19
            inputs[name] = torch.randint(high, shape, generator=generator)
    return inputs


def check_graph(graph, run):
    for size in SIZES:
        inputs = resize(graph, size)
        with torch.no_grad():
            expected = graph.module(*inputs.values())
        got = run(inputs)
        mask = inputs.get("mask", inputs.get("source_mask") if graph.name == "encoder" else None)
        for name, ours, theirs in zip(graph.outputs, expected, got, strict=True):
            assert ours.shape == theirs.shape, (graph.name, name, size)
            if mask is not None and name in ("logits", "memory") and ours.ndim == 3:
                ours, theirs = ours[mask], theirs[mask]
            elif name.startswith("present"):
                continue  # at padding they are not defined; the step below reads them
            torch.testing.assert_close(theirs, ours, atol=2e-5, rtol=1e-4)


def check_torch(model):
    for graph in make_graphs(model):
        module = trace_graph(graph).module()
        check_graph(graph, lambda inputs, module=module: module(*inputs.values()))


@pytest.mark.parametrize(("kind", "wiring"), CASES)
def test_every_wiring_exports_with_dynamic_sizes(kind, wiring):
    check_torch(make_model(kind, wiring=wiring, depth=1 if (kind, wiring) in FAST else 2))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), OTHERS, ids=str)
def test_every_norm_and_option_exports_with_dynamic_sizes(kind, options):
    check_torch(make_model(kind, **options))


def check_onnx(model, tmp_path):
    target = OnnxTarget()
    for graph in make_graphs(model):
        target.write_graph(graph, tmp_path / graph.name)
        spec = GraphSpec(tuple(graph.inputs), graph.outputs)
        run = target.open_graph(tmp_path / graph.name, spec)
        check_graph(graph, lambda inputs, run=run: list(run(inputs).values()))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "wiring"), list(itertools.product(KINDS, WIRINGS)))
def test_every_wiring_runs_in_onnx_runtime(kind, wiring, tmp_path):
    check_onnx(make_model(kind, wiring=wiring), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options"), OTHERS, ids=str)
def test_every_norm_and_option_runs_in_onnx_runtime(kind, options, tmp_path):
    check_onnx(make_model(kind, **options), tmp_path)


def test_the_batch_is_not_fixed_where_it_equals_the_number_of_heads():
    model = make_model("lm", positions="t5", heads=3, depth=1)  # the example batch is 3
    check_torch(model)
