"""Note the signals that tell the driver of a study to end, instead of ending at once."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Note that the driver is told to end, instead of ending at once; put the handlers back at the end."""

    def __enter__(self) -> Self:
        """Take the signals that are not ignored."""
        self.number: int | None = None
        self.times = 0
        self.fd, self._bell = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._bell, False)
        self._before = {n: signal.getsignal(n) for n in STOP_SIGNALS}
        for number, handler in self._before.items():
            if handler is not signal.SIG_IGN:
                signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Put back what was there."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._bell)

    def heard(self) -> None:
        """Empty the pipe that wakes the driver."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 64)

    def _note(self, number: int, _: FrameType | None) -> None:
        self.number = number if self.number is None else self.number
        self.times += 1
        with contextlib.suppress(BlockingIOError):
            os.write(self._bell, b"!")
