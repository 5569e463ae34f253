"""Wait in a training until the readings have reached it: a busy machine may take longer than the product waits."""

from __future__ import annotations

import os
import time
from pathlib import Path

from joulelab.core.clock import monotonic_ns
from joulelab.run.live import is_covered

LIMIT_S = 120


def wait_for_readings() -> None:
    """Wait until the readings of the run around us have reached this moment, and half a second more.

    The energy of a shorter time may be smaller than its interval, and is then no metric.
    """
    time.sleep(0.5)
    now_ns, until_s = monotonic_ns(), time.monotonic() + LIMIT_S
    while not is_covered(Path(os.environ["JOULELAB_RUN"]), now_ns):
        assert time.monotonic() < until_s, "no readings"
        time.sleep(0.02)
