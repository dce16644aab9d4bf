"""The page of a comparison in a real browser: clicked, read back, looked at."""

import re

import pytest

from addnorm.comparison.parse import parse_comparison
from addnorm.report.comparison.page import write_comparison_report
from tests.comparison.synthetic_study import made_up
from tests.report.browser import Browser, needs_browser

SPEC = {
    "wiring": "post_ln,pre_ln,rezero", "depth": [2, 3], "warmup": [0, 50], "lr": [1e-3, 1e-2],
    "seeds": 2, "steps": 100,
}  # fmt: skip
LINES = (
    "[...document.querySelectorAll('.board')[{board}].querySelectorAll('figure')[{figure}]"
    ".querySelectorAll('.live g.mark-line path')].map(each => each.getAttribute('stroke'))"
)
TICKS = (
    "[...document.querySelector('.board figure .live').querySelectorAll('.role-axis-label text')]"
    ".map(each => each.textContent)"
)

pytestmark = needs_browser  # seconds each, but this is the page that everybody sees


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = made_up(tmp_path_factory.mktemp("page") / "made", parse_comparison(SPEC))
    return write_comparison_report(folder)


@pytest.fixture
def browser(path):
    with Browser() as made:
        made.open(path, width=1280, height=12_000)
        live(made)
        yield made
        assert made.complaints == []
        assert set(made.requests) == {path.as_uri()}


def live(browser):
    browser.pause_step(
        "!document.querySelector('.still') && !document.querySelector('.live.waiting')"
    )


def lines(browser, board=0, figure=0):
    return browser.run(LINES.format(board=board, figure=figure))


def press(browser, selector, key=" "):
    """Focus it and press a key, as somebody without a mouse does."""
    browser.run(f"document.querySelector({selector!r}).focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code="Space", text=key,
                     windowsVirtualKeyCode=32)  # fmt: skip


def choose(browser, board, name, value):
    browser.run(
        f"(() => {{ const form = document.querySelectorAll('.board form.controls')[{board}];"
        f"form.elements[{name!r}].value = {value!r};"
        "form.dispatchEvent(new Event('change', { bubbles: true })); })()"
    )


