"""The page of a visit in a real browser: no complaint, no request, readable in both themes."""

import pytest
import torch
from torch import nn

import addnorm
from addnorm.report.doctor_page import write_doctor_page
from tests.doctor.models.tiny import DIM, ConnectedBlock, Model, ids, stack
from tests.report.browser import Browser, needs_browser

pytestmark = needs_browser
WIDE = "document.documentElement.scrollWidth - window.innerWidth"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    torch.manual_seed(0)
    model = Model(stack(ConnectedBlock, fault="skip"), nn.LayerNorm(DIM))
    report = addnorm.doctor(model, ids())
    return write_doctor_page(report, tmp_path_factory.mktemp("visit") / "visit.html")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_page_without_complaints(path, theme, width):
    with Browser() as browser:
        browser.open(path, width=width, height=6000, theme=theme)
        browser.pause_step(
            "!document.querySelector('.still') && !document.querySelector('.live.waiting')"
        )
        assert browser.run("document.querySelectorAll('.board, section').length") > 3
        assert browser.run(WIDE) <= 0
        text = browser.run("document.body.innerText")
        assert "skip_after_norm" in text and "step" not in text.split("Vital signs")[-1][:400]
        cards = browser.run("getComputedStyle(document.querySelector('.stacked tr')).display")
        assert cards == ("block" if width < 760 else "table-row")
        assert browser.complaints == []
        assert set(browser.requests) == {path.as_uri()}
