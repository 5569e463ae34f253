"""Pass requests to a sampling thread, which sleeps between readings until the next deadline or request."""

from __future__ import annotations

import os
import select
from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from joulelab.core.clock import NS, monotonic_ns

# How long counters are polled quickly for their next step, unless told otherwise.
EDGE_S = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """Ask a sampling thread for something.

    edge    read now, then poll the counters quickly until each has stepped or `until_ns` is reached
    finish  the same after the workload's end, and also wait for what is due within `tail_s`; then stop
    follow  the workload runs as process `pid`: tell the meter, and poll the next step of each counter
    stop    stop at once
    """

    what: Literal["edge", "finish", "follow", "stop"]
    until_ns: int = 0
    tail_s: float = 0.0
    pid: int = 0
    id: int = 0


class Answer(NamedTuple):
    """Report that a request was served (None: something else has changed), and whether all counters stepped."""

    request: Request | None = None
    stepped: bool = False


class Inbox:
    """Wake a thread for a request or at a time.

    It sleeps in select(), which a step of the wall clock cannot prolong; timed locks can be prolonged in some builds.
    """

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fds = [self._fd]

    def put(self, request: Request) -> None:
        """Queue a request and wake the thread."""
        self._requests.append(request)
        os.eventfd_write(self._fd, 1)

    def sleep_until(self, due_ns: int) -> Request | None:
        """Sleep until a time on the monotonic clock; return early with a request if one comes."""
        while True:
            if self._requests:
                return self._requests.popleft()
            left = due_ns - monotonic_ns()
            if left <= 0:
                return None
            ready, _, _ = select.select(self._fds, (), (), left / NS)
            if ready:
                os.eventfd_read(self._fd)
