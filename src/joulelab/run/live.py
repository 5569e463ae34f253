"""Read the figures of a live run in a thread, and wait until readings are on disk."""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, Self

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import StoreError
from joulelab.store.journal import read_header
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from joulelab.analysis.live_energy import LiveFigures, LiveHost
    from joulelab.analysis.readings import Ints

_log = logging.getLogger("joulelab")
SHARE = 0.005  # of one core, over the whole time
CREDIT_S = 2.0  # it may spend the share of this time in advance, so that the first figures come soon
JOIN_S = 5.0  # how long to wait for a thread that may be waiting for a server
TRIES = 3  # a file that is just being created may fail to be read once or twice
POWER_S = 1.0  # power now is the mean over this time
FAST_S = 1.0  # streams with a longer period are not waited for
COVER_S = 3.0  # how long the last readings may take to reach the disk
_STAMPS = struct.Struct("<qqq")


def import_live_modules() -> None:
    """Import slow modules before the measured code begins, so that this does not disturb it."""
    with contextlib.suppress(Exception):  # the first user of the module reports the error
        import_module("joulelab.analysis.live_energy")


class LiveReader:
    """Read the figures of a run in a thread while a `with` block runs; no failure here reaches the block.

    `then` is called every `every_s` in the thread with the newest figures. They are read as often as half a percent of
    a core allows. `steps` is that of `EnergyTail`; power is the mean over `power_s`.
    """

    def __init__(
        self,
        folder: Path | None,
        start_ns: int,
        *,
        every_s: float = 1.0,
        power_s: float = POWER_S,
        steps: Callable[[], Ints | None] | None = None,
        then: Callable[[LiveFigures | None], None] | None = None,
    ) -> None:
        """Take this host's folder in the run (None: not recorded), and the time of the start (monotonic ns)."""
        self.now: LiveFigures | None = None
        self.spent_s = self.begun = 0.0
        self.reads = 0
        self._folder, self._steps, self._then = folder, steps, then
        self._start_ns, self._every_s, self._power_s = start_ns, every_s, power_s
        self._host: LiveHost | None = None
        self._failed = 0
        self._cost_s = 0.0
        self._bell = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="joulelab-live", daemon=True)

    def __enter__(self) -> Self:
        """Start the thread."""
        self.begun = time.monotonic()
        try:
            if self._folder is not None:
                from joulelab.analysis.live_energy import LiveHost

                self._host = LiveHost(self._folder, self._start_ns, self._steps, over_s=self._power_s)
        except Exception as error:  # noqa: BLE001 - the block runs in any case
            self._warn(error)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread."""
        self.stop()
        self.close()

    def stop(self) -> None:
        """End the thread, and leave the run open for `read_until`."""
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(JOIN_S)

    def close(self) -> None:
        """Release the run."""
        if self._host is not None:
            self._host.close()

    def read_until(self, until_ns: int) -> LiveFigures | None:
        """Return the figures up to a time, after waiting for its readings; call `stop` before."""
        try:
            if self._folder is not None and self._host is not None:
                wait_until_covered(self._folder.parent, until_ns)
                self.now = self._host.read(until_ns) or self.now
        except Exception as error:  # noqa: BLE001
            self._warn(error)
        return self.now

    def _read_on(self) -> None:
        while not self._bell.wait(self._every_s):
            began = time.thread_time()
            try:
                if self.spent_s + self._cost_s <= SHARE * (time.monotonic() - self.begun + CREDIT_S):
                    self._read()
                if self._then is not None:
                    self._then(self.now)
                self._failed = 0
            except Exception as error:  # noqa: BLE001
                self._failed += 1
                if self._failed == TRIES:
                    self._warn(error)
            self.spent_s += time.thread_time() - began

    def _read(self) -> None:
        began = time.thread_time()
        try:
            if self._host is not None:
                self.now = self._host.read() or self.now
        finally:
            self.reads += 1
            self._cost_s = time.thread_time() - began

    @staticmethod
    def _warn(error: Exception) -> None:
        _log.warning("live figures are missing: %s: %s", type(error).__name__, error)


def is_covered(run: Path, t_ns: int) -> bool:
    """Return whether every fast table of energy or power has a reading on disk that began at or after a time."""
    # The recorder writes events after rows: once there are events, every table exists.
    begun = any(path.stat().st_size for path in run.glob("*/events.[0-9]*.jsonl"))
    return begun and all(_reaches(path, t_ns) for path in _list_last_segments(run))


def wait_until_covered(run: Path, end_ns: int) -> None:
    """Wait until the readings on disk reach beyond a time, at most until COVER_S after it."""
    until = end_ns + round(COVER_S * NS)
    while not is_covered(run, end_ns) and monotonic_ns() < until:
        time.sleep(0.02)


def _list_last_segments(run: Path) -> list[Path]:
    newest: dict[tuple[Path, str], Path] = {}
    for path in sorted(run.glob("*/*.journal"), key=lambda p: int(p.name.split(".")[-2])):
        newest[path.parent, path.name.rsplit(".", 2)[0]] = path
    return list(newest.values())


def _reaches(path: Path, t_ns: int) -> bool:
    try:
        header = read_header(path)
        fast = (s for s in header.streams if s.period_s <= FAST_S)
        if not any(c.kind == "power" or c.unit == "J" for s in fast for c in s.channels):
            return True
        rows = (path.stat().st_size - header.data_offset) // header.row_bytes
        if rows < 1:
            return False
        with open_regular(path) as file:
            file.seek(header.data_offset + (rows - 1) * header.row_bytes)
            return int(_STAMPS.unpack(file.read(_STAMPS.size))[1]) >= t_ns
    except FileNotFoundError:
        return True  # sealed meanwhile: the run has ended
    except (OSError, StoreError, struct.error):
        return False  # not whole yet
