"""Share one event loop, in a thread of its own, among all asynchronous client libraries of this process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")


class LoopThread:
    """Run coroutines for threads that are not asynchronous."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop itself, for libraries that want to be built on it."""
        return self._loop

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Return the result of a coroutine on the loop; cancel it and raise TimeoutError after `timeout_s`."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(f"no answer within {timeout_s:g} s") from None


_shared: LoopThread | None = None
_lock = threading.Lock()


def shared_loop() -> LoopThread:
    """Return the loop of this process; it lasts as long as the process does, as its sockets do."""
    global _shared
    with _lock:
        if _shared is None:
            _shared = LoopThread()
        return _shared
