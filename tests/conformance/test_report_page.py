"""The report as a person sees it: opened in Chromium, on a desk and on a phone, by day and by night."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from conformance import engine
from conformance.certificate import issue, verify
from conformance.certificate.records import encode_lines
from conformance.certify import Header
from conformance.kernels import all_exams
from conformance.report.page import render_speed
from conformance.speed import record
from tests.conformance.made_bundle import NONCE, extra, full_run, onnx_record, slower

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]
CORE = Path(sys.executable).parent / "core"
WIDTHS = {"desk": 1200, "phone": 360}
PICTURES = ("headroom", "divergence", "roofline", "rho")


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`core certify --level full`, resumed where only some cases of engines, ONNX's cases and timing are left."""
    folder = tmp_path_factory.mktemp("report") / "bundle"
    made = full_run(extra(onnx_record(), slower(1.0)), folder / issue.SAMPLES)
    left = {c.name for c in engine.cases() if engine.can_rejudge(c) or (c.family == "kl" and c["dtype"] == "bfloat16")}
    rest = encode_lines(o for o in made.outcomes if o.case not in left)
    header = Header("cpu", "full", "*", NONCE, issue.suite_record().tree_sha256, made.plugin.digest)
    (folder / issue.UNFINISHED).write_bytes(msgspec.json.encode(header) + b"\n" + rest)
    done = subprocess.run(
        [CORE, "certify", "--device", "cpu", "--level", "full", "--out", folder, "--nonce", NONCE],
        capture_output=True, text=True, check=False, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED, tier production, level full" in done.stdout
    return folder


def test_the_bundle_holds(certified: Path) -> None:
    read = verify.read(certified)
    assert verify.complaints(read, 2) == []
    assert read.extra is not None
    assert read.extra.onnx.counts["device"] >= 157
    assert len(read.extra.speed.cases) == 20


@pytest.fixture(scope="module")
def pages(certified: Path) -> dict[str, Path]:
    """The report, and the page of the speed that ships."""
    shipped = record.read(record.DEFAULT)
    alone = certified.parent / "speed.html"
    alone.write_text(render_speed(shipped, shipped, record.compare(shipped, shipped)))
    return {"report": certified / issue.REPORT, "speed": alone}


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


def test_what_it_says_and_shows(page: Page, certified: Path) -> None:
    verdict = page.locator(".verdict")
    assert verdict.inner_text() in ("PASSED", "A")
    background = verdict.evaluate("e => getComputedStyle(e).backgroundColor")
    assert background == "rgb(42, 127, 98)", "green: it passed"
    shown = page.locator("figure").evaluate_all("all => all.map(e => e.id)")
    expected = list(PICTURES) if verdict.inner_text() == "PASSED" else ["roofline", "rho"]
    least = dict.fromkeys(PICTURES, 10)
    more = verify.read(certified).extra
    if verdict.inner_text() == "PASSED" and more:
        least["rho"] = min(10, len(more.standing.rho))  # the machine was not quiet: few cases count, or none
    expected = [name for name in expected if least[name]]
    assert shown == expected
    for name in shown:
        box = page.locator(f"figure#{name} svg").bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert box["height"] > 60, name
        marks = page.locator(f"figure#{name} svg path").count()
        assert marks > least[name], name


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_nothing_sticks_out(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_follow_the_page_into_the_dark(page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    colour = "e => getComputedStyle(e).{}.match(/\\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0)"
    paper = page.locator("body").evaluate(colour.format("backgroundColor"))
    ink = page.locator("figure svg text").first.evaluate(colour.format("fill"))
    assert (paper < 200 and ink > 550) if scheme == "dark" else (paper > 700 and ink < 250)


def test_every_kernel_is_in_the_table(browser: Browser, pages: dict[str, Path]) -> None:
    opened = browser.new_page()
    opened.goto(pages["report"].as_uri())
    shown = set(opened.locator("tbody tr td:first-child").all_inner_texts())
    assert {*all_exams(), engine.ROW, "Attention"} <= shown
