"""Serve a powercap tree: the files of Linux' RAPL driver, kept up to date in place from a truth file.

A limit of a package that is written there caps its power in the truth file from the next update on (10 ms); the time
windows of limits, and those of memory, are shown and have no effect.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from joulelab.core.clock import NS, monotonic_ns
from joulelab.core.errors import ConfigError
from joulelab.core.text import suggest_name
from joulelab.twin.truth import Truth

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RANGE_UJ = 262_143_328_850
PERIOD_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class PowercapFlaws:
    """Describe a powercap tree: energies in uJ, period in s; gains (1 is right) by point, such as `cpu:0`."""

    period_s: float = PERIOD_S
    range_uj: int = RANGE_UJ
    base_uj: int = 0
    gain: dict[str, float] = field(default_factory=dict)
    refuse: bool = False  # as the kernel does: readable by root alone

    def __post_init__(self) -> None:
        if self.period_s <= 0 or self.range_uj <= 0 or not 0 <= self.base_uj <= self.range_uj:
            raise ConfigError("period and range are above 0, the base within the range", where="powercap")


class _ZoneFiles:
    """Hold one zone's open `energy_uj`."""

    def __init__(self, directory: Path, point: str, name: str, range_uj: int, mode: int) -> None:
        directory.mkdir(parents=True)
        (directory / "name").write_text(name + "\n")
        (directory / "enabled").write_text("1\n")
        (directory / "max_energy_range_uj").write_text(f"{range_uj}\n")
        self.point = point
        self.path = directory / "energy_uj"
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        os.fchmod(self._fd, mode)
        self._width = 1

    def write_energy(self, energy_uj: int) -> None:
        """Replace the number in one write that never shortens the file: a reader never sees a part."""
        text = str(energy_uj)
        self._width = max(self._width, len(text))
        os.pwrite(self._fd, f"{text:<{self._width}}\n".encode(), 0)

    def close_file(self) -> None:
        os.close(self._fd)


class PowercapServer:
    """Serve the CPU packages of a truth file below `root`, as `/sys/class/powercap` would show them.

    `with` starts and stops a thread; as a process of its own: `python -m joulelab.twin.servers.powercap TRUTH ROOT`.
    """

    def __init__(
        self,
        truth: Truth,
        root: Path,
        flaws: PowercapFlaws | None = None,
        *,
        now: Callable[[], int] = monotonic_ns,
    ) -> None:
        self.root = root
        self._truth, self._now = truth, now
        self._flaws = flaws or PowercapFlaws()
        self._zones: dict[str, _ZoneFiles] = {}
        self._caps: dict[int, float | None] = {}  # by package, as last written to the truth
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_updates, name="twin-powercap", daemon=True)
        if wrong := set(self._flaws.gain) - set(truth.points):
            bad = min(wrong)
            raise ConfigError(f"a gain is given for {bad!r}", where="powercap", next=suggest_name(bad, truth.points))

    def __enter__(self) -> Self:
        self._build_tree()
        self.update_files()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for zone in self._zones.values():
            zone.close_file()

    def _build_tree(self) -> None:
        control = self.root / "intel-rapl"
        control.mkdir(parents=True)
        (control / "enabled").write_text("1\n")
        node = self._truth.node
        for j in range(node.packages):
            package = control / f"intel-rapl:{j}"
            self._add_zone(package, f"cpu:{j}", f"package-{j}")
            _write_constraints(package, node.cpu.max_w)
            self._caps[j] = self._read_cap(j)
            self._add_zone(package / f"intel-rapl:{j}:0", f"core:{j}", "core")
            self._add_zone(package / f"intel-rapl:{j}:1", f"dram:{j}", "dram")
            _write_constraints(package / f"intel-rapl:{j}:1", node.dram.max_w)
        if node.psys:
            self._add_zone(control / f"intel-rapl:{node.packages}", "psys", "psys")

    def _add_zone(self, directory: Path, point: str, name: str) -> None:
        self._zones[point] = _ZoneFiles(
            directory, point, name, self._flaws.range_uj, 0o400 if self._flaws.refuse else 0o444
        )
        # The class directory lists every zone flat, by a link, as sysfs does.
        (self.root / directory.name).symlink_to(directory.relative_to(self.root))

    def remove_energy(self, point: str) -> None:
        """Remove the energy file of a point, as when a driver is unloaded."""
        self._zones[point].path.unlink()

    def energy_uj(self, point: str, t_ns: int) -> int:
        """Return the counter of a point at a time, in uJ, wrapped."""
        joules = self._truth.energy(point, self._truth.start_ns, t_ns) * self._flaws.gain.get(point, 1.0)
        return (self._flaws.base_uj + int(joules * 1e6)) % (self._flaws.range_uj + 1)

    def update_files(self) -> None:
        """Apply the caps that were written since the last update, and write the energies."""
        for package, known_w in self._caps.items():
            with contextlib.suppress(OSError, ValueError):  # another process is writing the file
                cap_w = self._read_cap(package)
                if cap_w != known_w:
                    self._truth.set_cpu_cap(package, cap_w, self._now())
                    self._caps[package] = cap_w
        for point, zone in self._zones.items():
            zone.write_energy(self.energy_uj(point, self._now()))

    def _read_cap(self, package: int) -> float | None:
        """Return the lower of both limits of a package (W), None where they are off. Raises OSError, ValueError."""
        folder = self.root / "intel-rapl" / f"intel-rapl:{package}"
        if not int((folder / "enabled").read_text()):
            return None
        limits = [int((folder / f"constraint_{n}_power_limit_uw").read_text()) / 1e6 for n in (0, 1)]
        return min((limit for limit in limits if limit > 0), default=None)

    def _run_updates(self) -> None:
        period_ns = round(self._flaws.period_s * NS)
        due = monotonic_ns()
        while True:
            due = max(due + period_ns, monotonic_ns())
            if self._stop.wait((due - monotonic_ns()) / NS):
                return
            self.update_files()


def _write_constraints(directory: Path, max_w: float) -> None:
    rows = ((0, "long_term", 1.0, 999_424), (1, "short_term", 1.2, 1_952))
    for number, name, factor, window_us in rows:
        limit = round(max_w * factor * 1e6)
        values = {"name": name, "power_limit_uw": limit, "time_window_us": window_us, "max_power_uw": limit}
        for key, value in values.items():
            path = directory / f"constraint_{number}_{key}"
            path.write_text(f"{value}\n")
            path.chmod(0o644 if key.endswith(("limit_uw", "window_us")) else 0o444)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a tree until a signal or the end of standard input."""
    parser = argparse.ArgumentParser(prog="python -m joulelab.twin.servers.powercap")
    parser.add_argument("truth", type=Path)
    parser.add_argument("root", type=Path)
    parser.add_argument("--period-s", type=float, default=PERIOD_S)
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    with Truth(options.truth) as truth, PowercapServer(truth, options.root, PowercapFlaws(period_s=options.period_s)):
        sys.stdin.read()  # ends with its owner, who holds the other end
    return 0


if __name__ == "__main__":
    sys.exit(main())
