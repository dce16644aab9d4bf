"""The page of attention maps."""

import base64
import json
import re

import numpy as np
import pytest
import torch

from addnorm.core.errors import UserError
from addnorm.report.attention_page import render_attention_page, write_attention_page
from tests.report.browser import Browser, needs_browser

EVIL = ["<script>alert(1)</script>", " ", "שלום", "👩‍👩‍👧", "", "\n", "</script>"]


def maps(rows, columns, heads=2, layers=3, seed=0):
    probabilities = np.random.default_rng(seed).dirichlet(
        np.ones(columns), size=(layers, heads, rows)
    )
    return list(probabilities.astype(np.float32))


def example(source, target, **kinds):
    return {"source": source, "target": target, "maps": kinds}


def embedded(text):
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return json.loads(match[1])


def decoded(one, rows, columns):
    data = np.frombuffer(base64.b64decode(one["data"]), dtype=np.uint8)
    return (data.reshape(one["heads"], rows, columns) / 255.0) ** 2


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy, lambda a: torch.tensor(a).half()])
def test_probabilities_survive_encoding(kind):
    expected = maps(3, 7)
    text = render_attention_page(
        [example(list("abcdefg"), list("xyz"), cross=[kind(m) for m in expected])]
    )
    for layer, one in enumerate(embedded(text)[0]["maps"]["cross"]):
        assert np.abs(decoded(one, 3, 7) - expected[layer]).max() < 0.005


def test_small_probabilities_have_finer_resolution():
    expected = np.array([[[0.0, 0.0001, 0.01, 1.0]]], dtype=np.float32)
    text = render_attention_page([example(list("abcd"), ["x"], cross=[expected])])
    values = decoded(embedded(text)[0]["maps"]["cross"][0], 1, 4)
    assert values == pytest.approx(expected, abs=5e-4)


def test_rows_are_queries_and_columns_are_keys():
    text = render_attention_page(
        [example(list("ab"), list("xyz"), encoder=maps(2, 2), decoder=maps(3, 3), cross=maps(3, 2))]
    )
    assert embedded(text)[0]["tokens"] == {
        "encoder": [["a", "b"], ["a", "b"]],
        "decoder": [["x", "y", "z"], ["x", "y", "z"]],
        "cross": [["x", "y", "z"], ["a", "b"]],
    }


def test_encoder_without_source_reads_target():
    text = render_attention_page([example(None, list("abc"), encoder=maps(3, 3))])
    assert embedded(text)[0]["tokens"]["encoder"] == [list("abc"), list("abc")]


def test_tokens_are_escaped():
    text = render_attention_page([example(EVIL, EVIL, cross=maps(7, 7))])
    assert "<script>alert" not in text
    assert embedded(text)[0]["tokens"]["cross"][0] == EVIL


def test_fully_masked_queries_are_drawn_as_zeros():
    masked = np.full((1, 2, 2), np.nan, dtype=np.float32)
    text = render_attention_page([example(None, list("ab"), decoder=[masked])])
    assert not decoded(embedded(text)[0]["maps"]["decoder"][0], 2, 2).any()


@pytest.mark.parametrize(
    "examples, message",
    [
        ([], "expected at least one example, got none"),
        ([example(None, ["a"])], "example 0: expected maps of encoder, decoder, cross, got none"),
        ([example(None, ["a"], crss=maps(1, 1))], "unknown kind of attention 'crss'; did you mean"),
        (
            [example(list("ab"), list("xyz"), cross=maps(2, 3))],
            r"example 0, cross, layer 0: expected a map of shape \(heads, 3, 2\), got \(2, 2, 3\)",
        ),
        (
            [example(None, ["a"], decoder=[np.ones((1, 1))])],
            r"expected a map of shape \(heads, 1, 1\), got \(1, 1\)",
        ),
    ],
)
def test_invalid_examples_are_user_errors(examples, message):
    with pytest.raises(UserError, match=message):
        render_attention_page(examples)


@pytest.mark.slow
@needs_browser
def test_selectors_and_pointer_work_in_a_browser(tmp_path):
    first = example(EVIL, list("xyz"), encoder=maps(7, 7), cross=maps(3, 7), decoder=maps(3, 3))
    second = example(None, list("abcd"), decoder=maps(4, 4, heads=5, layers=1))
    path = write_attention_page(tmp_path / "attention.html", [first, second])
    with Browser() as browser:
        browser.open(path, width=400)
        assert browser.evaluate("[kind.value, layer.value, head.value].join()") == "cross,2,mean"
        shown = browser.evaluate("[...columns.children].map(each => each.textContent)")
        assert shown == [EVIL[0], "␣", EVIL[2], EVIL[3], "∅", "⏎", "</script>"]
        x, y = browser.evaluate(
            "(() => { const box = canvas.getBoundingClientRect();"
            " return [box.left + 3.5 * 22, box.top + 1.5 * 22]; })()"
        )
        browser.move_pointer(x, y)
        mean = first["maps"]["cross"][2].mean(0)[1, 3]
        readout = browser.evaluate("readout.textContent")
        assert readout.startswith(f"y → {EVIL[3]}: ")
        assert float(readout.rsplit(" ", 1)[1]) == pytest.approx(mean, abs=0.006)
        browser.evaluate("head.value = '1'; head.dispatchEvent(new Event('change'))")
        one = browser.evaluate("probabilities[1 * width + 3]")
        assert one == pytest.approx(float(first["maps"]["cross"][2][1, 1, 3]), abs=0.005)
        browser.evaluate("example.value = '1'; example.dispatchEvent(new Event('change'))")
        assert browser.evaluate("[kind.value, layer.value, head.value].join()") == "decoder,0,1"
        assert browser.evaluate("head.options.length") == 6
        assert browser.evaluate("document.documentElement.scrollWidth") == 400
        assert browser.errors == []
        assert browser.requests == [path.as_uri()]
