"""The page of a run, and the history of its rows."""

import json
import math
import random
import re

import pytest
import yaml

from addnorm.core.errors import UserError
from addnorm.core.rows import write_rows
from addnorm.report import run_page
from addnorm.report.metric_sections import METRIC_SECTIONS
from addnorm.report.run_history import History
from addnorm.report.run_page import write_training_report
from tests.report.browser import Browser, needs_browser

CONFIG = {
    "task": "translate", "data": "nowhere", "wiring": "pre_ln", "norm": "rms", "dim": 32,
    "depth": 2, "heads": 4, "steps": 40, "optimizer": "adamw", "lr": 0.001, "label_smoothing": 0.1,
}  # fmt: skip
METRICS = [metric for section in METRIC_SECTIONS for metric in section.metrics]


@pytest.fixture
def no_vega(monkeypatch):
    """Skip the Vega bundle and static images, which take seconds; test_page.py covers them."""
    monkeypatch.setattr("addnorm.report.html.page._vega_script", lambda: "/* vega */")
    monkeypatch.setattr("addnorm.report.html.page.Chart.static_svg", "a static image")


def row(step, name, value, **more):
    return {"step": step, "name": name, "value": value, **more}


def run_rows(steps=40, inside=True, valid=True):
    rng = random.Random(0)
    for step in range(1, steps + 1):
        yield row(step, "loss", 3 / step + rng.random(), split="train")
        yield row(step, "lr", 0.001 * step)
        yield row(step, "tokens_per_second", 1000 + rng.random())
        yield row(step, "gradient_norm", 1 + rng.random())
        if valid and step % 10 == 0:
            yield row(step, "loss", 4 / step + 1, split="valid")
            yield row(step, "perplexity", math.exp(4 / step + 1), split="valid")
        for name in [m.name for m in METRICS] if inside and step % 10 == 0 else ():
            for stack, kinds in (
                ("encoder", ("self", "ffn")),
                ("decoder", ("self", "cross", "ffn")),
            ):
                for site, kind in enumerate(kinds * 2):
                    at = {"stack": stack, "site": site, "layer": site // len(kinds), "kind": kind}
                    yield row(step, name, rng.random() + 0.1, **at)


def report(folder, rows, **config):
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG | config), encoding="utf-8")
    if rows is not None:
        write_rows(folder / "rows.jsonl", rows)
    return write_training_report(folder).read_text(encoding="utf-8")


def titles(text):
    return re.findall(r"<figcaption><h3>(.*?)</h3>", text)


@pytest.mark.slow
def test_complete_run_shows_all_charts(tmp_path, no_vega):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    card = {"task": "translate", "counts": {"train": 29000}, "about": {"languages": ["en", "de"]}}
    (corpus / "corpus.json").write_text(json.dumps(card))
    (tmp_path / "arrangement.json").write_text(json.dumps({"encoder": {"wiring": "pre_ln"}}))
    ended = row(40, "ended", 1.0, ending="done")
    text = report(tmp_path, [*run_rows(), ended], data=str(corpus))
    assert "<h1>Translation with pre_ln</h1>" in text
    assert "x ← x + f(N(x))" in text and "Cross-attention" in text
    assert "<th>train</th><td>29,000 records</td>" in text
    assert "<th>languages</th><td>en, de</td>" in text
    assert "best validation loss, step 40</dt><dd>1.1</dd>" in text
    assert "best perplexity</dt><dd>3.004</dd>" in text
    assert "Both losses exclude label smoothing." in text
    assert "arrangement.json" in text and "wiring: pre_ln" in text
    assert "not measured" not in text and "not finished" not in text
    chart_titles = titles(text)
    for title in (
        "Training and validation loss",
        "Learning rate",
        "Speed",
        "Gradient norm, whole model",
        "Gradient norm by site and step, encoder",
        "Stream variance over depth, decoder",
        "Stream variance over steps, encoder",
        "Residual dependency over depth, encoder",
        "Update to weight ratio over steps, decoder",
        "Attention entropy over steps, decoder",
        "Largest attention logit over steps, encoder",
    ):
        assert title in chart_titles
    assert chart_titles.index("Stream variance over steps, encoder") < chart_titles.index(
        "Stream variance over steps, decoder"
    )


def test_missing_metrics_are_noted(tmp_path, no_vega):
    text = report(tmp_path, run_rows(3, inside=False, valid=False))
    assert "Gradient norm, whole model" in titles(text)
    for metric in METRICS:
        for chart in metric.site_charts:
            assert not any(f"{metric.title} {chart.title}" in title for title in titles(text))
    for section in METRIC_SECTIONS[1:]:
        expected = [metric.title for metric in section.metrics if not metric.is_optional]
        assert not expected or f"{'; '.join(expected)}: not measured." in text
    assert "Training has not finished: the last row is at step 3 of 40." in text
    assert "the corpus folder no longer exists" in text


def test_run_without_rows_has_a_page(tmp_path):
    text = report(tmp_path, None, task="lm", wiring="deepnorm")
    assert "Nothing was measured yet: the run has no rows." in text
    assert "<h1>Language model with deepnorm</h1>" in text
    assert "Training and validation loss: not measured." in text
    assert 'class="static"' not in text


