"""Watch a run that goes on from a thread of its own, at less than half a percent of one core."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Self

from joulelab.run.coverage import wait_until_covered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from joulelab.analysis.live_energy import EnergyTail, LiveFigures
    from joulelab.analysis.readings import Ints

_log = logging.getLogger("joulelab")
SHARE = 0.005  # of one core, over the whole time that it watches
CREDIT_S = 2.0  # it may be ahead by what it earns in so many seconds, so that the first figures come soon
JOIN_S = 5.0  # how long a thread is waited for that is busy with somebody's server
TRIES = 3  # files that are just being begun cannot be read once or twice


def load() -> None:
    """Import what is slow to import: before what is watched begins, not beside it."""
    with contextlib.suppress(Exception):  # whoever uses it then says what is wrong
        import_module("joulelab.analysis.live_energy")


class Live:
    """Tell what a run uses while a `with` block goes on; nothing that fails here reaches the block.

    `then` is called each `every_s` in the thread, with the newest `Now` there is: readings come as often as their cost
    allows. `steps` is that of `Tail`.
    """

    def __init__(
        self,
        folder: Path | None,
        start_ns: int,
        *,
        every_s: float = 1.0,
        steps: Callable[[], Ints | None] | None = None,
        then: Callable[[LiveFigures | None], None] | None = None,
    ) -> None:
        """Take the folder of this host in the run (None: there is none), and the time of the start (monotonic ns)."""
        self.now: LiveFigures | None = None
        self.spent_s = self.begun = 0.0
        self.reads = 0
        self._folder, self._steps, self._then = folder, steps, then
        self._start_ns, self._every_s = start_ns, every_s
        self._tail: EnergyTail | None = None
        self._failed = 0
        self._cost_s = 0.0
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="joulelab-live", daemon=True)

    def __enter__(self) -> Self:
        """Begin to watch."""
        self.begun = time.monotonic()
        try:
            if self._folder is not None:
                from joulelab.analysis.live_energy import EnergyTail

                self._tail = EnergyTail(self._folder, self._start_ns, self._steps)
        except Exception as error:  # noqa: BLE001 - the block runs, watched or not
            self._say(error)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread."""
        self.stop()
        self.close()

    def stop(self) -> None:
        """End the thread and keep what was read, for a last look."""
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def close(self) -> None:
        """Let go of the run."""
        if self._tail is not None:
            self._tail.close()

    def look(self, until_ns: int) -> LiveFigures | None:
        """Return what was used up to a time, after waiting for its readings; the thread must have been stopped."""
        try:
            if self._folder is not None and self._tail is not None:
                wait_until_covered(self._folder.parent, until_ns)
                self.now = self._tail.read(until_ns) or self.now
        except Exception as error:  # noqa: BLE001
            self._say(error)
        return self.now

    def _serve(self) -> None:
        while not self._bell.wait(self._every_s):
            began = time.thread_time()
            try:
                if self._affordable():
                    self._read()
                if self._then is not None:
                    self._then(self.now)
                self._failed = 0
            except Exception as error:  # noqa: BLE001
                self._failed += 1
                if self._failed == TRIES:
                    self._say(error)
            self.spent_s += time.thread_time() - began

    def _affordable(self) -> bool:
        earned = SHARE * (time.monotonic() - self.begun + CREDIT_S)
        return self.spent_s + self._cost_s <= earned

    def _read(self) -> None:
        began = time.thread_time()
        try:
            if self._tail is not None:
                self.now = self._tail.read() or self.now
        finally:
            self.reads += 1
            self._cost_s = time.thread_time() - began

    @staticmethod
    def _say(error: Exception) -> None:
        _log.warning("live figures are missing: %s: %s", type(error).__name__, error)
