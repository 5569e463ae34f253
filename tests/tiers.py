"""Sort tests into three tiers, and keep the quick tier quick.

A test without a mark is quick. `system` marks tests of real processes, servers, browsers and frameworks; `campaign`
marks kills, fuzzing, coverage of intervals, and whatever needs real time to pass. A quick test that sleeps, starts a
process, opens a network socket or imports a heavy framework fails.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

PROCESSES: Final = {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
SOCKETS: Final = {"socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
REFUSED: Final = PROCESSES | SOCKETS
FRAMEWORKS: Final = {"keras", "lightning", "mlflow", "playwright", "torch", "transformers", "wandb"}


def list_frameworks() -> set[str]:
    """Return the heavy frameworks that are loaded."""
    return {name for name in FRAMEWORKS if getattr(sys.modules.get(name), "__file__", None)}  # a fake has none


class QuickGuard:
    """Watch what the running test does. Audit hooks see every thread, and calls from C code."""

    def __init__(self) -> None:
        self.is_on = False
        self.violations: list[str] = []
        self._older: set[int | None] = set()
        self._loaded: set[str] = set()

    def start(self) -> None:
        """Begin to watch a test; threads that tests of other tiers left behind are not its own."""
        self._older = {thread.ident for thread in threading.enumerate() if thread is not threading.current_thread()}
        self._loaded = list_frameworks()
        self.violations.clear()
        self.is_on = True

    def watch_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Raise where a quick test does what a quick test must not do."""
        if event not in REFUSED or not self._is_watching():  # in this order: a run has millions of events
            return
        if event in PROCESSES:
            self._refuse(f"starts a process ({' '.join([event, *map(repr, arguments[:1])])})")
        self._refuse(f"uses the network ({event})")

    def check_modules(self) -> None:
        """Fail a test that has imported a heavy framework."""
        for name in sorted(list_frameworks() - self._loaded):
            self._refuse(f"imports {name}")

    def sleep(self, seconds: float) -> None:
        """Stand in for `time.sleep`."""
        if seconds > 0 and self._is_watching():
            self._refuse(f"sleeps {seconds:g} s")
        _sleep(seconds)

    async def sleep_in_loop(self, delay: float, result: Any = None) -> Any:
        """Stand in for `asyncio.sleep`."""
        if delay > 0 and self._is_watching():
            self._refuse(f"sleeps {delay:g} s")
        return await _sleep_in_loop(delay, result)

    def _is_watching(self) -> bool:
        return self.is_on and threading.get_ident() not in self._older

    def _refuse(self, what: str) -> None:
        text = f"A quick test {what}. Give it a virtual clock or a fake, or mark it: @pytest.mark.system"
        self.violations.append(text)
        pytest.fail(text)


_sleep, _sleep_in_loop = time.sleep, asyncio.sleep
guard = QuickGuard()
time.sleep = guard.sleep
asyncio.sleep = guard.sleep_in_loop
sys.addaudithook(guard.watch_event)


def find_tier(item: pytest.Item) -> str:
    """Return the tier of a test: quick, system or campaign."""
    return next((name for name in ("campaign", "system") if item.get_closest_marker(name)), "quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import files of other tiers when one tier is asked for."""
    asked = config.option.markexpr
    if not asked or not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    text = collection_path.read_text()
    whole = next((tier for tier in ("system", "campaign") if f"\npytestmark = pytest.mark.{tier}\n" in text), None)
    if "not system" in asked:
        return True if whole else None
    if asked == "system and not campaign":
        return True if whole == "campaign" or "mark.system" not in text else None
    return None


@pytest.hookimpl(trylast=True)  # after the random order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of each heavy framework together, so that one worker imports it; the order stays random else."""
    items.sort(key=lambda item: "/workloads/" not in item.nodeid and "/integrations/" not in item.nodeid)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Guard a quick test while it is set up and called."""
    if find_tier(item) == "quick":
        guard.start()
    try:
        return (yield)
    finally:
        guard.is_on = False


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Let servers end that other tests of the file have used."""
    guard.is_on = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a quick test whose threads, or whose code under test, caught the refusal."""
    result = yield
    if guard.is_on and guard.violations:
        pytest.fail(guard.violations[0])
    if guard.is_on:
        guard.check_modules()
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List the skipped tests by reason, one line each."""
    reasons: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = str(report.longrepr[-1]).removeprefix("Skipped: ")
        reasons.setdefault(reason, []).append(report.nodeid.partition("::")[0])
    if reasons:
        terminalreporter.section("skipped, by reason")
    for reason, files in sorted(reasons.items()):
        terminalreporter.write_line(f"{len(files):4} {reason} ({', '.join(sorted(set(files)))})")
