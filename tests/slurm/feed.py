"""Write a twin's truth as the files of Cray's pm_counters, ten times a second."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pathlib import Path

    from joulelab.twin.readings import Panel


class Feed:
    """Keep `energy` and `power` in a folder up to date from the beginning of the block to its end."""

    def __init__(self, panel: Panel, folder: Path) -> None:
        self._panel = panel
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pm_counters", daemon=True)

    def __enter__(self) -> Self:
        self._write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self._write()

    def _write(self) -> None:
        stamp = time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000
        self._put("energy", f"{self._panel.energy_j():.0f} J {stamp} us\n")
        self._put("power", f"{self._panel.power_w():.0f} W {stamp} us\n")

    def _put(self, name: str, text: str) -> None:
        new = self._folder / f".{name}"
        new.write_text(text)
        new.rename(self._folder / name)
