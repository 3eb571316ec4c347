"""The page at /, as a person has it: in Chromium, by keyboard, on a desk and a phone, in the light and the dark."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from processes import Server, serve

pytestmark = pytest.mark.heavy
KEY = "open sesame"
WIDTHS = {"desk": 1200, "phone": 360}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = ("--device", "null", "--served-model-name", "a-model")
    with serve(tmp_path_factory.mktemp("page"), *args, key=KEY, env={"CORE_API_KEY": KEY}) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "`make test-heavy` installs chromium"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def locked(browser: Browser, served: Server) -> Iterator[Page]:
    """The page before it has a key. Nothing may be loaded from elsewhere, and nothing complains but of the key."""
    opened = browser.new_page(viewport={"width": WIDTHS["desk"], "height": 800})
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda asked: asked.url.startswith((served.base_url, "data:")) or complaints.append(asked.url))
    opened.goto(served.base_url)
    yield opened
    opened.close()
    assert [c for c in complaints if "status of 401" not in c and "status of 400" not in c] == []


@pytest.fixture
def page(locked: Page) -> Page:
    """With the key, and the plan."""
    expect(locked.locator("#key")).to_be_focused()
    locked.locator("#key").press_sequentially(KEY)
    locked.locator("#key").press("Enter")
    expect(locked.locator("#model")).to_have_text("a-model")
    return locked


def say(page: Page, text: str) -> Locator:
    """Send by keyboard; the turn that answers. The likeliest tokens of the null device go on to the end."""
    page.locator("#temperature").fill("0")
    page.locator("#text").focus()
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    return page.locator(".turn.assistant").last


def test_it_asks_for_the_key(locked: Page) -> None:
    """Until it is the right one; and keeps it for this tab."""
    box = locked.locator("#key-box")
    expect(box).to_be_visible()
    expect(locked.locator("#key")).to_be_focused()
    locked.keyboard.type("wrong")
    locked.keyboard.press("Enter")
    expect(locked.locator("#key")).to_have_value("")
    expect(box).to_be_visible()
    locked.keyboard.type(KEY)
    locked.keyboard.press("Enter")
    expect(box).to_be_hidden()
    expect(locked.locator("#model")).to_have_text("a-model")
    locked.reload()
    expect(locked.locator("#model")).to_have_text("a-model")
    expect(box).to_be_hidden()


def test_a_conversation(page: Page, served: Server) -> None:
    page.locator("#most").fill("12")
    before = served.metrics()
    turn = say(page, "Hello")
    expect(turn.locator(".facts")).to_have_text(re.compile(r"^12 tokens, first after \d+\.\d\d s.*cut at the limit$"))
    assert turn.locator("span").text_content()
    first = served.metrics()["prompt_tokens_total"] - before["prompt_tokens_total"]
    expect(say(page, "Again").locator(".facts")).to_have_text(re.compile("^12 tokens"))
    assert served.metrics()["prompt_tokens_total"] - before["prompt_tokens_total"] > 2 * first + 12
    assert served.metrics()["generation_tokens_total"] - before["generation_tokens_total"] == 24
    page.locator("#fresh").click()
    expect(page.locator(".turn")).to_have_count(0)
    expect(page.locator("#text")).to_be_focused()


def test_text_of_the_model_is_never_markup(page: Page) -> None:
    page.evaluate("show('assistant', '<img src=x onerror=alert(1)>')")
    expect(page.locator(".turn").last).to_have_text("<img src=x onerror=alert(1)>")
    assert page.locator(".turn img").count() == 0


def test_escape_stops_an_answer(page: Page, served: Server) -> None:
    turn = say(page, "Go on and on")
    assert page.locator("#send").inner_text() == "Stop"
    page.keyboard.press("Escape")
    expect(turn.locator(".facts")).to_have_text("stopped")
    deadline_s = time.monotonic() + 2
    while served.metrics()["num_requests_running"]:
        assert time.monotonic() < deadline_s
    expect(page.locator("#send")).to_have_text("Send")


def test_refusals_are_shown_in_words(page: Page) -> None:
    page.locator("#most").fill("9999")
    turn = say(page, "Hello")
    expect(turn.locator(".facts.failed")).to_contain_text("max_completion_tokens is 9999")


def gauge(page: Page, number: int) -> Locator:
    return page.locator(".gauge dd").nth(number)


def test_gauges_move(page: Page) -> None:
    """Tokens per second rise above nothing, which is at the bottom, while there is an answer."""
    expect(gauge(page, 1)).to_have_text("0")
    expect(gauge(page, 2)).to_have_text(re.compile(r"%$"))
    curve = page.locator("polyline").first
    expect(curve).to_have_attribute("points", re.compile(r"^\d+,19\b"))
    say(page, "Go on and on")
    expect(curve).to_have_attribute("points", re.compile(r",(?!19\b)\d"), timeout=20_000)
    page.keyboard.press("Escape")
    expect(page.locator(".gauge small").nth(1)).to_have_text("waiting, 0 running", timeout=20_000)


def test_the_plan_and_its_notes(page: Page, served: Server) -> None:
    plan = served.get("/plan").json()
    shown = page.locator("#plan td:first-child").all_inner_texts()
    assert shown == [row["name"].replace("_", " ") for row in plan["plan"]]
    assert page.locator("#notes li").all_inner_texts() == plan["notes"]
    page.locator("summary", has_text="Kernels").press("Enter")
    expect(page.locator("#kernels td", has_text="attn_paged").first).to_be_visible()


def test_everything_is_reached_by_tab(page: Page) -> None:
    page.locator("#text").focus()
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        if reached[-1] == "BODY":  # once around
            break
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", reached
    controls = [name for name in reached if name in ("send", "fresh", "temperature", "most", "SUMMARY")]
    assert controls == ["send", "fresh", "temperature", "most", "SUMMARY", "SUMMARY"]


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_nothing_sticks_out(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    page.locator("#most").fill("60")
    expect(say(page, "supercalifragilisticexpialidocious" * 4).locator(".facts")).to_have_text(re.compile("^60 tokens"))
    for summary in page.locator("summary").all():
        if not summary.evaluate("e => e.parentElement.open"):
            summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for control in ("#text", "#send", "#fresh"):
        box = page.locator(control).bounding_box()
        assert box is not None
        assert box["height"] >= 40  # a finger's
        assert 0 <= box["x"] < box["x"] + box["width"] <= width


def luminance(colour: str) -> float:
    """Source: WCAG 2.2, relative luminance."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out(page: Page, scheme: Any) -> None:
    """By 4.5 to 1 at least, in both schemes: what is said, what is small, and what is on buttons."""
    page.emulate_media(color_scheme=scheme)
    assert (luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 0.2) == (scheme == "dark")
    grounds = """e => { while (getComputedStyle(e).backgroundColor === 'rgba(0, 0, 0, 0)') e = e.parentElement;
                        return getComputedStyle(e).backgroundColor; }"""
    for place in (
        "#empty",
        "#model",
        "#state",
        ".gauge dd",
        ".gauge small",
        ".settings label",
        "#send",
        "#fresh",
        "td",
    ):
        element = page.locator(place).first
        inks = luminance(element.evaluate("e => getComputedStyle(e).color")), luminance(element.evaluate(grounds))
        assert (max(inks) + 0.05) / (min(inks) + 0.05) >= 4.5, place
