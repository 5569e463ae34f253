"""Drive a real browser: Debian's chromium by playwright, axe for accessibility, and how long a page stalls.

A test takes `browser` and opens its own pages; `open_page` opens one with a size and a colour scheme and closes it.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Run before a page's own scripts: long tasks (over 50 ms) and the time between animation frames, in ms.
WATCH = """
(() => {
  const seen = window.__stalls = {task: 0, frame: 0, last: performance.now()};
  new PerformanceObserver(list => {
    for (const entry of list.getEntries()) seen.task = Math.max(seen.task, entry.duration);
  }).observe({type: 'longtask', buffered: true});
  const next = () => {
    const now = performance.now();
    seen.frame = Math.max(seen.frame, now - seen.last);
    seen.last = now;
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
})();
"""
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 60))))"


class Stalls:
    """Tell how long a page was deaf to its reader since it was opened, or since `reset`; in ms."""

    def __init__(self, page: Page) -> None:
        self._page = page
        page.add_init_script(WATCH)

    def longest(self) -> float:
        """Return the longest long task or, if longer, the longest time between two animation frames."""
        self._page.evaluate(TWO_FRAMES)
        seen = self._page.evaluate("() => [__stalls.task, __stalls.frame]")
        return float(max(seen))

    def reset(self) -> None:
        """Forget what was, before a step that is to be measured alone."""
        self._page.evaluate(TWO_FRAMES)
        self._page.evaluate("() => { __stalls.task = 0; __stalls.frame = 0; __stalls.last = performance.now(); }")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start chromium. Once per file and no longer: while playwright runs, no other test could start an event loop."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if found is None:
        pytest.skip("no chromium here: apt install chromium")
    with sync_api.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages that are closed after the test; `said` of each is what its console and its errors told.

    Takes width, height, scheme ("light" or "dark") and whatever else playwright's `new_context` takes.
    """
    contexts = []

    def opened(width: int = 1200, height: int = 900, scheme: str = "light", **options: Any) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.said = said = []
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.set_default_timeout(120_000)
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.fixture
def axe() -> Callable[..., list[str]]:
    """Check a page's accessibility: `assert axe(page) == []`. Only serious and critical findings count."""
    package = pytest.importorskip("axe_playwright_python", reason="axe is missing: pip install axe-playwright-python")
    script = (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")

    def findings(page: Page, within: str | None = None) -> list[str]:
        if not page.evaluate("() => typeof window.axe === 'object'"):
            page.evaluate(script)
        found = page.evaluate(
            "within => axe.run(within || document, {resultTypes: ['violations']}).then(r => r.violations)", within
        )
        return [
            f"{finding['id']} ({finding['impact']}): {node['html'][:200]} {node['failureSummary']}"
            for finding in found
            if finding["impact"] in ("serious", "critical")
            for node in finding["nodes"]
        ]

    return findings


@pytest.fixture
def stalls() -> Callable[[Page], Stalls]:
    """Measure stalls: `seen = stalls(page)` before `page.goto(...)`, then `seen.longest()` in ms, `seen.reset()`."""
    return Stalls