def test_an_arm_is_switched_off_and_on_by_mouse_and_by_keyboard(browser):
    assert {f"var(--arm{n})" for n in range(3)} == set(lines(browser))
    box = "document.querySelector('.board [value=pre_ln]')"
    x, y = browser.run(
        f"(() => {{ const r = {box}.getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    browser.pause_step(f"!{LINES.format(board=0, figure=0)}.includes('var(--arm1)')")
    browser.pause_step(f"!{LINES.format(board=0, figure=1)}.includes('var(--arm1)')")
    assert set(lines(browser)) == {"var(--arm0)", "var(--arm2)"}
    assert "var(--arm1)" in lines(browser, board=1), "other boards keep theirs"
    press(browser, ".board [value=pre_ln]")
    browser.pause_step(f"{LINES.format(board=0, figure=0)}.includes('var(--arm1)')")
    live(browser)


def test_a_log_scale_comes_on_demand_and_says_what_it_leaves_out(browser):
    before = browser.run(TICKS)
    press(browser, ".board [name=log]")
    browser.pause_step(f"String({TICKS}) !== {','.join(before)!r}")
    live(browser)
    assert browser.run("document.querySelector('.board figure').made.spec.layer[0].encoding.y"
                       ".scale.type") == "log"  # fmt: skip
    assert browser.run("document.querySelector('.board .lost').textContent") == ""
    rows = "JSON.parse(figure.querySelector('script').textContent)"
    browser.run(
        "(() => { const figure = document.querySelectorAll('.board')[1].querySelector('figure');"
        f"const spec = {rows}; for (const row of spec.datasets.curves) if (row.arm === 'rezero')"
        "row.value = row.value.map(() => 0);"
        "figure.querySelector('script').textContent = JSON.stringify(spec); })()"
    )
    choose(browser, 1, "stack", "encoder")
    browser.pause_step("document.querySelectorAll('.board .lost')[1].textContent !== ''")
    live(browser)
    said = browser.run("document.querySelectorAll('.board .lost')[1].textContent")
    assert said == (
        "Values of 0 have no place on a log scale and are left out. Gradient norm: rezero."
    )


def test_another_setting_shows_other_curves(browser):
    shown = "document.querySelector('.board figure').made.spec.datasets.curves"
    first = browser.run(f"[...new Set({shown}.map(row => row.at))]")
    assert first == ["depth 3, lr 0.001, no warm-up"]
    choose(browser, 0, "show", "depth-2-lr-0.01-warm-up-50")
    browser.pause_step(f"{shown}.every(row => row.at === 'depth 2, lr 0.01, warm-up 50')")
    live(browser)
    crosses = (
        "document.querySelectorAll('.board figure')[0].querySelectorAll('.live g.mark-symbol')"
    )
    assert browser.run(f"{crosses}.length") >= 1


ARM = "arm (post_ln|pre_ln|rezero) "


@pytest.mark.parametrize(
    "board, told",
    [
        (0, r"seed (0|1|mean) at depth 3, .* step \d+ loss [\d.]+"),
        (1, r"at depth 3, .* site \d: layer \d, \w+ norm of the gradient [\d.]+"),
    ],
    ids=["losses", "sites"],
)
def test_the_pointer_gets_the_values_of_one_point(browser, board, told):
    chart = f"document.querySelectorAll('.board')[{board}].querySelector('.live svg')"
    x, y = browser.run(
        f"(() => {{ const r = {chart}.getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    for step in range(4):
        browser.press(x + 9 * step, y + 4 * step)
    browser.pause_step("!!document.querySelector('#vg-tooltip-element.visible')")
    said = browser.run("document.querySelector('#vg-tooltip-element').innerText")
    assert re.fullmatch(ARM + told, " ".join(said.split())), said
    browser.pause_step(f"[...{chart}.querySelectorAll('path[fill=\"var(--ink)\"]')]"
                  ".filter(each => each.getAttribute('opacity') === '1').length === 1")  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_looked_at(path, tmp_path, width, theme):
    with Browser() as browser:
        browser.open(path, width=width, height=20_000, theme=theme)
        live(browser)
        assert browser.run("document.documentElement.scrollWidth") == width
        assert browser.run("document.querySelectorAll('.live svg.marks').length") == 6
        small = browser.run(
            "[...document.querySelectorAll('.stacked td')].some(each =>"
            "getComputedStyle(each).display === 'flex')"
        )
        assert small == (width < 760), "a phone gets cards instead of a wide table"
        cut = "filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
        assert browser.run(f"[...document.querySelectorAll('.stacked td')].{cut}") == []
        browser.svg_text(tmp_path / f"page-{width}-{theme}.png")
        assert (tmp_path / f"page-{width}-{theme}.png").stat().st_size > 50_000
        assert browser.complaints == []
        assert set(browser.requests) == {path.as_uri()}


def test_without_scripts_the_choices_are_fixed_and_say_what_is_shown(path):
    with Browser() as browser:
        browser.open(path, scripts=False)
        assert browser.run("document.querySelectorAll('.still svg').length") == 6
        assert browser.run(
            "[...document.querySelectorAll('.board select, .board input')].every(e => e.disabled)"
        )
        told = browser.run("document.querySelector('.board select').selectedOptions[0].textContent")
        assert told == "depth 3: lr 0.001, no warm-up (2 of 3 arms trained)"


def test_on_paper_nothing_is_cut(path):
    with Browser() as browser:
        browser.open(path, width=1280, height=12_000)
        live(browser)
        browser.call("Emulation.setEmulatedMedia", media="print")
        browser.call("Emulation.setDeviceMetricsOverride", width=718, height=1000,
                     deviceScaleFactor=1, mobile=False)  # fmt: skip
        wide = browser.run(
            "[...document.querySelectorAll('.live svg')].filter(each =>"
            "each.getBoundingClientRect().right > 719).length"
        )
        assert wide == 0
        assert browser.run("document.documentElement.scrollWidth") <= 718
