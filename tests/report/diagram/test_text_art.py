"""Block diagrams as text."""

import pytest

from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.layout import compute_layout
from addnorm.report.diagram.text_art import render_text
from addnorm.wirings import registry


def render(call: str) -> str:
    return render_text(compute_layout(build_block_diagram(call)))


def test_post_ln():
    expected = """\
            y
         [Norm]
           (+)────────────────╮
            │          [Feed-forward]
6 x         ├─────────────────╯
         [Norm]
           (+)────────────────╮
            │         [Self-attention]
            ├─────────────────╯
            x"""
    assert render("post_ln") == expected


def test_b2t_skips_the_whole_layer():
    lines = render("b2t").splitlines()
    assert lines[2].strip() == "╭──────(+)────────────────╮"
    assert lines[-2].strip().startswith("╰───────┼")


@pytest.mark.parametrize("name", registry)
def test_every_label_is_readable(name):
    """No label is overwritten by another one."""
    block = build_block_diagram(name)
    text = render(name)
    expected: dict[str, int] = {}
    for node in block.graph.values():
        symbol = {"add": "(+)", "mul": "(x)", "input": "x", "output": "y"}.get(node.kind)
        label = symbol or f"[{node.label}]"
        expected[label] = expected.get(label, 0) + 1
    for label, count in expected.items():
        assert text.count(label) >= count, (label, text)


def test_similar_wirings_are_drawn_differently():
    assert render("false_pre_ln") != render("pre_ln")
    assert render("pre_ln").splitlines()[1].strip() == "[Norm]"  # the final norm
    assert render("none").count("[Norm]") == 0


def test_crossings_differ_from_joints():
    assert "┼" in render("b2t")  # both branches leave the trunk there
    crossing = [line for line in render("siamese").splitlines() if "╰────────│───" in line]
    assert len(crossing) == 2
