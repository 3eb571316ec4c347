"""The report as a person sees it: opened in Chromium, on a desk and on a phone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from conformance.kernels import all_exams
from conformance.report.page import render_speed
from conformance.speed import record

pytestmark = pytest.mark.heavy
CORE = Path(sys.executable).parent / "core"
WIDTHS = {"desk": 1200, "phone": 360}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of a real quick run, and the page of the speed that ships."""
    folder = tmp_path_factory.mktemp("report") / "bundle"
    subprocess.run([CORE, "certify", "--device", "cpu", "--quick", "--out", folder], check=True, timeout=280)
    shipped = record.read(record.DEFAULT)
    (folder / "speed.html").write_text(render_speed(shipped, shipped, record.compare(shipped, shipped)))
    return {"report": folder / "report.html", "speed": folder / "speed.html"}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "`make test-heavy` installs chromium"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(params=["report", "speed"])
def page(browser: Browser, pages: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Page]:
    opened = browser.new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda asked: asked.url.startswith("file:") or complaints.append(asked.url))
    opened.goto(pages[request.param].as_uri())
    yield opened
    opened.close()
    assert complaints == []


def test_what_it_says_and_shows(page: Page) -> None:
    verdict = page.locator(".verdict")
    assert verdict.inner_text() in ("PASSED", "A")
    background = verdict.evaluate("e => getComputedStyle(e).backgroundColor")
    assert background == "rgb(42, 127, 98)", "green: it passed"
    pictures = page.locator("figure svg")
    assert pictures.count() >= 1
    for number in range(pictures.count()):
        box = pictures.nth(number).bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 150


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_nothing_sticks_out(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_kernel_is_in_the_table(browser: Browser, pages: dict[str, Path]) -> None:
    opened = browser.new_page()
    opened.goto(pages["report"].as_uri())
    shown = set(opened.locator("tbody tr td:first-child").all_inner_texts())
    assert set(all_exams()) <= shown
