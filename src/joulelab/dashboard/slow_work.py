"""Do slow work beside the list: in a small pool of threads, with a cache of pages and of open runs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeVar

from joulelab.analysis.results_file import read_result, seal_ended
from joulelab.core.errors import JoulelabError
from joulelab.store.manifest import compute_fingerprint
from joulelab.store.run_reader import open_run

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

    from joulelab.analysis.result import Result

T = TypeVar("T")
AT_ONCE = 2
MOST_WAITING = 100
MOST_S = 60.0  # until a client is told that its page takes longer
MOST_BYTES = 96_000_000
MOST_RUNS, MOST_ROWS = 4, 15_000_000  # opened for zooming: a row is some 80 bytes as long as its run is open
RENEW_S, RENEW_SHARE = (
    2.0,
    3.0,
)  # a live page is made again after this time, or after this many times the time that it took


class Busy(JoulelabError):
    """Report that too many requests wait, or that one takes too long."""


class SlowWork:
    """Run slow work in a small thread pool; concurrent requests for one key share one result."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._turns = asyncio.Semaphore(at_once)
        self._going: dict[Hashable, asyncio.Task[Any]] = {}

    async def do(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `make`. Raises its errors, and Busy if too many requests wait or it takes too long.

        Work that takes too long goes on, and whoever asks again gets its result.
        """
        task = self._going.get(key)
        if task is None:
            if len(self._going) >= MOST_WAITING:
                raise Busy("the server is busy", next="try again in a moment")
            task = asyncio.ensure_future(self._turn(make))
            self._going[key] = task
            task.add_done_callback(lambda done: self._forget(key, done))
        try:
            result: T = await asyncio.wait_for(asyncio.shield(task), MOST_S)
        except TimeoutError:
            if task.done():  # an error of its own
                raise
            what = f"this takes longer than {MOST_S:g} s"
            raise Busy(what, next="ask again in a minute; joulelab report works without a limit") from None
        return result

    def _forget(self, key: Hashable, done: asyncio.Task[Any]) -> None:
        self._going.pop(key, None)
        if not done.cancelled():
            done.exception()  # seen: it may be that nobody waits for it any more

    async def _turn(self, make: Callable[[], T]) -> T:
        async with self._turns:
            return await asyncio.to_thread(make)


class PageCache:
    """Keep pages until their runs change; the pages that were not used for longest are dropped if they are too many."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._pages: OrderedDict[Hashable, tuple[object, float, bytes]] = OrderedDict()

    def get(self, key: Hashable, state: object, make: Callable[[], tuple[bytes, bool]]) -> bytes:
        """Return the page of a state of the files; `make` returns its bytes and whether it shows something live."""
        with self._lock:
            found = self._pages.get(key)
            if found is not None and (found[0] == state or time.monotonic() < found[1]):
                self._pages.move_to_end(key)
                return found[2]
        begin = time.monotonic()
        made, live = make()
        took = time.monotonic() - begin
        until = time.monotonic() + max(RENEW_S, RENEW_SHARE * took) if live else 0.0
        # Caches written meanwhile are no part of a fingerprint; a seal is, and then it is made once more.
        with self._lock:
            self._pages[key] = (None if live else state, until, made)
            while sum(len(page[2]) for page in self._pages.values()) > self._most and len(self._pages) > 1:
                self._pages.popitem(last=False)
        return made


class OpenRun:
    """Hold an open run, and its result until its files change."""

    def __init__(self, path: Path) -> None:
        seal_ended(path)
        self.run = open_run(path)
        self.lock = threading.Lock()
        self.rows = sum(table.rows for table in self.run.tables())
        self._of = ""
        self._result: Result | None = None

    def result(self) -> Result:
        """Return the run's result. Raises JoulelabError."""
        from joulelab.analysis.analyse import analyse_run

        now = compute_fingerprint(self.run.path)
        if self._result is None or now != self._of:
            self.run.tables()  # what a live run has written since is seen
            self._result, self._of = read_result(self.run.path) or analyse_run(self.run), now
        return self._result


class OpenRuns:
    """Keep a few runs open, so that zooming does not read them again."""

    def __init__(self, most: int = MOST_RUNS, most_rows: int = MOST_ROWS) -> None:
        self._most, self._most_rows = most, most_rows
        self._lock = threading.Lock()
        self._runs: OrderedDict[Path, OpenRun] = OrderedDict()

    def use(self, path: Path, what: Callable[[OpenRun], T]) -> T:
        """Call a function with an open run, one call at a time for each run. Raises JoulelabError."""
        with self._lock:
            found = self._runs.pop(path, None) or OpenRun(path)
            self._runs[path] = found
            gone = []
            while len(self._runs) > 1 and (len(self._runs) > self._most or self._rows() > self._most_rows):
                gone.append(self._runs.popitem(last=False)[1])
        for old in gone:
            with old.lock:
                old.run.close()
        with found.lock:
            return what(found)

    def _rows(self) -> int:
        return sum(opened.rows for opened in self._runs.values())

    def close(self) -> None:
        """Close all."""
        with self._lock:
            for opened in self._runs.values():
                with opened.lock:
                    opened.run.close()
            self._runs.clear()
