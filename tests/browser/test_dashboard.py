"""The dashboard in a real browser: click through, search, compare, live updating, keys, long names, dark and light."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from tests.dashboard.conftest import HOSTILE, Stores, copied, fill
from tests.report.synthetic import START, make_run

from joulelab.core.clock import NS
from joulelab.dashboard import index as index_module
from joulelab.dashboard.security import Doors
from joulelab.dashboard.server import in_background
from joulelab.store.run_folder import end_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from joulelab.dashboard.index import Index

pytestmark = pytest.mark.system

TOKEN = "a-token-for-the-browser-42"
WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
ROWS = "#list tbody tr[data-run]"


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return fill(tmp_path_factory.mktemp("browsed"))


@pytest.fixture(scope="module")
def served(stores: Stores) -> Iterator[tuple[str, Index]]:
    with in_background(stores.runs, stores.studies, Doors()) as (server, index):
        index.settled()
        yield server.url, index


def test_search_pick_and_compare(
    served: tuple[str, Index], stores: Stores, open_page: Callable[..., Page], axe: Callable[..., list[str]]
) -> None:
    page: Any = open_page()
    page.goto(served[0])
    assert page.locator(ROWS).count() == 13
    assert axe(page) == []
    page.keyboard.press("/")
    page.keyboard.type("resnet")
    page.wait_for_function(f"() => document.querySelectorAll('{ROWS}').length === 2")
    assert page.url.endswith("/?q=resnet")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert "1 run selected" in page.locator("#selection").inner_text()
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.locator("tr.at").get_attribute("data-run") == stores.ids["second"]
    page.locator("a.open").first.focus()  # as Tab does
    assert page.locator("tr.at").get_attribute("data-run") == stores.ids["first"]
    page.locator("#sums dt", has_text="energy").wait_for()
    assert axe(page) == []
    page.get_by_label("Search").fill("")  # the selection stays over searches
    page.wait_for_function(f"() => document.querySelectorAll('{ROWS}').length === 13")
    page.get_by_role("link", name="energy").click()
    page.wait_for_url("**sort=energy*")
    assert page.locator("input[name=run]:checked").count() == 2
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare?run=*")
    assert "compared" in page.locator("h1").inner_text()
    verdicts = [page.locator(f".order-{order} .verdict") for order in ("ab", "ba")]
    assert [verdict.is_visible() for verdict in verdicts] == [True, False]
    page.get_by_role("button", name="Swap A and B").press("Enter")
    assert [verdict.is_visible() for verdict in verdicts] == [False, True]
    page.locator(".order-ba").get_by_role("link", name=stores.ids["first"]).first.click()
    page.wait_for_url(f"**/runs/{stores.ids['first']}")
    page.locator("figure.profile canvas").first.wait_for()
    page.get_by_role("link", name="Runs").click()
    page.wait_for_url(served[0])
    page.get_by_label("Status").select_option("killed")
    page.wait_for_function(f"() => document.querySelectorAll('{ROWS}').length === 1")
    page.get_by_label("Search").fill("no such thing")
    page.get_by_text("Nothing matches").wait_for()
    assert page.said == []


def test_hostile_and_long_names_do_no_harm_in_any_size(
    served: tuple[str, Index], stores: Stores, open_page: Callable[..., Page], axe: Callable[..., list[str]]
) -> None:
    for width, scheme in ((360, "dark"), (1400, "light")):
        page: Any = open_page(width=width, scheme=scheme)
        page.goto(f"{served[0]}?study=*")
        assert page.locator(ROWS).count() == 15
        assert page.evaluate(WIDER) <= 0
        tallest = page.evaluate(f"() => Math.max(...[...document.querySelectorAll('{ROWS}')].map(r => r.offsetHeight))")
        assert tallest < (130 if width == 360 else 70)
        assert page.get_by_text(HOSTILE[:20]).count() >= 1
        assert width != 360 or axe(page) == []
        page.goto(f"{served[0]}studies")
        assert page.evaluate(WIDER) <= 0
        assert width == 360 or axe(page) == []
        page.goto(f"{served[0]}runs/{stores.ids['hostile']}")
        assert page.evaluate("() => document.querySelectorAll('img, svg[onload]').length") == 0
        assert page.said == []


def test_the_list_moves_by_itself(
    tmp_path: Path, stores: Stores, open_page: Callable[..., Page], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "LOOK_S", 0.1)
    first = shutil.copytree(stores.runs / stores.ids["first"], tmp_path / stores.ids["first"])
    with in_background(tmp_path, None, Doors()) as (server, _):
        page: Any = open_page()
        page.goto(server.url)
        page.locator(f"tr[data-run='{first.name}'] a.open").focus()
        assert page.get_by_label("Label").count() == 0  # there is nothing to choose
        new = copied(first, 0.1, name="arrived", labels={"batch": "7"})
        page.get_by_text("arrived").wait_for()
        page.get_by_label("Label").wait_for()
        held = "() => document.activeElement.closest('tr').dataset.run"
        assert page.evaluate(held) == first.name  # the focus stays where it was
        page.locator(f"tr[data-run='{new.name}'] input").check()
        page.locator("#sums dt", has_text="energy").wait_for()
        shutil.rmtree(new)
        page.locator("#sums").get_by_text("there is no run").wait_for()  # a sum of what is gone does not stay
        page.wait_for_function("() => !document.getElementById('list').textContent.includes('arrived')")
        page.get_by_label("Search").evaluate("field => field.removeAttribute('maxlength')")
        page.get_by_label("Search").fill("x" * 401)  # the old list would be a wrong answer
        page.locator("#list").get_by_text("q is too long").wait_for()
        page.get_by_label("Search").fill("")
        page.locator(f"tr[data-run='{first.name}']").wait_for()
        assert [text for text in page.said if "400" not in text] == []


def test_a_live_run_moves_until_it_ends(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    run = make_run(tmp_path, name="going", state="live", seconds=2.0, gpus=1, cpus=0)
    with in_background(tmp_path, None, Doors()) as (server, index):
        index.settled()
        page: Any = open_page()
        page.clock.install()  # time passes as it does, and when it is told to
        page.add_init_script("Object.defineProperty(document, 'hidden', {get: () => window.away === true})")
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url.partition("?")[0].rpartition("/")[2]))
        page.goto(f"{server.url}runs/{run.name}")
        page.clock.run_for(100)
        page.locator("figure.profile canvas").first.wait_for()
        with page.expect_response("**/power") as answer:
            page.clock.run_for(2100)
        assert answer.value.json()["live"] is True
        page.evaluate("() => { window.away = true; }")
        page.wait_for_timeout(100)
        before = asked.count("power")
        page.clock.run_for(60_000)
        assert asked.count("power") == before  # nobody looks
        end_run(run, {"outcome": "exit", "exit_code": 0, "start_ns": START, "end_ns": START + 2 * NS})
        with page.expect_response("**/power") as answer:
            page.evaluate("() => { window.away = false; document.dispatchEvent(new Event('visibilitychange')); }")
        assert answer.value.json()["live"] is False
        page.wait_for_timeout(100)
        page.clock.run_for(60_000)
        assert asked.count("power") == before + 1  # it has ended
        assert page.said == []


def test_the_token_is_asked_for(stores: Stores, open_page: Callable[..., Page], axe: Callable[..., list[str]]) -> None:
    with in_background(stores.runs, None, Doors(token=TOKEN)) as (server, _):
        page: Any = open_page(scheme="dark")
        page.goto(server.url)
        assert page.url.endswith("/login")
        assert axe(page) == []
        page.get_by_role("textbox", name="Token").fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("That is not the token").wait_for()
        page.get_by_role("textbox", name="Token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.locator(ROWS).first.wait_for()
        assert page.evaluate("() => document.cookie") == ""
        page.get_by_role("button", name="Log out").click()
        page.wait_for_url("**/login")
