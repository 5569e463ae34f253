"""Measure a node of a Cray XC or HPE Cray EX by its board's counters, which every user may read (`pm_counters`).

Files hold `123 J 456 us`. `accel:N` is a board: two GPUs of MI250X, GPU and CPU of MI300A; it is compared with nothing
and in no sum beside others.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import MeterError, ReadFailed, Unavailable
from joulelab.core.spec import Accuracy, Spec, Stream
from joulelab.instruments.hooks import Missing
from joulelab.instruments.settings import check_keys, seconds, text
from joulelab.instruments.sysfs import FileMeter, OpenFile, read_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from joulelab.core.spec import Meter

SUMMARY = "a Cray node, its CPUs, memory and accelerator boards: energy and power (pm_counters)"
PRIVILEGE = "none"
TRIED = "trees of files; not on hardware"
ROOT = "/sys/cray/pm_counters"
CONFIG = {
    "period_s": "seconds between readings (0.1)",
    "slow_period_s": "seconds between readings of the cap (1)",
    "root": f"the folder of the counters ({ROOT})",
}
SCOPES = {"": "node.dc", "cpu": "cpu", "memory": "dram", "accel": "accel"}
CAP = Spec("cap_requested_w", "cap", "W")
USUAL_HZ = 10
STALE_S = 2.0  # twenty scans at the usual rate
_NAME = re.compile(r"(?:(cpu|memory|accel)(\d*)_)?energy")
_VALUE = re.compile(rb"(\d{1,18}) (J|W)(?: \d+ us)?\s*")
_WHY = "the board's own sensors; HPE publishes no accuracy, 5 % is taken"


def open_meter(config: Mapping[str, Any], *, now: Callable[[], int] = monotonic_ns) -> Meter:
    """Open the counters. Raises Unavailable, Denied, ConfigError."""
    check_keys("cray", config, CONFIG)
    root = Path(text("cray", config, "root", ROOT) or ROOT)
    if not (root / "energy").exists():
        why, advice = f"no {root / 'energy'}", "only a Cray XC or HPE Cray EX has them; other meters: joulelab meters"
        code = "unavailable.no-counters"
        raise Unavailable("there are no Cray counters", where="cray", why=why, next=advice, code=code)
    periods_s = seconds("cray", config, "period_s", 0.1), seconds("cray", config, "slow_period_s", 1.0)
    return CrayMeter(root, periods_s, now)


class CrayMeter(FileMeter):
    """Read energy (J) and power (W) of the node and its parts; counters that stand still are an error."""

    def __init__(self, root: Path, periods_s: tuple[float, float], now: Callable[[], int]) -> None:
        """Open the files of every part that has a counter. Raises Denied, ReadFailed, DeviceLost."""
        super().__init__("cray")
        self._root = root
        self._now = now
        self._scan = (-1, now())  # the last number of a scan, and when it was first seen
        update_s = 1 / (read_number(root / "raw_scan_hz") or USUAL_HZ)
        try:
            self._freshness = self._open_counter("freshness")
            for file in sorted(root.glob("*energy"), key=lambda file: (file.name != "energy", file.name)):
                if match := _NAME.fullmatch(file.name):
                    self._add_part(match[1] or "", match[2] or "", periods_s[0], update_s)
            cap = self._open_counter("power_cap")
            if cap is not None:
                state = Stream("node.dc.state", "state", "node.dc", periods_s[1], (CAP,), device="pm_counters")
                self._put(state, lambda: (parse_value(cap, b"W") or float("nan"),))  # 0 W is no cap
        except BaseException:
            self.close()
            raise

    def _open_counter(self, name: str) -> OpenFile | None:
        return self._open_file(self._root / name, 64) if (self._root / name).exists() else None

    def _add_part(self, part: str, number: str, period_s: float, update_s: float) -> None:
        scope = f"{SCOPES[part]}:{number}" if number else SCOPES[part]
        prefix = f"{part}{number}_" if part else ""
        try:
            energy = self._open_file(self._root / f"{prefix}energy", 64)
            power = self._open_counter(f"{prefix}power")
            counted = parse_value(energy, b"J")
        except MeterError as error:
            if not part:
                raise
            self._missing.append(Missing.from_error(scope, error))
            return
        if part and not counted:
            self._missing.append(Missing(scope, "it shows 0 J", "the board has no such part, or no sensor for it"))
            return
        accuracy = Accuracy("assumed", 0.05, quantum=1.0, shared=f"cray:{part or 'node'}", reference=_WHY)
        channels = (
            Spec("energy_j", "energy", "J", "counter", update_s, accuracy=accuracy),
            Spec("power_w", "power", "W", "power", update_s, 0.0, accuracy=accuracy),
        )
        stream = Stream(scope, "power", scope, period_s, channels, "node.dc" if part else None, device="pm_counters")
        self._put(stream, lambda: self._read_part(energy, power))

    def _read_part(self, energy: OpenFile, power: OpenFile | None) -> Sequence[float]:
        """Return J and W. Raises ReadFailed if the board has stopped to scan."""
        if self._freshness is not None:
            scan, now = self._freshness.read_number(), self._now()
            if scan != self._scan[0]:
                self._scan = scan, now
            elif now - self._scan[1] > STALE_S * NS:
                why = f"{self._freshness.path} stays at {scan} for {(now - self._scan[1]) / NS:.1f} s"
                what, code = "the counters are stale", "read-failed.stale"
                raise ReadFailed(what, where="cray", why=why, next="it is tried again; ask your centre", code=code)
        watts = parse_value(power, b"W") if power is not None else 0
        return parse_value(energy, b"J"), watts or float("nan")  # a part that counts does not draw 0 W


def parse_value(file: OpenFile, unit: bytes) -> int:
    """Return the number in `123 J 456 us`. Raises ReadFailed for another unit, and as `OpenFile.read`."""
    content = file.read()
    match = _VALUE.fullmatch(content)
    if match is None or match[2] != unit:
        what, why = f"{file.path} does not hold a number of {unit.decode()}", f"it holds {content[:40]!r}"
        raise ReadFailed(what, where="cray", why=why, next="it is tried again", code="read-failed.no-number")
    return int(match[1])
