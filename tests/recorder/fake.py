"""A meter for tests, opened by its path: counters and powers of constant devices, and every way to misbehave.

It is also the shape of a meter of one's own: `joulelab run --meter ./mine.py -- CMD` needs no more than this.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import Denied, ReadFailed, Unavailable
from joulelab.core.spec import Spec, Stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUMMARY = "constant power, for tests"
CONFIG = {
    "period_s": "seconds between readings (0.1)",
    "slow_period_s": "seconds between readings of the state (1)",
    "devices": "how many (1)",
    "watts": "power of each (100)",
    "update_s": "how often counters step (0.02)",
    "hang_s": "how long a reading of device 0 hangs",
    "hang_after_s": "from when on it hangs, once",
    "hang_open_s": "how long opening hangs",
    "hang_open_until": "a file; until it is there, opening hangs",
    "fail_while": "a file; while it is there, readings of device 0 fail",
    "raises": "what opening raises: unavailable, denied, bug",
    "appears": "a file; until it is there, opening raises Unavailable",
    "chatty": "write to standard output, as libraries do (false)",
    "state": "also give a stream of state (false)",
}


def open_meter(config: Mapping[str, Any]) -> Fake:
    if config.get("chatty"):
        os.write(1, b"hello from a library\n")
    time.sleep(config.get("hang_open_s", 0))
    while not Path(config.get("hang_open_until", "/")).exists():
        time.sleep(0.01)
    problem = config.get("raises")
    if not Path(config.get("appears", "/")).exists():
        raise Unavailable("no fake here yet", why="it starts")
    if problem == "unavailable":
        raise Unavailable("no fake here", why="asked not to be", next="ask again")
    if problem == "denied":
        raise Denied("fake is locked")
    if problem == "bug":
        raise ZeroDivisionError("a bug")
    return Fake(config)


class Fake:
    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.start_ns = monotonic_ns()
        self.update_s = config.get("update_s", 0.02)
        self.hung = False
        self.workload: int | None = None
        self._events: list[dict[str, Any]] = []

    def streams(self) -> Sequence[Stream]:
        period = self.config.get("period_s", 0.1)
        energy = Spec("energy_j", "energy", "J", "counter", update_s=self.update_s)
        power = Spec("power_w", "power", "W", "power", update_s=self.update_s)
        count = self.config.get("devices", 1)
        streams = [Stream(f"gpu:{i}.power", "power", f"gpu:{i}", period, (energy, power)) for i in range(count)]
        if self.config.get("state"):
            state = (Spec("temperature_c", "temperature", "degC"),)
            slow = self.config.get("slow_period_s", 1.0)
            streams += [Stream(f"gpu:{i}.state", "state", f"gpu:{i}", slow, state) for i in range(count)]
        return streams

    def read(self, stream: Stream) -> Sequence[float]:
        t = (monotonic_ns() - self.start_ns) / 1e9
        if stream.scope == "gpu:0":
            self._misbehave(t)
        if stream.table == "state":
            return (40.0,)
        watts = self.config.get("watts", 100.0)
        return (watts * self.update_s * (t // self.update_s), watts)

    def set_workload(self, pid: int) -> None:
        self.workload = pid
        self._events.append({"t": monotonic_ns(), "event": "tree", "pids": [pid]})

    def events(self) -> list[dict[str, Any]]:
        drained, self._events = self._events, []
        return drained

    def close(self) -> None:
        pass

    def _misbehave(self, t: float) -> None:
        config = self.config
        if "hang_s" in config and not self.hung and t >= config.get("hang_after_s", 0.3):
            self.hung = True
            time.sleep(config["hang_s"])
        if "fail_while" in config and Path(config["fail_while"]).exists():
            raise ReadFailed("fake fails", why="asked to")
