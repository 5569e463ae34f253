"""Measure AMD GPUs by AMD SMI: energy accumulator and socket power fast, state once a second.

Not tried on hardware: written after the sources of amdsmi 7.0.2 and tested against a stub with the same interface.
"""

from __future__ import annotations

import time
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import ConfigError, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments.amdsmi.client import NAN, AmdGpu, AmdSmi
from joulelab.instruments.hooks import Missing
from joulelab.instruments.readers import Readers
from joulelab.instruments.settings import check_keys, devices, number, seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Meter

SUMMARY = "AMD GPUs: energy accumulator, socket power, load, clocks, cap, processes (AMD SMI)"
PRIVILEGE = "none, or membership in the groups render and video"
TRIED = "a stub library with the same interface; not on hardware"
CONFIG = {
    "period_s": "seconds between readings of energy and power (0.1)",
    "slow_period_s": "seconds between readings of the state (1)",
    "devices": "indices or UUIDs of the GPUs to measure (all)",
    "first": "number of the first AMD GPU's scope (after the NVIDIA GPUs of this host)",
}
STATE = (
    Spec("load", "utilisation", "1"),
    Spec("memory_load", "utilisation", "1"),
    Spec("memory_used_b", "memory", "B"),
    Spec("gfx_clock_hz", "clock", "Hz"),
    Spec("memory_clock_hz", "clock", "Hz"),
    Spec("temperature_c", "temperature", "degC"),
    Spec("cap_requested_w", "cap", "W"),
    Spec("processes", "processes", "1"),
)
_FROZEN_NS = 1_000_000_000
_UNKNOWN = "AMD publishes no accuracy; not tried on hardware"
_FROZEN = "the energy accumulator does not move (ROCm/amdsmi issue 38): a reboot has helped"


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Open AMD SMI. Raises Unavailable, Denied, ConfigError."""
    check_keys("amdsmi", config, CONFIG)
    library = AmdSmi()
    try:
        return AmdMeter(library, config)
    except BaseException:
        library.close()
        raise


class Accumulator:
    """Judge an energy accumulator: a count is passed on only while it is known to move, and never backwards.

    A frozen accumulator (ROCm/amdsmi issue 38) would else read as 0 J, and one that falls while its own time stamp
    rises is another device's (issue 115).
    """

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        self._moved_ns: int | None = None
        self._falls = 0

    def judge(self, count_j: float, stamp: int, now_ns: int) -> float:
        """Return the count (J), NaN where it cannot be trusted."""
        if isnan(count_j):
            return NAN
        if self._last is None:
            self._last = count_j, stamp
            return NAN
        if count_j < self._last[0] and stamp > self._last[1] and self._falls < 3:
            self._falls += 1
            return NAN
        self._falls = 0
        if count_j != self._last[0]:
            self._last = count_j, stamp
            self._moved_ns = now_ns
        if self._moved_ns is None or now_ns - self._moved_ns > _FROZEN_NS:
            return NAN
        return count_j


class AmdMeter(Readers):
    """Read every AMD GPU; rows in J, W, Hz, B, degC, shares of 1."""

    def __init__(self, library: AmdSmi, config: Mapping[str, Any]) -> None:
        """Make readers and streams for the wanted GPUs. Raises Unavailable, ConfigError."""
        super().__init__()
        self._library = library
        self._seen: dict[str, tuple[int, ...]] = {}
        self._caps: dict[str, float] = {}
        periods = seconds("amdsmi", config, "period_s", 0.1), seconds("amdsmi", config, "slow_period_s", 1.0)
        first = int(number("amdsmi", config, "first", count_nvidia(Path("/proc/driver/nvidia/gpus")), above=-1))
        gpus = library.gpus()
        if not gpus:
            raise Unavailable(
                "there is no AMD GPU to measure", where="amdsmi", why="the driver lists none", next="run amd-smi list"
            )
        for gpu in _chosen(gpus, devices("amdsmi", config)):
            self._add(gpu, f"gpu:{first + gpu.index}", *periods)

    def close(self) -> None:
        """Release AMD SMI."""
        self._library.close()

    def _add(self, gpu: AmdGpu, scope: str, period_s: float, slow_s: float) -> None:
        judge = Accumulator()
        if not self._moves(gpu, judge):
            self._missing.append(Missing(scope, "its energy counter gives nothing", _FROZEN, "power is integrated"))
        specs = power_specs(gpu)
        power = Stream(f"{scope}.power", "power", scope, period_s, specs, device=gpu.uuid, model=gpu.name)
        state = Stream(f"{scope}.state", "state", scope, slow_s, STATE, device=gpu.uuid, model=gpu.name)
        self._put(power, lambda: self._power(gpu, judge))
        self._put(state, lambda: self._state(gpu, scope))

    def _moves(self, gpu: AmdGpu, judge: Accumulator) -> bool:
        """Read the accumulator for up to 50 ms, until it is seen to move: it is updated every millisecond or so."""
        for _ in range(25):
            count_j, stamp = self._library.energy(gpu)
            if isnan(count_j):
                return False
            if judge.judge(count_j, stamp, monotonic_ns()) == count_j:
                return True
            time.sleep(0.002)
        return False

    def _power(self, gpu: AmdGpu, judge: Accumulator) -> Sequence[float]:
        count_j, stamp = self._library.energy(gpu)
        now_w, average_w = self._library.power(gpu)
        return judge.judge(count_j, stamp, monotonic_ns()), now_w, average_w

    def _state(self, gpu: AmdGpu, scope: str) -> Sequence[float]:
        library = self._library
        load, memory_load = library.load(gpu)
        cap_w, pids = library.cap_w(gpu), library.pids(gpu)
        self._notice(scope, cap_w, pids)
        return (
            load,
            memory_load,
            library.memory_b(gpu),
            library.clock_hz(gpu, "GFX"),
            library.clock_hz(gpu, "MEM"),
            library.temperature_c(gpu),
            cap_w,
            NAN if pids is None else len(pids),
        )

    def _notice(self, scope: str, cap_w: float, pids: tuple[int, ...] | None) -> None:
        if pids is not None and pids != self._seen.get(scope):
            self._seen[scope] = pids
            self._events.append({"t": monotonic_ns(), "event": "process", "scope": scope, "pids": list(pids)})
        if not isnan(cap_w) and cap_w != self._caps.get(scope):
            self._caps[scope] = cap_w
            self._events.append({"t": monotonic_ns(), "event": "cap", "scope": scope, "requested_w": cap_w})


def power_specs(gpu: AmdGpu) -> tuple[Spec, Spec, Spec]:
    """Return the channels energy_j, power_instant_w, power_average_w; AMD states no window."""
    limits = (0.0, gpu.cap_w[1]) if gpu.cap_w else None

    def accuracy(quantum: float) -> Accuracy:
        return Accuracy("unknown", quantum=quantum, shared=f"amdsmi:{gpu.name}", reference=_UNKNOWN)

    return (
        Spec("energy_j", "energy", "J", "counter", 0.001, limits=limits, accuracy=accuracy(15.3e-6)),
        Spec("power_instant_w", "power", "W", "power", 0.001, limits=limits, accuracy=accuracy(1.0)),
        Spec("power_average_w", "power", "W", "power", 0.001, limits=limits, accuracy=accuracy(1.0)),
    )


def count_nvidia(folder: Path) -> int:
    """Return how many NVIDIA GPUs the kernel driver lists: their scopes come first."""
    try:
        return sum(1 for _ in folder.iterdir())
    except OSError:
        return 0


def _chosen(gpus: Sequence[AmdGpu], wanted: Sequence[int | str] | None) -> list[AmdGpu]:
    if wanted is None:
        return list(gpus)
    for name in wanted:
        if not any(name in (gpu.index, gpu.uuid) for gpu in gpus):
            listed = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
            raise ConfigError(f"there is no GPU {name!r}", where="meter amdsmi", next=f"valid: {listed}")
    return [gpu for gpu in gpus if gpu.index in wanted or gpu.uuid in wanted]
