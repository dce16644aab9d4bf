"""The recorded graph shows what a wiring computes, independent of its card."""

import pytest
import torch
from torch import Tensor, nn

from addnorm.core.cards import Card
from addnorm.core.plan import Plan, Site
from addnorm.report.diagram.blocks import (
    DECODER_KINDS,
    ENCODER_KINDS,
    build_block_diagram,
    find_nodes,
)
from addnorm.report.diagram.draw import draw
from addnorm.report.diagram.graph import Graph, Node
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.placeholders import build_sublayers
from addnorm.report.diagram.recorder import record
from addnorm.stacks.stack import Stack
from addnorm.wirings import State, Wiring, registry


def sources(graph: Graph, node: Node) -> list[str]:
    """Return the kinds of a node's inputs."""
    return sorted(graph[edge.source].kind for edge in node.inputs)


def test_post_ln_normalizes_the_sum():
    graph = build_block_diagram("post_ln").graph
    norms, adds = find_nodes(graph, "norm"), find_nodes(graph, "add")
    assert [sources(graph, norm) for norm in norms] == [["add"], ["add"]]
    assert [sources(graph, add) for add in adds] == [["input", "sublayer"], ["norm", "sublayer"]]
    assert sources(graph, find_nodes(graph, "output")[0]) == ["norm"]


def test_pre_ln_normalizes_the_branch_and_once_at_the_end():
    graph = build_block_diagram("pre_ln").graph
    assert [sources(graph, f) for f in find_nodes(graph, "sublayer")] == [["norm"], ["norm"]]
    first, second = find_nodes(graph, "add")
    assert sources(graph, first) == ["input", "sublayer"]
    assert sources(graph, second) == ["add", "sublayer"]
    assert [norm.layer for norm in find_nodes(graph, "norm")] == [0, 0, -2]


def test_b2t_adds_the_input_of_the_layer_at_its_end():
    graph = build_block_diagram("b2t", decoder=True).graph
    *inner, last = find_nodes(graph, "add")
    assert sources(graph, last) == ["input", "norm", "sublayer"]
    assert [len(add.inputs) for add in inner] == [2, 2]


def test_deepnorm_scales_the_skip_by_alpha():
    graph = build_block_diagram("deepnorm", depth=6).graph
    assert [scale.label for scale in find_nodes(graph, "scale")] == ["α = 1.86"] * 2  # noqa: RUF001
    assert all("scale" in sources(graph, add) for add in find_nodes(graph, "add"))


def test_factors_that_change_with_depth_show_a_range():
    labels = {
        scale.label
        for scale in find_nodes(build_block_diagram("ln_scaling", depth=4).graph, "scale")
    }
    assert labels == {"× 1 … 0.5"}  # noqa: RUF001


def test_equal_layers_are_drawn_once():
    assert build_block_diagram("post_ln", depth=5).repeats == (5,)
    assert sum(build_block_diagram("mix_ln(post=0.5)", depth=4).repeats) == 4
    assert len(build_block_diagram("mix_ln(post=0.5)", depth=4).repeats) == 2
    assert build_block_diagram("post_ln", unroll=2).repeats == (1, 1)
    assert len(find_nodes(build_block_diagram("post_ln", unroll=2).graph, "sublayer")) == 4


def test_norms_inside_a_sublayer_are_noted():
    notes = [f.note for f in find_nodes(build_block_diagram("sub_ln").graph, "sublayer")]
    assert notes == ["norm: inner", "norm: inner"]


class Miswired(Wiring):
    """Has the card of Post-LN but normalizes the branch only."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.norms = self.make_site_norms()

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        return state[0], state

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        return (state[0] + self.norm(site)(branch),)

    def close(self, state: State) -> Tensor:
        return state[0]


class Twice(Miswired):
    """Adds the stream twice, and has a second state entry for the next layer."""

    def open(self, x: Tensor) -> State:
        return x, x

    def read(self, state: State, site: Site) -> tuple[Tensor, State]:
        x, kept = state
        return (self.norm(site)(kept) if site.first else x), (x, kept)

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        x, kept = state
        return x + branch + x, (branch * 3 if site.last else kept)


class Hidden(Miswired):
    """Computes in NumPy, which the recorder cannot see."""

    def write(self, state: State, site: Site, branch: Tensor) -> State:
        doubled = torch.from_numpy(state[0].numpy() * 2)
        return (doubled + branch,)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_members", dict(registry._members))
    monkeypatch.setattr(registry, "_cards", dict(registry._cards))

    def add(member: type[Wiring]) -> str:
        card = registry.card("post_ln")
        name = member.__name__.lower()
        texts = {"title": card.title, "formula": card.formula, "paper": card.paper}
        registry.register(Card(name=name, summary=card.summary, **texts))(member)
        return name

    return add


def test_miswired_class_is_drawn_as_it_computes(registered):
    wrong = build_block_diagram(registered(Miswired))
    assert wrong.formula == build_block_diagram("post_ln").formula
    assert [sources(wrong.graph, n) for n in find_nodes(wrong.graph, "norm")] == [["sublayer"]] * 2
    assert draw([wrong.call]) != draw(["post_ln"])


def test_double_add_and_state_for_next_layer_are_drawn(registered):
    graph = build_block_diagram(registered(Twice)).graph
    assert sources(graph, find_nodes(graph, "add")[0]) == ["input", "input", "sublayer"]
    ends = {end.label: sources(graph, end) for end in find_nodes(graph, "output")}
    assert ends == {"y": ["add"], "next layer": ["scale"]}
    drawn = compute_layout(build_block_diagram("twice"))
    assert len({line.points for line in drawn.lines}) == len(drawn.lines)


def test_unrecorded_computation_is_an_error(registered):
    with pytest.raises(RuntimeError, match="recorded operations do not reproduce the forward pass"):
        build_block_diagram(registered(Hidden))


@pytest.mark.parametrize("name", registry)
def test_replay_reproduces_the_stack(name):
    torch.manual_seed(0)
    for kinds, role, other in (
        (ENCODER_KINDS, "encoder_only", None),
        (DECODER_KINDS, "decoder", 2),
    ):
        sublayers: list[nn.Module] = list(build_sublayers(kinds, 2, 8))
        stack = Stack(
            sublayers, dim=8, wiring=name, kinds=kinds, role=role, other_depth=other
        ).eval()
        x, another, memory = torch.randn(3, 2, 3, 8).unbind()
        context = {"memory": memory} if other else {}
        replayed = record(stack, x, **context).replay(another)
        torch.testing.assert_close(replayed, stack(another, **context), atol=1e-5, rtol=1e-5)
