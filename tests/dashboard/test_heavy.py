"""What takes long: the same thing once, few at a time, some of it kept; runs that stay open for zooming."""

from __future__ import annotations

import asyncio
import shutil
import threading
from typing import TYPE_CHECKING

import pytest
from tests.report.synthetic import START, make_run

from joulelab.core.clock import NS
from joulelab.dashboard import slow_work
from joulelab.dashboard.slow_work import Busy, OpenRun, OpenRuns, PageCache, SlowWork
from joulelab.store.run_folder import end_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(("most", "most_rows", "kept"), [(2, 10**9, 2), (9, 1, 1), (9, 10**9, 3)])
def test_the_longest_unused_are_closed(tmp_path: Path, most: int, most_rows: int, kept: int) -> None:
    runs = [make_run(tmp_path, seconds=1.0, gpus=1, cpus=0)]
    runs += [shutil.copytree(runs[0], tmp_path / f"20261101-00000{k}-0001") for k in range(2)]
    opened = OpenRuns(most, most_rows)
    for run in runs:
        assert opened.use(run, lambda found: found.rows) > 0
    assert list(opened._runs) == runs[-kept:]
    again = opened.use(runs[-1], lambda found: found)
    assert opened.use(runs[-1], lambda found: found) is again
    opened.close()
    assert not opened._runs


def test_the_result_of_an_open_run_is_that_of_its_files(tmp_path: Path) -> None:
    run = make_run(tmp_path, seconds=1.0, gpus=1, cpus=0, state="live")
    opened = OpenRun(run)
    first = opened.result()
    assert opened.result() is first
    end_run(run, {"outcome": "exit", "exit_code": 3, "start_ns": START, "end_ns": START + NS})
    second = opened.result()
    assert (first.exit_code, second.exit_code) == (None, 3)
    assert opened.result() is second
    opened.run.close()


class Made:
    """Count how often something is made, of a size, live or not; `took` passes meanwhile."""

    def __init__(self, size: int = 4, *, live: bool = False, took: Callable[[], None] = lambda: None) -> None:
        self.times, self._size, self._live, self._took = 0, size, live, took

    def __call__(self) -> tuple[bytes, bool]:
        self.times += 1
        self._took()
        return bytes(self._size), self._live


def test_what_is_kept_goes_when_it_is_too_much() -> None:
    kept, pages = PageCache(10), {name: Made() for name in "abc"}
    for name in ("a", "b", "a", "c", "a", "b"):  # with c, b is the longest unused; then a is not
        kept.get(name, "state", pages[name])
    assert {name: made.times for name, made in pages.items()} == {"a": 1, "b": 2, "c": 1}
    large = Made(1000)
    for _ in range(2):
        assert len(kept.get("large", "state", large)) == 1000
    assert large.times == 1
    assert list(kept._pages) == ["large"]
    kept.get("large", "another state", large)
    assert large.times == 2


def test_what_is_live_is_held_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(slow_work.time, "monotonic", lambda: now[0])

    def slowly() -> None:
        now[0] += 5.0

    for took, hold in ((lambda: None, slow_work.RENEW_S), (slowly, 5.0 * slow_work.RENEW_SHARE)):
        kept, page = PageCache(), Made(live=True, took=took)
        kept.get("page", 1, page)
        now[0] += hold - 0.1
        kept.get("page", 2, page)
        assert page.times == 1
        now[0] += 0.2
        kept.get("page", 2, page)
        assert page.times == 2


def test_one_thing_is_made_once_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_work, "MOST_WAITING", 2)
    going, most, free = 0, 0, threading.Event()

    def make() -> int:
        nonlocal going, most
        going += 1
        most = max(going, most)
        free.wait(120)
        going -= 1
        return 7

    async def ask() -> list[int]:
        turns = SlowWork(at_once=1)
        asked = [asyncio.ensure_future(turns.do(key, make)) for key in ("a", "a", "b")]
        await asyncio.sleep(0)  # each has begun
        with pytest.raises(Busy):
            await turns.do("c", make)
        free.set()
        found = await asyncio.gather(*asked)
        return [*found, await turns.do("c", make)]

    assert asyncio.run(ask()) == [7, 7, 7, 7]
    assert most == 1


def test_work_that_takes_too_long_is_reported_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()

    def make() -> int:
        free.wait(120)
        return 7

    async def ask() -> int:
        work = SlowWork()
        monkeypatch.setattr(slow_work, "MOST_S", 0.001)
        with pytest.raises(Busy, match="takes longer"):
            await work.do("a", make)
        monkeypatch.setattr(slow_work, "MOST_S", 120.0)
        again = asyncio.ensure_future(work.do("a", make))
        await asyncio.sleep(0)
        free.set()
        return await again

    assert asyncio.run(ask()) == 7