def test_config_without_steps_has_a_page(tmp_path, no_vega):
    (tmp_path / "config.yaml").write_text("task: lm", encoding="utf-8")
    write_rows(tmp_path / "rows.jsonl", [row(3, "loss", 1.0)])
    text = write_training_report(tmp_path).read_text(encoding="utf-8")
    assert "Training has not finished: the last row is at step 3." in text


def test_divergence_is_shown_with_step_and_location(tmp_path, no_vega):
    rows = [row(step, "loss", 2.0 if step < 7 else math.nan) for step in range(1, 10)]
    rows += [
        row(4, "spike", 9.5),
        row(7, "diverged", math.nan, stack="decoder", site=3, kind="ffn"),
    ]
    text = report(tmp_path, rows)
    assert "Diverged at step 7 (decoder site 3 ffn)." in text
    assert "<td>4</td><td>spike</td><td>9.5</td>" in text
    assert "diverged at 7" in text
    assert "3 values are not finite and omitted." in text


def test_unknown_metrics_get_a_chart(tmp_path, no_vega):
    rows = [row(1, "loss", 1.0), row(1, "sharpness", 2.0), row(2, "sharpness", 3.0)]
    rows += [row(1, "rank", 5.0, site=0), row(1, "bleu", 30.0, split="valid")]
    chart_titles = titles(report(tmp_path, rows))
    assert {"Sharpness", "Rank over steps", "Bleu, valid"} <= set(chart_titles)


@pytest.mark.parametrize("wiring", ["mine_alone", "pre_ln(", ""])
def test_unknown_wiring_is_named_but_not_drawn(tmp_path, wiring):
    text = report(tmp_path, None, wiring=wiring)
    assert "Self-attention" not in text
    assert not wiring or f"<td>{wiring}</td>" in text


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("other", "", "no run in .*: expected a config.yaml; use the output folder of"),
        ("config.yaml", "a: [", "config.yaml is not YAML"),
        ("config.yaml", "just words", "config.yaml: expected the keys of a run, got str"),
        ("rows.jsonl", "{\n{}\n", "rows.jsonl, line 1 is not JSON"),
        ("arrangement.json", "{", "arrangement.json is not JSON"),
    ],
)
def test_folder_without_valid_run_is_user_error(tmp_path, name, content, message):
    if name not in ("other", "config.yaml"):
        (tmp_path / "config.yaml").write_text("task: lm")
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        write_training_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_resumed_attempt_replaces_rows():
    first = [row(step, "loss", 1.0, split="train") for step in range(1, 8)]
    first += [row(7, "spike", 1.0), row(7, "loss", 5.0, split="valid")]
    resumed = [row(4, "lr", 0.5), *(row(step, "loss", 2.0, split="train") for step in (4, 5))]
    history = History.from_rows([*first, *resumed])
    assert history.points("loss") == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0), (5, 2.0)]
    assert history.points("lr") == [(4, 0.5)]
    assert history.points("loss", "valid") == [] and history.events() == []
    assert (history.resume_steps, history.num_replaced, history.last_step) == ((4,), 6, 5)


def test_late_rows_do_not_start_an_attempt():
    rows = [row(1, "loss", 1.0), row(2, "loss", 1.0), row(1, "max_logit", 3.0, site=0)]
    history = History.from_rows([*rows, row(3, "loss", 1.0)])
    assert len(history.rows) == 4 and history.resume_steps == ()


def test_invalid_rows_are_counted():
    invalid = [
        {},
        {"step": "1", "name": "loss", "value": 1.0},
        row(1, "loss", "high"),
        row(1, 2, 3),
    ]
    history = History.from_rows([row(1, "loss", 1.0), *invalid])
    assert (len(history.rows), history.num_invalid) == (1, 4)


def test_values_of_heads_are_averaged():
    rows = [row(1, "max_logit", float(head), site=0, head=head) for head in (1, 2, 6)]
    (averaged,) = History.from_rows(rows).stacks("max_logit")[""]
    assert averaged["value"] == 3.0


@pytest.mark.slow
@needs_browser
def test_page_is_interactive_at_all_widths(tmp_path):
    report(tmp_path, [*run_rows(), row(20, "spike", 2.0)])
    path = tmp_path / "report.html"
    with Browser() as browser:
        for width, theme in ((1280, "light"), (400, "dark")):
            browser.open(path, width=width, height=20_000, theme=theme)
            browser.wait_for("!document.querySelector('.static')")
            charts = browser.evaluate("document.querySelectorAll('figure.chart').length")
            live = browser.evaluate(
                "document.querySelectorAll('.live:not(.loading) svg.marks').length"
            )
            assert charts == live > 15
            assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert browser.errors == []
        assert set(browser.requests) == {path.as_uri()}


@pytest.mark.parametrize("content", ["[]", "5", '"x"'])
def test_estimator_file_of_another_type_is_an_error(tmp_path, content):
    (tmp_path / "estimator.json").write_text(content)
    with pytest.raises(UserError, match=r"estimator.json: expected an object, got \w+; restore it"):
        run_page._check_fit_rows(tmp_path)
