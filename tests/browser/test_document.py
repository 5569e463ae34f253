"""The frame of every page in a real browser: sizes, light and dark, accessibility, and that it asks for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.browser.synthetic_profile import page_of, profile

from joulelab.report.html import join_html, tag
from joulelab.report.page.document import Page as Contents
from joulelab.report.page.document import Section, read_script, read_stylesheet, write_offline_page, write_served_page

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.system

BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"
LIGHT, DARK = "rgb(255, 255, 255)", "rgb(17, 20, 23)"
LONG = "a-very-long-name-of-a-run-without-any-place-to-break-it-" * 3


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a page with a chart, a table that is wide, words of all colours, and a long name."""
    row = tag("tr", tag("th", "gpu:0", scope="row"), *(tag("td", f"{k} kWh", class_="number") for k in range(20)))
    table = tag("div", tag("table", tag("tbody", row)), class_="scroll", tabindex="0", role="region", aria_label="Wide")
    words = [tag("p", kind, class_=f"note {kind}") for kind in ("good", "warn", "bad")]
    words += [tag("span", kind, class_=f"badge {kind}") for kind in ("good", "warn", "bad", "live")]
    words += [
        tag("p", tag("span", kind, class_=kind), " ", tag("span", "muted", class_="muted"))
        for kind in ("good", "warn", "bad")
    ]
    words += [tag("p", tag("button", "Press", type="button", class_="primary"), tag("code", "joulelab show last"))]
    given = page_of(profile(100.0, 1.0, gpus=2), title=LONG)
    extra = Section("words", LONG, join_html([table, *words]))
    path = tmp_path_factory.mktemp("document") / "page.html"
    path.write_text(
        write_offline_page(Contents(given.title, LONG, (*given.sections, extra), given.data)), encoding="utf-8"
    )
    return path


@pytest.mark.parametrize(("width", "scheme"), [(360, "light"), (1600, "dark")])
def test_sizes_and_colours(
    open_page: Callable[..., Page], axe: Callable[..., list[str]], file: Path, width: int, scheme: str
) -> None:
    page = open_page(width, 800, scheme)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_selector(".profile .status:not(:empty)")
    assert page.evaluate(BACKGROUND) == (LIGHT if scheme == "light" else DARK)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert axe(page) == []
    assert asked == [file.as_uri()]
    assert page.said == []


def test_the_button_changes_colours(open_page: Callable[..., Page], axe: Callable[..., list[str]], file: Path) -> None:
    page = open_page()
    page.goto(file.as_uri())
    page.wait_for_selector(".profile .status:not(:empty)")
    chart = "() => document.querySelector('canvas').toDataURL()"
    light = page.evaluate(chart)
    page.click("button.theme")
    assert page.evaluate(BACKGROUND) == DARK
    page.wait_for_function(f"was => ({chart})() !== was", arg=light)
    assert axe(page) == []
    page.reload()
    assert page.evaluate(BACKGROUND) == DARK  # it is kept
    page.emulate_media(media="print")
    assert page.evaluate(BACKGROUND) == LIGHT  # paper is white
    assert page.is_hidden(".contents")


def test_keyboard_and_contents(open_page: Callable[..., Page], file: Path) -> None:
    page = open_page()
    page.goto(file.as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("() => document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "content"
    page.click(".contents a[href='#words']")
    page.wait_for_selector(".contents a[href='#words'][aria-current]")


def test_without_scripts(open_page: Callable[..., Page], file: Path) -> None:
    page = open_page(java_script_enabled=False)
    page.goto(file.as_uri())
    assert page.is_visible("text=The picture is drawn by a script")
    assert page.is_visible("text=the GPUs drew 78 %")


def test_a_live_page_renews_what_changed(open_page: Callable[..., Page]) -> None:
    told = iter(["1 kWh", "2 kWh"])

    def contents(live: bool, energy: str) -> Contents:
        fold = tag("details", tag("summary", "more"), tag("p", "hidden"))
        return Contents("run", "", (Section("energy", "Energy", join_html([tag("p", energy), fold])),), {}, live)

    def answer(route: Route) -> None:
        if "/static/" in route.request.url:
            css = ".css" in route.request.url
            route.fulfill(
                body=read_stylesheet() if css else read_script(), content_type="text/css" if css else "text/javascript"
            )
        else:
            energy = next(told)
            text = write_served_page(contents(energy == "1 kWh", energy)).replace('data-renew="5"', 'data-renew="1"')
            route.fulfill(body=text, content_type="text/html; charset=utf-8")

    page = open_page()
    page.route("**/*", answer)
    page.goto("http://joulelab.test/runs/1")
    page.click("summary")
    page.evaluate("() => document.activeElement.blur()")
    page.wait_for_selector("text=2 kWh")
    assert page.is_visible("text=hidden")  # what was opened stays open
    assert page.said == []
