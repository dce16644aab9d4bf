"""The page of a comparison in a real browser."""

import re

import pytest

from addnorm.comparison.parse import parse_comparison
from addnorm.report.comparison.page import write_comparison_report
from tests.comparison.synthetic_study import write_synthetic_study
from tests.report.browser import Browser, needs_browser

SPEC = {
    "wiring": "post_ln,pre_ln,rezero", "depth": [2, 3], "warmup": [0, 50], "lr": [1e-3, 1e-2],
    "seeds": 2, "steps": 100,
}  # fmt: skip
LINES = (
    "[...document.querySelectorAll('.chart-group')[{group}].querySelectorAll('figure')[{figure}]"
    ".querySelectorAll('.live g.mark-line path')].map(each => each.getAttribute('stroke'))"
)
TICKS = (
    "[...document.querySelector('.chart-group figure .live')"
    ".querySelectorAll('.role-axis-label text')].map(each => each.textContent)"
)

pytestmark = needs_browser


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = write_synthetic_study(
        tmp_path_factory.mktemp("page") / "study", parse_comparison(SPEC)
    )
    return write_comparison_report(folder)


@pytest.fixture
def browser(path):
    with Browser() as tab:
        tab.open(path, width=1280, height=12_000)
        wait_until_live(tab)
        yield tab
        assert tab.errors == []
        assert set(tab.requests) == {path.as_uri()}


def wait_until_live(browser):
    browser.wait_for(
        "!document.querySelector('.static') && !document.querySelector('.live.loading')"
    )


def line_colors(browser, group=0, figure=0):
    return browser.evaluate(LINES.format(group=group, figure=figure))


def press_key(browser, selector, key=" "):
    """Focus an element and press a key."""
    browser.evaluate(f"document.querySelector({selector!r}).focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code="Space", text=key,
                     windowsVirtualKeyCode=32)  # fmt: skip


def select(browser, group, name, value):
    browser.evaluate(
        f"(() => {{ const form = document.querySelectorAll('.chart-group form.controls')[{group}];"
        f"form.elements[{name!r}].value = {value!r};"
        "form.dispatchEvent(new Event('change', { bubbles: true })); })()"
    )


