"""Diagrams of every wiring: no overlaps, nothing outside the canvas, stable bytes."""

import re
from functools import cache
from itertools import combinations, pairwise
from xml.etree import ElementTree

import pytest

from addnorm.core.errors import UnknownNameError, UserError
from addnorm.report.diagram.blocks import build_block_diagram
from addnorm.report.diagram.draw import check_output_file, draw, render_png, save
from addnorm.report.diagram.graph import ROUND_KINDS
from addnorm.report.diagram.label_text import format_formula
from addnorm.report.diagram.layout import (
    FONT_SIZE,
    SMALL_FONT_SIZE,
    TINY_FONT_SIZE,
    Box,
    Diagram,
    compute_layout,
    format_notes,
)
from addnorm.report.diagram.svg import render_svg
from addnorm.report.diagram.text_metrics import shorten, text_width, wrap
from addnorm.wirings import registry

SVG = "{http://www.w3.org/2000/svg}"
EITHER = pytest.mark.parametrize("decoder", [False, True], ids=["encoder", "decoder"])


@cache
def drawn(name: str, decoder: bool) -> Diagram:
    return compute_layout(build_block_diagram(name, decoder=decoder))


def overlap(a: Box, b: Box) -> bool:
    return abs(a.x - b.x) < (a.w + b.w) / 2 and abs(a.y - b.y) < (a.h + b.h) / 2


def crossed(diagram: Diagram) -> list[tuple[str, str]]:
    """Return the boxes that a line crosses, other than the two it connects."""
    crossings = []
    for line in diagram.lines:
        ends = {line.route.source, line.route.target}
        for (ax, ay), (bx, by) in zip(line.points, line.points[1:], strict=False):
            for box in diagram.boxes:
                inside = (
                    min(ax, bx) < box.x + box.w / 2 - 1
                    and max(ax, bx) > box.x - box.w / 2 + 1
                    and min(ay, by) < box.bottom - 1
                    and max(ay, by) > box.top + 1
                )
                if inside and box.node.id not in ends:
                    crossings.append((str(line.route), box.node.label))
    return crossings


@EITHER
@pytest.mark.parametrize("name", registry)
def test_boxes_and_lines_do_not_overlap_and_fit(name, decoder):
    diagram = drawn(name, decoder)
    assert not [(a, b) for a, b in combinations(diagram.boxes, 2) if overlap(a, b)]
    assert not crossed(diagram)
    for line in diagram.lines:
        assert all(diagram.left <= x <= diagram.right for x, _ in line.points)
        assert all(diagram.top <= y <= diagram.bottom for _, y in line.points)
    for box in diagram.boxes:
        if box.node.kind not in (*ROUND_KINDS, "input", "output"):
            assert (
                text_width(
                    box.node.label, SMALL_FONT_SIZE if box.node.kind == "scale" else FONT_SIZE
                )
                < box.w
            )
            for line in format_notes(box.node):
                assert text_width(line, TINY_FONT_SIZE) < box.w
    root = ElementTree.fromstring(render_svg([diagram]))
    wide, high = float(root.get("width", 0)), float(root.get("height", 0))
    assert diagram.right - diagram.left < wide
    assert diagram.bottom - diagram.top < high


def text_spans(root: ElementTree.Element) -> list[tuple[str, float, float, float]]:
    """Return every text of an SVG with its estimated left and right end and its y."""
    spans = []
    groups = [(root, (0.0, 0.0))]
    for group in root.findall(f"{SVG}g"):
        x, y = (float(n) for n in re.findall(r"-?[\d.]+", group.get("transform", "")))
        groups.append((group, (x, y)))
    for group, (dx, dy) in groups:
        for text in group.findall(f"{SVG}text"):
            content = "".join(text.itertext())
            bold = text.get("font-weight") is not None
            wide = text_width(content, float(text.get("font-size", 14)), bold=bold)
            start = {"middle": wide / 2, "end": wide}[text.get("text-anchor", "")]
            left = float(text.get("x", 0)) + dx - start
            spans.append((content, left, left + wide, float(text.get("y", 0)) + dy))
    return spans


@EITHER
@pytest.mark.parametrize("name", registry)
def test_texts_are_inside_the_canvas(name, decoder):
    root = ElementTree.fromstring(render_svg([drawn(name, decoder)]))
    wide, high = float(root.get("width", 0)), float(root.get("height", 0))
    spans = text_spans(root)
    assert len(spans) == len(list(root.iter(f"{SVG}text")))
    assert [s for s in spans if s[1] < 0 or s[2] > wide or not 0 < s[3] < high] == []


def test_texts_of_neighbors_do_not_overlap():
    root = ElementTree.fromstring(render_svg([drawn(name, False) for name in registry]))
    rows: dict[float, list[tuple[float, float, str]]] = {}
    for content, left, right, y in text_spans(root):
        rows.setdefault(round(y), []).append((left, right, content))
    for row in rows.values():
        row.sort()
        assert [(a, b) for a, b in pairwise(row) if a[1] > b[0]] == []


def test_svg_has_title_and_description():
    root = ElementTree.fromstring(draw(["post_ln", "b2t"]))
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None and title.text == "Block diagrams: Post-LN, B2T connection"
    assert desc is not None and format_formula(registry.card("b2t").formula) in (desc.text or "")
    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert texts.count("Norm") == 4
    assert texts.count("Self-attention") == 2


