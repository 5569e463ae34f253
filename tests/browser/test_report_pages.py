"""Pages of comparisons and studies in a real browser: nothing fails, no text of others runs, all can read them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.analysis.studies import sweep
from tests.report.synthetic import epochs, make_run

from joulelab.analysis.cell_metrics import summarise_cells
from joulelab.analysis.goals import Goal
from joulelab.core.quantity import Quantity
from joulelab.report.page.comparison_page import open_comparison_report
from joulelab.report.page.document import write_offline_page
from joulelab.report.page.study_page import make_study_report
from joulelab.study.folder import Settings, Study
from joulelab.study.results import RatedTrial, Results

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

pytestmark = pytest.mark.system

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><svg onload=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    given: dict[str, Any] = {"name": HOSTILE, "labels": {"who": HOSTILE}, "marks": epochs(2, 10.0, name=HOSTILE)}
    paths = [make_run(folder / "runs", gpu_w=300.0, **given), make_run(folder / "runs", gpu_w=250.0)]
    file = folder / "page.html"
    file.write_text(write_offline_page(open_comparison_report(paths).make_page()), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = {
        "name": "mine", "seed": 7, "created": {}, "command": [HOSTILE], "goals": ["energy"], "reference": {},
        "work": [], "scope": None, "settings": Settings().to_json(),
    }  # fmt: skip
    row = {"cell": "g1c100", "slot": "r01", "state": "failed", "why": HOSTILE, "run": HOSTILE, f"knob_{HOSTILE}": 1}
    results = Results(rows=[row] * 3, notes=[HOSTILE])
    results.rated = {"g1c100": [RatedTrial(("gpu",), 1000.0, Quantity(5e4, {"gain:m": 500.0}), 100.0, "m")]}
    summary = summarise_cells(sweep(caps=(100, 180, 260), gpus=(1, 8), n=2), goals=[Goal("energy")])
    file = tmp_path_factory.mktemp("study") / "page.html"
    made = make_study_report(Study(Path("mine"), data), results, summary)
    file.write_text(write_offline_page(made.make_page()), encoding="utf-8")
    return file


def _opened(page: Page, file: Path) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    page.wait_for_load_state("load")
    assert asked == [file.as_uri()]


def _made_narrow(page: Page) -> None:
    """Make a page as narrow as a telephone: nothing reaches out of it."""
    page.set_viewport_size({"width": 360, "height": 700})
    page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")


def test_a_comparison_can_be_read_and_runs_nothing(
    comparison: Path, open_page: Callable[..., Page], axe: Callable[..., list[str]]
) -> None:
    page = open_page(scheme="dark")
    _opened(page, comparison)
    page.wait_for_selector("figure.profile canvas")
    assert page.locator("figure.profile canvas").first.is_visible()
    page.get_by_role("button", name="share").click()
    assert axe(page) == []
    page.get_by_role("button", name="Swap A and B").click()
    page.wait_for_selector(".order-ba figure.profile canvas")
    assert not page.locator(".order-ab figure.profile").is_visible()
    assert axe(page) == []
    assert "owned" not in page.evaluate("() => document.title").replace("document.title='owned'", "")
    assert page.locator("main img").count() == 0
    assert page.said == []
    _made_narrow(page)


def test_a_study_can_be_read_and_runs_nothing(
    study: Path, open_page: Callable[..., Page], axe: Callable[..., list[str]]
) -> None:
    page = open_page()
    _opened(page, study)
    assert page.locator("section#metrics svg").first.is_visible()
    assert page.locator("section#maps svg:visible").count() == 3
    assert axe(page) == []
    page.emulate_media(color_scheme="dark")
    assert axe(page, "section#maps") == []
    assert page.title() == "Study mine"
    assert page.said == []
    for details in page.locator("details").all():
        details.locator("summary").first.click()
    _made_narrow(page)
    # Charts are drawn for a narrow page: none is cut, scrolled, or so small that it cannot be read.
    charts = page.locator("svg.chart:visible")
    sizes = charts.evaluate_all(
        "all => all.map(e => [e.getBoundingClientRect().right, e.clientWidth / e.viewBox.baseVal.width])"
    )
    assert len(sizes) > 10
    assert max(right for right, _ in sizes) <= 360
    assert min(scale for _, scale in sizes) > 0.8
    # No two texts of a map cover each other.
    boxes = (
        page.locator("section#maps svg:visible")
        .first.locator("text")
        .evaluate_all("all => all.map(e => e.getBoundingClientRect()).map(b => [b.left, b.top, b.right, b.bottom])")
    )
    for k, a in enumerate(boxes):
        assert not any(a[0] < b[2] - 1 and b[0] < a[2] - 1 and a[1] < b[3] - 3 and b[1] < a[3] - 3 for b in boxes[:k])