def test_arms_are_switched_by_mouse_and_keyboard(browser):
    assert {f"var(--arm{n})" for n in range(3)} == set(line_colors(browser))
    box = "document.querySelector('.chart-group [value=pre_ln]')"
    x, y = browser.evaluate(
        f"(() => {{ const r = {box}.getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
    browser.wait_for(f"!{LINES.format(group=0, figure=0)}.includes('var(--arm1)')")
    browser.wait_for(f"!{LINES.format(group=0, figure=1)}.includes('var(--arm1)')")
    assert set(line_colors(browser)) == {"var(--arm0)", "var(--arm2)"}
    assert "var(--arm1)" in line_colors(browser, group=1), "other groups are unchanged"
    press_key(browser, ".chart-group [value=pre_ln]")
    browser.wait_for(f"{LINES.format(group=0, figure=0)}.includes('var(--arm1)')")
    wait_until_live(browser)


def test_log_switch_changes_scale_and_reports_omitted_values(browser):
    before = browser.evaluate(TICKS)
    press_key(browser, ".chart-group [name=log]")
    browser.wait_for(f"String({TICKS}) !== {','.join(before)!r}")
    wait_until_live(browser)
    first_layer = "document.querySelector('.chart-group figure').embedded.spec.layer[0]"
    assert browser.evaluate(f"{first_layer}.encoding.y.scale.type") == "log"
    assert browser.evaluate("document.querySelector('.chart-group .omitted').textContent") == ""
    rows = "JSON.parse(figure.querySelector('script').textContent)"
    browser.evaluate(
        "(() => { const group = document.querySelectorAll('.chart-group')[1];"
        "const figure = group.querySelector('figure');"
        f"const spec = {rows}; for (const row of spec.datasets.curves) if (row.arm === 'rezero')"
        "row.value = row.value.map(() => 0);"
        "figure.querySelector('script').textContent = JSON.stringify(spec); })()"
    )
    select(browser, 1, "stack", "encoder")
    browser.wait_for("document.querySelectorAll('.chart-group .omitted')[1].textContent !== ''")
    wait_until_live(browser)
    note = browser.evaluate("document.querySelectorAll('.chart-group .omitted')[1].textContent")
    assert note == "The log scale omits values that are not positive. Gradient norm: rezero."


def test_selector_changes_curves(browser):
    shown = "document.querySelector('.chart-group figure').embedded.spec.datasets.curves"
    first = browser.evaluate(f"[...new Set({shown}.map(row => row.at))]")
    assert first == ["depth 3, lr 0.001, no warm-up"]
    select(browser, 0, "show", "depth-2-lr-0.01-warm-up-50")
    browser.wait_for(f"{shown}.every(row => row.at === 'depth 2, lr 0.01, warm-up 50')")
    wait_until_live(browser)
    crosses = (
        "document.querySelector('.chart-group figure').querySelectorAll('.live g.mark-symbol')"
    )
    assert browser.evaluate(f"{crosses}.length") >= 1


ARM = "arm (post_ln|pre_ln|rezero) "


@pytest.mark.parametrize(
    "group, expected",
    [
        (0, r"seed (0|1|mean) at depth 3, .* step \d+ loss [\d.]+"),
        (1, r"at depth 3, .* site \d: layer \d, \w+ gradient norm [\d.]+"),
    ],
    ids=["losses", "sites"],
)
def test_hovering_shows_values_of_one_point(browser, group, expected):
    chart = f"document.querySelectorAll('.chart-group')[{group}].querySelector('.live svg')"
    x, y = browser.evaluate(
        f"(() => {{ const r = {chart}.getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    for step in range(4):
        browser.move_pointer(x + 9 * step, y + 4 * step)
    browser.wait_for("!!document.querySelector('#vg-tooltip-element.visible')")
    tooltip = browser.evaluate("document.querySelector('#vg-tooltip-element').innerText")
    assert re.fullmatch(ARM + expected, " ".join(tooltip.split())), tooltip
    browser.wait_for(f"[...{chart}.querySelectorAll('path[fill=\"var(--ink)\"]')]"
                  ".filter(each => each.getAttribute('opacity') === '1').length === 1")  # fmt: skip


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_page_renders_at_all_widths_and_themes(path, tmp_path, width, theme):
    with Browser() as browser:
        browser.open(path, width=width, height=20_000, theme=theme)
        wait_until_live(browser)
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        assert browser.evaluate("document.querySelectorAll('.live svg.marks').length") == 6
        small = browser.evaluate(
            "[...document.querySelectorAll('.stacked td')].some(each =>"
            "getComputedStyle(each).display === 'flex')"
        )
        assert small == (width < 760), "small screens show cards instead of a wide table"
        cut = "filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"
        assert browser.evaluate(f"[...document.querySelectorAll('.stacked td')].{cut}") == []
        browser.screenshot(tmp_path / f"page-{width}-{theme}.png")
        assert (tmp_path / f"page-{width}-{theme}.png").stat().st_size > 50_000
        assert browser.errors == []
        assert set(browser.requests) == {path.as_uri()}


def test_without_scripts_form_is_disabled_and_shows_default(path):
    with Browser() as browser:
        browser.open(path, scripts=False)
        assert browser.evaluate("document.querySelectorAll('.static svg').length") == 6
        fields = "[...document.querySelectorAll('.chart-group :is(select, input)')]"
        assert browser.evaluate(f"{fields}.every(e => e.disabled)")
        selected = browser.evaluate(
            "document.querySelector('.chart-group select').selectedOptions[0].textContent"
        )
        assert selected == "depth 3: lr 0.001, no warm-up (2 of 3 arms trained)"


def test_print_layout_fits_page_width(path):
    with Browser() as browser:
        browser.open(path, width=1280, height=12_000)
        wait_until_live(browser)
        browser.call("Emulation.setEmulatedMedia", media="print")
        browser.call("Emulation.setDeviceMetricsOverride", width=718, height=1000,
                     deviceScaleFactor=1, mobile=False)  # fmt: skip
        wide = browser.evaluate(
            "[...document.querySelectorAll('.live svg')].filter(each =>"
            "each.getBoundingClientRect().right > 719).length"
        )
        assert wide == 0
        assert browser.evaluate("document.documentElement.scrollWidth") <= 718
