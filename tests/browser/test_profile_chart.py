"""Power over time in a real browser: what is drawn, read, zoomed, fetched, and how long it takes."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from tests.browser.synthetic_profile import day, page_of, profile

from joulelab.report.page.document import read_script, read_stylesheet, write_offline_page, write_served_page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.system

HOSTILE = "<img src=x onerror='window.broken = 1'>"
SITE = "http://joulelab.test"
# The colours of a column of the picture, from top to bottom of the power panel, as [r, g, b] lists.
COLUMN = """share => {
  const canvas = document.querySelector('canvas');
  const x = Math.round(58 + share * (canvas.width - 68));
  const {data} = canvas.getContext('2d').getImageData(x, 0, 1, canvas.height);
  return Array.from({length: canvas.height}, (_, k) => [...data.slice(4 * k, 4 * k + 3)].join());
}"""


@pytest.fixture
def shown(open_page: Callable[..., Page], tmp_path: Path) -> Callable[..., Page]:
    """Open a chart of this data from a file."""

    def opened(
        data: dict[str, Any], *, overlay: bool = False, before: Callable[[Page], Any] = id, **options: Any
    ) -> Page:
        file = tmp_path / "page.html"
        file.write_text(write_offline_page(page_of(data, overlay=overlay)), encoding="utf-8")
        page = open_page(**options)
        before(page)
        page.goto(file.as_uri())
        page.wait_for_selector(".profile .status:not(:empty)")
        return page

    return opened


def status(page: Page) -> str:
    return page.inner_text(".profile .status")


def picture(page: Page) -> str:
    settle(page)
    return page.evaluate("() => document.querySelector('canvas').toDataURL()")


def settle(page: Page) -> None:
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def drag(page: Page, start: float, end: float) -> None:
    """Draw a box over these shares of the chart."""
    box = page.locator(".over").bounding_box()
    assert box is not None
    left, width = box["x"] + 58, box["width"] - 68
    page.mouse.move(left + start * width, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(left + end * width, box["y"] + 150, steps=3)
    page.mouse.up()
    settle(page)


def values(data: dict[str, Any], ident: str, kind: str, level: int = 0) -> np.ndarray:
    one = next(one for one in data["series"] if one["id"] == ident)
    return np.frombuffer(base64.b64decode(one[kind][level]), "<f4")


def packed(numbers: np.ndarray) -> str:
    return base64.b64encode(numbers.astype("<f4").tobytes()).decode()


def test_read_and_zoom(shown: Callable[..., Page]) -> None:
    data = profile(100.0, 1.0, raw_s=0.5, gpus=2, gap=False)
    page = shown(data)
    assert status(page) == (
        "each point: 1 s, lowest and highest kept · this page's finest step: 1 s · "
        "readings every 500 ms (joulelab dashboard shows them)"
    )
    whole = picture(page)
    drag(page, 0.4, 0.6)
    assert picture(page) != whole
    assert page.is_enabled("text=Whole run")
    page.dblclick(".over")
    assert picture(page) == whole
    assert page.is_disabled("text=Whole run")
    # what is read is what the data say
    box = page.locator(".over").bounding_box()
    assert box is not None
    share = (50.4 - data["from_s"]) / (data["to_s"] - data["from_s"])
    page.mouse.move(box["x"] + 58 + share * (box["width"] - 68), box["y"] + 100)
    settle(page)
    k = int(50.4 - data["from_s"])
    mean, low, high = (values(data, "node.ac", kind)[k] for kind in ("mean", "low", "high"))
    tip = page.inner_text(".tip")
    assert f"{mean:,.0f} W" in tip
    assert f"{low:,.0f} – {high:,.0f}" in tip
    assert "train / epoch 2" in tip
    assert tip.startswith("0:50")
    assert page.said == []


def test_keys(shown: Callable[..., Page]) -> None:
    page = shown(profile(100.0, 1.0, gpus=2, epochs=2))
    whole = picture(page)
    page.focus(".over")
    page.keyboard.press("ArrowRight")
    settle(page)
    said = page.inner_text(".profile [aria-live]")
    assert re.search(r"train, epoch 0: gpu \(2\) \d+ W", said)
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert page.inner_text(".profile [aria-live]") != said
    page.keyboard.press("+")
    near = picture(page)
    assert near != whole
    page.keyboard.press("Shift+ArrowRight")
    assert picture(page) not in (near, whole)
    page.keyboard.press("0")
    assert picture(page) == whole
    page.mouse.wheel(0, -300)  # not over the chart
    assert picture(page) == whole
    page.hover(".over", position={"x": 500, "y": 100})
    page.mouse.wheel(0, -300)
    page.wait_for_selector(".reset:not(:disabled)")
    page.keyboard.press("Escape")
    settle(page)
    assert page.is_hidden(".tip")


def test_legend(shown: Callable[..., Page]) -> None:
    page = shown(profile(100.0, 1.0, gpus=2))
    before = picture(page)
    key = page.get_by_role("button", name="gpu (2)")
    assert key.get_attribute("aria-pressed") == "true"
    key.click()
    assert key.get_attribute("aria-pressed") == "false"
    assert picture(page) != before
    key.click()
    assert picture(page) == before
    page.get_by_text("more traces").click()
    page.get_by_role("button", name="GPU temperature").click()
    settle(page)
    tall = page.evaluate("() => document.querySelector('canvas').height")
    page.get_by_role("button", name="GPU temperature").click()
    settle(page)
    assert tall > page.evaluate("() => document.querySelector('canvas').height")


def test_no_peak_vanishes_and_a_gap_is_one(shown: Callable[..., Page]) -> None:
    data = profile(86400.0, 6.1, gpus=1, gap=False)
    whole = next(one for one in data["series"] if one["id"] == "node.ac")
    for level, count in enumerate(data["counts"]):
        for kind in ("mean", "low", "high"):
            numbers = values(data, "node.ac", kind, level).copy()
            numbers[int(0.3 * count) : int(0.32 * count)] = np.nan
            if kind == "high":
                numbers[int(0.57 * count)] = 9000.0  # one reading of 4 s in a day
            whole[kind][level] = packed(numbers)
    data["gaps"] = []
    data["phases"] = []
    page = shown(data)
    shown_level = next(k for k, count in enumerate(data["counts"]) if count < 1.5 * 844)
    count = data["counts"][shown_level]
    peak, beside = page.evaluate(COLUMN, (int(0.57 * count) + 0.5) / count), page.evaluate(COLUMN, 0.61)
    assert all(a != b for a, b in zip(peak[40:120], beside[40:120], strict=True))
    there, gone = page.evaluate(COLUMN, 0.29), page.evaluate(COLUMN, 0.31)
    assert "22,25,29" in there  # the whole's line
    assert "22,25,29" not in gone


def test_levels_are_decoded_when_they_are_needed(shown: Callable[..., Page]) -> None:
    count = """() => {
      window.decoded = []; const was = Uint8Array.fromBase64;
      if (was) Uint8Array.fromBase64 = text => { window.decoded.push(text.length); return was.call(Uint8Array, text); };
    }"""
    page = shown(day(), before=lambda page: page.add_init_script(f"({count})()"))
    opened = page.evaluate("() => Math.max(...decoded)")
    assert opened < 16_000  # of 56,000 that the finest has
    for _ in range(5):
        page.click("[title='Zoom in']")
    settle(page)
    assert page.evaluate("() => Math.max(...decoded)") > 50_000


def test_older_browsers(shown: Callable[..., Page]) -> None:
    data = profile(100.0, 1.0, gpus=2)
    page = shown(data, before=lambda page: page.add_init_script("delete Uint8Array.fromBase64"))
    page.focus(".over")
    page.keyboard.press("Home")
    settle(page)
    assert f"node.ac: the wall\n{values(data, 'node.ac', 'mean')[0]:.0f} W" in page.inner_text(".tip")


def test_overlay(shown: Callable[..., Page], axe: Callable[..., list[str]]) -> None:
    first, second = profile(100.0, 1.0, gpus=2), profile(300.0, 1.0, gpus=2, scale=0.5, noise=1)
    first["series"][4] |= {"id": "whole"}  # one has meters inside: the same wall by another name
    common = [
        {"label": "everything measured (node.ac)", "ids": ["whole", "node.ac"], "told": "All. A: 1 W."},
        {"label": "gpu (2)", "ids": ["gpu", "gpu"], "told": "Of GPUs " + HOSTILE},
    ]
    labels = ["A", "B " + HOSTILE]
    page = shown({"profiles": [first, second], "labels": labels, "common": common}, overlay=True)
    by_time = picture(page)
    page.get_by_role("button", name="by share of runtime").click()
    assert picture(page) != by_time
    page.hover(".over", position={"x": 500, "y": 100})
    settle(page)
    assert "% of the runtime" in page.inner_text(".tip")
    assert HOSTILE in page.inner_text(".tip")
    page.get_by_role("button", name="by time").click()
    page.mouse.move(0, 0)
    assert picture(page) == by_time
    page.hover(".over", position={"x": 100, "y": 100})
    settle(page)
    assert "no reading" not in page.inner_text(".tip")
    page.mouse.move(0, 0)
    page.select_option(".profile select", label="gpu (2)")
    assert picture(page) != by_time
    assert page.inner_text(".profile .summary") == "Of GPUs " + HOSTILE
    assert page.get_attribute(".profile canvas", "aria-label") == "Of GPUs " + HOSTILE
    page.get_by_role("button", name="A", exact=True).click()
    assert axe(page) == []
    assert page.evaluate("() => [document.images.length, window.broken]") == [0, None]


def test_an_overlay_of_runs_that_have_nothing_in_common(shown: Callable[..., Page]) -> None:
    data = {"profiles": [profile(100.0, 1.0), profile(100.0, 1.0)], "labels": ["A", "B"], "common": []}
    page = shown(data, overlay=True)
    assert page.inner_text(".profile select").strip() == "nothing in common"
    assert page.is_disabled(".profile select")


def test_names_do_nothing(shown: Callable[..., Page]) -> None:
    data = profile(100.0, 1.0, gpus=2)
    for one in [*data["series"], *data["lines"], *data["gaps"]]:
        one["label"] = HOSTILE
    for phase in data["phases"]:
        phase["title"] = HOSTILE
    page = shown(data)
    page.focus(".over")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    settle(page)
    assert HOSTILE in page.inner_text(".tip")
    assert page.evaluate("() => [document.images.length, window.broken]") == [0, None]
    assert page.said == []


@pytest.mark.parametrize(("whole", "traces"), [(False, True), (True, False)])
def test_less_than_all(shown: Callable[..., Page], whole: bool, traces: bool) -> None:
    data = profile(100.0, 1.0, gpus=2, whole=whole)
    if not traces:
        data |= {"series": [], "lines": [], "phases": [], "gaps": []}
    page = shown(data)
    page.focus(".over")
    page.keyboard.press("ArrowLeft")
    settle(page)
    assert page.is_visible(".tip")
    assert page.said == []


def answers(page: Page, text: str, api: Callable[[str], dict[str, Any]]) -> None:
    """Serve a page, its assets, and data at /api, without any network."""

    def answer(route: Route) -> None:
        path = urlsplit(route.request.url).path
        if path.startswith("/api"):
            route.fulfill(json=api(route.request.url))
        elif path.startswith("/static"):
            css = path.endswith(".css")
            route.fulfill(
                body=read_stylesheet() if css else read_script(), content_type="text/css" if css else "text/javascript"
            )
        elif path == "/favicon.ico":
            route.fulfill(status=204)
        else:
            policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'"
            route.fulfill(
                body=text, content_type="text/html; charset=utf-8", headers={"Content-Security-Policy": policy}
            )

    page.route("**/*", answer)


def test_raw_readings_are_fetched(open_page: Callable[..., Page]) -> None:
    asked: list[dict[str, list[str]]] = []

    def finer(url: str) -> dict[str, Any]:
        query = parse_qs(urlsplit(url).query)
        asked.append(query)
        start, stop = float(query["from"][0]), float(query["to"][0])
        fine = profile(2000.0, 0.05, gpus=2, raw_s=0.05)
        first, last = round((start - fine["from_s"]) / 0.05), round((stop - fine["from_s"]) / 0.05)
        for one in fine["series"]:
            for kind in ("mean", "low", "high"):
                cut = np.frombuffer(base64.b64decode(one[kind][0]), "<f4")[first:last]
                one[kind] = [packed(cut)]
        return {**fine, "from_s": start, "to_s": stop, "steps_s": [0.05], "counts": [last - first]}

    page = open_page()
    data = profile(2000.0, 1.0, gpus=2, raw_s=0.05)
    answers(page, write_served_page(page_of(data, raw="/api/power")), finer)
    page.goto(SITE)
    page.wait_for_selector(".profile .status:not(:empty)")
    drag(page, 0.50, 0.51)
    page.wait_for_function("() => document.querySelector('.status').textContent.includes('readings themselves')")
    (query,) = asked
    assert 900 < float(query["from"][0]) < float(query["to"][0]) < 1100
    assert 1000 < int(query["buckets"][0]) < 4000
    page.hover(".over", position={"x": 500, "y": 100})
    settle(page)
    assert re.match(r"16:\d\d\.\d\d\b", page.inner_text(".tip"))
    assert page.said == []


def test_what_goes_on_grows(open_page: Callable[..., Page], axe: Callable[..., list[str]]) -> None:
    page = open_page()
    given = page_of(profile(100.0, 1.0, gpus=2), live="/api/power")
    answers(page, write_served_page(given), lambda url: profile(200.0, 1.0, gpus=2))
    page.goto(SITE)
    page.wait_for_selector(".profile .status:not(:empty)")
    before = picture(page)
    with page.expect_response("**/api/power"):
        pass
    page.wait_for_function("was => document.querySelector('canvas').toDataURL() !== was", arg=before)
    page.focus(".over")
    page.keyboard.press("End")
    settle(page)
    assert page.inner_text(".tip").startswith("3:3")
    assert axe(page) == []
    assert page.said == []


@pytest.mark.campaign
def test_a_day_opens_and_zooms_without_stalls(shown: Callable[..., Page], stalls: Callable[..., Any]) -> None:
    data = day()
    assert 2.5e6 < len(json.dumps(data)) < 3.5e6
    seen: list[Any] = []
    page = shown(data, before=lambda page: seen.append(stalls(page)), width=2000)
    opening = seen[0].longest()
    seen[0].reset()
    for _ in range(4):
        page.click("[title='Zoom in']")
        settle(page)
    zooming = seen[0].longest()
    print(f"longest stall: {opening:.0f} ms on opening, {zooming:.0f} ms on zooming")
    assert opening < 1500  # on a machine that runs other tests too
    assert zooming < 1000