def test_inputs_of_diagrams_are_aligned():
    root = ElementTree.fromstring(draw(["post_ln", "hyper", "dlcl"]))
    heights = set()
    for group in root.iter(f"{SVG}g"):
        shift = float(re.findall(r"-?[\d.]+", group.get("transform", ""))[1])
        heights |= {
            round(shift + float(t.get("y", 0))) for t in group.iter(f"{SVG}text") if t.text == "x"
        }
    assert len(heights) == 1


@pytest.mark.parametrize("name", ["b2t", "hyper"])
def test_svg_is_deterministic(name):
    assert draw([name]) == draw([name])
    assert draw([name]) != draw([name], theme="dark")


def test_title_contains_options():
    assert "(alpha=2.0)" in draw(["deepnorm(alpha=2.0)"])


def test_svg_and_png_are_written(tmp_path):
    svg = draw(["post_ln"])
    save(svg, tmp_path / "a.svg")
    save(svg, tmp_path / "a.PNG")
    assert (tmp_path / "a.svg").read_text(encoding="utf-8") == svg
    assert (tmp_path / "a.PNG").read_bytes() == render_png(svg)
    assert render_png(svg).startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.PNG", "a.svg"]


def test_failed_write_leaves_no_file(tmp_path, monkeypatch):
    def fail(*paths: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(UserError, match=r"cannot write .*disk full"):
        save("<svg/>", tmp_path / "a.svg")
    assert not list(tmp_path.iterdir())


def test_invalid_arguments_are_user_errors(tmp_path):
    with pytest.raises(UnknownNameError, match="did you mean 'post_ln'"):
        draw(["postln"])
    with pytest.raises(UserError, match="names: expected a list of wirings"):
        draw([])
    with pytest.raises(UserError, match="unknown theme 'drak'; did you mean 'dark'"):
        draw(["post_ln"], theme="drak")
    with pytest.raises(UserError, match="depth: expected 1 to 512 layers, got 0"):
        draw(["post_ln"], depth=0)
    with pytest.raises(UserError, match=r"ending in \.svg or \.png; try a\.svg"):
        check_output_file(tmp_path / "a.pdf")
    with pytest.raises(UserError, match="there is no folder"):
        check_output_file(tmp_path / "no" / "a.svg")
    (tmp_path / "b.svg").mkdir()
    with pytest.raises(UserError, match="expected a file, got a folder"):
        check_output_file(tmp_path / "b.svg")


def test_formula_is_wrapped_at_statements_and_list_at_commas():
    assert wrap("x <- a; y = b", 10, 1000) == ["x <- a;", "y = b"]
    assert all(text_width(line, 10) <= 80 for line in wrap("word " * 30, 10, 80))
    assert shorten("one", 10, 5) == "one, …"


def test_options_inside_sub_layers_are_in_the_boxes():
    options = {"qk_norm": "rms_head", "gate": "head", "sink": "learned", "exclusive": True}
    options |= {"value_residual": "half", "value_embed": True, "canon": "ABCD", "window": (4, None)}
    options |= {"kv_heads": 3}
    svg = draw(["pre_ln"], options=options | {"activation": "relu2", "cap": 50.0})
    for text in (
        *("norm: query, key", "gate: head", "sink: learned", "exclusive", "+ values of layer 1"),
        *("+ value embedding", "canon: A, B", "canon: C, D", "window: 4 / all", "relu2"),
        *("cap: 50.0", "key heads: 3"),
    ):
        assert f">{text}<" in svg, text
    diagram = compute_layout(build_block_diagram("pre_ln", decoder=True, options=options))
    boxes = [box for box in diagram.boxes if box.node.kind == "sublayer"]
    assert boxes[0].h > boxes[-1].h > 0
    with pytest.raises(UserError, match="unknown option of a diagram 'gates'; did you mean 'gate'"):
        draw(["pre_ln"], options={"gates": "head"})


@pytest.mark.parametrize(
    ("wiring", "options", "message"),
    [
        ("pre_ln", {"gate": "foo"}, "gate: expected 'none', 'element' or 'head', got 'foo'"),
        ("pre_ln", {"canon": "CA"}, "canon: expected letters of ABCD in order"),
        ("pre_ln", {"kv_heads": 0}, "kv_heads"),
        ("pre_ln", {"experts_per_token": 3}, "experts_per_token"),
        ("ngpt", {"qk_norm": "rms_head"}, "the wiring brings its own"),
    ],
    ids=str,
)
def test_options_that_no_model_has_are_not_drawn(wiring, options, message):
    with pytest.raises(UserError, match=message):
        draw([wiring], options=options)


def test_unroll_and_depth_exclude_each_other():
    with pytest.raises(UserError, match="depth: expected none with unroll=3"):
        draw(["pre_ln"], unroll=3, depth=5)


@pytest.mark.parametrize(
    ("wiring", "note"),
    [("drop_path(b2t, rate=0.2)", "drop path: up to 0.2"), ("layer_drop", "layer drop: 0.1")],
)
def test_random_depth_is_visible(wiring, note):
    assert draw([wiring]).count(f">{note}<") == 2
    assert note not in draw(["pre_ln"])


def test_presets_show_their_options_and_take_a_depth():
    svg = draw(["olmo2"])
    assert ">norm: query, key<" in svg and ">swiglu<" in svg
    assert "3 \u00d7" in draw(["gpt2"], depth=3) and "12 \u00d7" in draw(["gpt2"])
    with pytest.raises(UserError, match="decoder: expected False for the preset gpt2"):
        draw(["gpt2"], decoder=True)
    with pytest.raises(UserError, match="options: expected none for the preset gpt2"):
        draw(["gpt2"], options={"gate": "head"})
