"""The page of the doctor in a real browser: no errors, no requests, both themes, all widths."""

import pytest
import torch
from torch import nn

import addnorm
from addnorm.report.doctor_page import write_doctor_page
from tests.doctor.models.tiny import DIM, ConnectedBlock, Model, ids, stack
from tests.report.browser import Browser, needs_browser

pytestmark = needs_browser
OVERFLOW = "document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    torch.manual_seed(0)
    model = Model(stack(ConnectedBlock, fault="skip"), nn.LayerNorm(DIM))
    report = addnorm.doctor(model, ids())
    return write_doctor_page(report, tmp_path_factory.mktemp("doctor") / "doctor.html")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_page_renders_without_errors(path, theme, width):
    with Browser() as browser:
        browser.open(path, width=width, height=6000, theme=theme)
        browser.wait_for(
            "!document.querySelector('.static') && !document.querySelector('.live.loading')"
        )
        assert browser.evaluate("document.querySelectorAll('section').length") > 3
        assert browser.evaluate(OVERFLOW) <= 0
        text = browser.evaluate("document.body.innerText")
        assert "skip_after_norm" in text and "step" not in text.split("Metrics")[-1][:400]
        cards = browser.evaluate("getComputedStyle(document.querySelector('.stacked tr')).display")
        assert cards == ("block" if width < 760 else "table-row")
        assert browser.errors == []
        assert set(browser.requests) == {path.as_uri()}
