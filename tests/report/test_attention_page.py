"""The page of attention maps."""

import base64
import json
import re

import numpy as np
import pytest
import torch
from addnorm.report.render_attention_page import render_attention_page, write_attention_page

from addnorm.core.errors import UserError
from tests.report.browser import Browser, needs_browser

EVIL = ["<script>alert(1)</script>", " ", "שלום", "👩‍👩‍👧", "", "\n", "</script>"]


def maps(rows, columns, heads=2, layers=3, seed=0):
    made = np.random.default_rng(seed).dirichlet(np.ones(columns), size=(layers, heads, rows))
    return list(made.astype(np.float32))


def example(source, target, **kinds):
    return {"source": source, "target": target, "maps": kinds}


def embedded(text):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(found[1])


def decoded(one, rows, columns):
    data = np.frombuffer(base64.b64decode(one["data"]), dtype=np.uint8)
    return (data.reshape(one["heads"], rows, columns) / 255.0) ** 2


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, lambda a: torch.tensor(a).half()])
def test_probabilities_come_back_as_good_as_they_are_seen(kind):
    given = maps(3, 7)
    text = render_attention_page(
        [example(list("abcdefg"), list("xyz"), cross=[kind(m) for m in given])]
    )
    for layer, one in enumerate(embedded(text)[0]["maps"]["cross"]):
        assert np.abs(decoded(one, 3, 7) - given[layer]).max() < 0.005


def test_small_probabilities_are_kept_finer():
    given = np.array([[[0.0, 0.0001, 0.01, 1.0]]], dtype=np.float32)
    text = render_attention_page([example(list("abcd"), ["x"], cross=[given])])
    found = decoded(embedded(text)[0]["maps"]["cross"][0], 1, 4)
    assert found == pytest.approx(given, abs=5e-4)


def test_tokens_stand_at_the_side_that_looks_and_the_side_that_is_seen():
    text = render_attention_page(
        [example(list("ab"), list("xyz"), encoder=maps(2, 2), decoder=maps(3, 3), cross=maps(3, 2))]
    )
    assert embedded(text)[0]["tokens"] == {
        "encoder": [["a", "b"], ["a", "b"]],
        "decoder": [["x", "y", "z"], ["x", "y", "z"]],
        "cross": [["x", "y", "z"], ["a", "b"]],
    }


def test_without_a_source_the_encoder_reads_the_target():
    text = render_attention_page([example(None, list("abc"), encoder=maps(3, 3))])
    assert embedded(text)[0]["tokens"]["encoder"] == [list("abc"), list("abc")]


def test_tokens_cannot_become_markup():
    text = render_attention_page([example(EVIL, EVIL, cross=maps(7, 7))])
    assert "<script>alert" not in text
    assert embedded(text)[0]["tokens"]["cross"][0] == EVIL


def test_rows_that_may_look_at_nothing_are_drawn_as_none():
    given = np.full((1, 2, 2), np.nan, dtype=np.float32)
    text = render_attention_page([example(None, list("ab"), decoder=[given])])
    assert not decoded(embedded(text)[0]["maps"]["decoder"][0], 2, 2).any()


@pytest.mark.parametrize(
    "examples, said",
    [
        ([], "no attention to draw: got no example"),
        ([example(None, ["a"])], "example 0 has no attention map; wanted encoder, decoder, cross"),
        ([example(None, ["a"], crss=maps(1, 1))], "unknown kind of attention 'crss'; did you mean"),
        (
            [example(list("ab"), list("xyz"), cross=maps(2, 3))],
            r"example 0, cross, layer 0: got a map of shape \(2, 2, 3\), wanted \(heads, 3, 2\)",
        ),
        (
            [example(None, ["a"], decoder=[np.ones((1, 1))])],
            r"got a map of shape \(1, 1\), wanted \(heads, 1, 1\)",
        ),
    ],
)
def test_mistakes_are_told(examples, said):
    with pytest.raises(UserError, match=said):
        render_attention_page(examples)


@pytest.mark.slow
@needs_browser
def test_the_picker_and_the_pointer_work_in_a_browser(tmp_path):
    first = example(EVIL, list("xyz"), encoder=maps(7, 7), cross=maps(3, 7), decoder=maps(3, 3))
    second = example(None, list("abcd"), decoder=maps(4, 4, heads=5, layers=1))
    path = write_attention_page(tmp_path / "attention.html", [first, second])
    with Browser() as browser:
        browser.open(path, width=400)
        assert browser.run("[kind.value, layer.value, head.value].join()") == "cross,2,mean"
        shown = browser.run("[...columns.children].map(each => each.textContent)")
        assert shown == [EVIL[0], "␣", EVIL[2], EVIL[3], "∅", "⏎", "</script>"]
        x, y = browser.run(
            "(() => { const box = canvas.getBoundingClientRect();"
            " return [box.left + 3.5 * 22, box.top + 1.5 * 22]; })()"
        )
        browser.press(x, y)
        mean = first["maps"]["cross"][2].mean(0)[1, 3]
        told = browser.run("told.textContent")
        assert told.startswith(f"y looks at {EVIL[3]}: ")
        assert float(told.rsplit(" ", 1)[1]) == pytest.approx(mean, abs=0.006)
        browser.run("head.value = '1'; head.dispatchEvent(new Event('change'))")
        one = browser.run("probabilities[1 * width + 3]")
        assert one == pytest.approx(float(first["maps"]["cross"][2][1, 1, 3]), abs=0.005)
        browser.run("example.value = '1'; example.dispatchEvent(new Event('change'))")
        assert browser.run("[kind.value, layer.value, head.value].join()") == "decoder,0,1"
        assert browser.run("head.options.length") == 6
        assert browser.run("document.documentElement.scrollWidth") == 400
        assert browser.complaints == []
        assert browser.requests == [path.as_uri()]
