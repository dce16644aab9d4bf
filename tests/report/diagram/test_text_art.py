"""Block diagrams in characters."""

import pytest
from addnorm.report.build_arm_diagram.blocks import build_block_diagram
from addnorm.report.build_arm_diagram.layout import compute_layout
from addnorm.report.build_arm_diagram.text_art import render_text

from addnorm.wirings import registry


def drawn(call: str) -> str:
    return render_text(compute_layout(build_block_diagram(call)))


def test_post_ln_is_the_figure_of_the_paper():
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
    assert drawn("post_ln") == expected


def test_b2t_has_its_skip_around_the_layer():
    lines = drawn("b2t").splitlines()
    assert lines[2].strip() == "╭──────(+)────────────────╮"
    assert lines[-2].strip().startswith("╰───────┼")


@pytest.mark.parametrize("name", registry)
def test_every_label_of_every_wiring_is_whole(name):
    """Nothing is overwritten: each box and sign of the graph can be read in the text."""
    picture = build_block_diagram(name)
    text = drawn(name)
    wanted: dict[str, int] = {}
    for node in picture.graph.values():
        sign = {"add": "(+)", "mul": "(x)", "input": "x", "output": "y"}.get(node.kind)
        label = sign or f"[{node.label}]"
        wanted[label] = wanted.get(label, 0) + 1
    for label, count in wanted.items():
        assert text.count(label) >= count, (label, text)


def test_a_wrong_wiring_is_drawn_as_it_is():
    assert drawn("false_pre_ln") != drawn("pre_ln")
    assert drawn("pre_ln").splitlines()[1].strip() == "[Norm]"  # the final norm
    assert drawn("none").count("[Norm]") == 0


def test_lines_that_only_cross_are_told_from_lines_that_join():
    assert "┼" in drawn("b2t")  # both branches leave the trunk there
    crossing = [line for line in drawn("siamese").splitlines() if "╰────────│───" in line]
    assert len(crossing) == 2
