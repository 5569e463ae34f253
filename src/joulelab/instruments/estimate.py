"""Estimate the CPUs' power as load times rated power: no measurement, opened on request only, marked everywhere."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments.host import CpuLoad
from joulelab.instruments.settings import check_keys, number, seconds, text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter

SUMMARY = "an estimate of CPU power: load x rated power (not a measurement)"
PRIVILEGE = "none"
TRIED = "this machine, without a meter to compare with"
DEFAULT = False
CONFIG = {
    "slow_period_s": "seconds between readings (1)",
    "cpu_w": "rated power of all CPU packages together, from their datasheet (3 W per logical CPU)",
    "proc": "the procfs tree (/proc)",
}
# Rated power per logical CPU of common parts is 2 to 5 W: EPYC 7763 280 W / 128, Xeon 8480+ 350 W / 112, i7 65 W / 16.
_W_PER_CPU = 3.0
_GIVEN_GAIN, _ASSUMED_GAIN = 0.5, 0.8
SHORTEST_NS = 250_000_000


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Open the estimate. Raises Unavailable, ConfigError."""
    check_keys("estimate", config, CONFIG)
    period_s = seconds("estimate", config, "slow_period_s", 1.0)
    proc = Path(text("estimate", config, "proc") or "/proc")
    if not (proc / "stat").exists():
        what, why, advice = "there is no load to read", f"no {proc / 'stat'}", "use a meter: joulelab meters"
        raise Unavailable(what, where="estimate", why=why, next=advice, code="unavailable.no-proc")
    rated_w = number("estimate", config, "cpu_w", _W_PER_CPU * (os.cpu_count() or 1), above=0.0)
    return EstimateMeter(proc, period_s, rated_w, is_given="cpu_w" in config)


class EstimateMeter:
    """Return load times rated power (W) as the mean since the last reading."""

    def __init__(
        self,
        proc: Path,
        period_s: float,
        rated_w: float,
        *,
        is_given: bool,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        """Open /proc/stat. Raises MeterError."""
        self._rated_w = rated_w
        self._now = now
        self._watts, self._read_ns = float("nan"), now()
        self._load = CpuLoad(proc)
        source = "given" if is_given else f"assumed, {_W_PER_CPU:g} W per logical CPU"
        reference = f"load x {rated_w:g} W ({source}); the share of power that idles is left out"
        gain, limits = _GIVEN_GAIN if is_given else _ASSUMED_GAIN, (0.0, rated_w)
        accuracy = Accuracy("assumed", gain, shared="estimate", reference=reference)
        spec = Spec(
            "power_w", "power", "W", "power", period_s, period_s, limits=limits, accuracy=accuracy, estimate=True
        )
        self._streams = (Stream("cpu", "power", "cpu", period_s, (spec,)),)

    def streams(self) -> Sequence[Stream]:
        """Return one stream that covers all CPU packages."""
        return self._streams

    def read(self, stream: Stream) -> Sequence[float]:  # noqa: ARG002 there is only one
        """Return the estimated power (W) over the last period. Raises ReadFailed."""
        now = self._now()
        if now - self._read_ns >= SHORTEST_NS:  # a shorter time has too few ticks of the kernel
            self._watts = self._load.read_share() * self._rated_w
            self._read_ns = now
        return (self._watts,)

    def close(self) -> None:
        """Close the file."""
        self._load.close()
