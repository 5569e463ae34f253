"""Read the load of the machine and of one process tree from procfs, at a tenth of psutil's cost (see README.md)."""

from __future__ import annotations

import os
from math import isnan
from typing import TYPE_CHECKING, Final

from joulelab.core.errors import ReadFailed
from joulelab.instruments.sysfs import OpenFile

if TYPE_CHECKING:
    from pathlib import Path

NAN: Final = float("nan")
_SECTOR_B: Final = 512  # the unit of /proc/diskstats, whatever the disk's own sector is
_TICK_S: Final = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_B: Final = os.sysconf("SC_PAGE_SIZE")


class CpuLoad:
    """Tell how busy all CPUs were between one reading and the next."""

    def __init__(self, proc: Path) -> None:
        """Start counting now. Raises MeterError where /proc/stat cannot be read."""
        self._file = OpenFile(proc / "stat", "host", 256)
        self._last = self._ticks()

    def read(self) -> float:
        """Return the busy share (0..1) since the last reading, NaN where no time has passed. Raises ReadFailed."""
        busy, total = self._ticks()
        before, self._last = self._last, (busy, total)
        passed = total - before[1]
        return (busy - before[0]) / passed if passed > 0 else NAN

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _ticks(self) -> tuple[int, int]:
        # user nice system idle iowait irq softirq steal; guests are in user already, and what was stolen is not ours.
        fields = [int(n) for n in self._file.read().split(b"\n", 1)[0].split()[1:9]]
        if len(fields) < 8:
            raise ReadFailed(f"{self._file.path} is not understood", where="host", next="it is tried again")
        return fields[0] + fields[1] + fields[2] + fields[5] + fields[6], sum(fields)


class _Hardware(dict[str, bool]):
    """Remember which names stand for hardware, not for layers above it or parts of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> bool:
        self[name] = (self._folder / name / "device").exists()
        return self[name]


class Machine:
    """Read memory, disk and network of the whole machine."""

    def __init__(self, proc: Path, sys: Path) -> None:
        """Open the files. Raises MeterError."""
        self._disks, self._interfaces = _Hardware(sys / "block"), _Hardware(sys / "class" / "net")
        self._memory = OpenFile(proc / "meminfo", "host", 4096)
        self._disk = OpenFile(proc / "diskstats", "host", 1 << 17)
        self._net = OpenFile(proc / "net" / "dev", "host", 1 << 17)
        self._load = OpenFile(proc / "loadavg", "host", 128)

    def close(self) -> None:
        """Close the files."""
        for file in (self._memory, self._disk, self._net, self._load):
            file.close()

    def memory_b(self) -> float:
        """Return the memory in use (B): what is not available to new programs."""
        lines = self._memory.read().split(b"\n", 4)
        known = {name: int(rest.split()[0]) for name, _, rest in (line.partition(b":") for line in lines[:4]) if rest}
        if b"MemTotal" not in known or b"MemAvailable" not in known:
            return NAN
        return (known[b"MemTotal"] - known[b"MemAvailable"]) * 1024.0

    def disk_b(self) -> tuple[float, float]:
        """Return bytes read from and written to disks since boot, NaN without disks; layers above do not count."""
        read = written = 0
        for line in self._disk.read().splitlines():
            fields = line.split()
            if len(fields) >= 10 and self._disks[fields[2].decode()]:
                read += int(fields[5])
                written += int(fields[9])
        if not any(self._disks.values()):
            return NAN, NAN
        return float(read * _SECTOR_B), float(written * _SECTOR_B)

    def net_b(self) -> tuple[float, float]:
        """Return bytes received and sent since boot by interfaces with hardware, or by all but `lo` in a container."""
        real, other = [0, 0], [0, 0]
        for line in self._net.read().splitlines()[2:]:
            name, _, rest = line.partition(b":")
            fields, label = rest.split(), name.strip().decode()
            if len(fields) >= 9 and label != "lo":
                into = real if self._interfaces[label] else other
                into[0] += int(fields[0])
                into[1] += int(fields[8])
        chosen = real if any(self._interfaces.values()) else other
        return float(chosen[0]), float(chosen[1])

    def load1(self) -> float:
        """Return the load average over one minute."""
        return float(self._load.read().split(None, 1)[0])


class Held:
    """Keep a total from falling: what a vanished process had counted stays counted."""

    def __init__(self) -> None:
        self._gone = 0.0
        self._last = 0.0

    def fell(self, total: float) -> bool:
        """Tell whether the total is lower than before."""
        return total + self._gone < self._last

    def add(self, total: float) -> float:
        """Return the total with what is gone."""
        if isnan(total):
            return NAN
        if self.fell(total):
            self._gone = self._last - total
        self._last = total + self._gone
        return self._last


class Tree:
    """Follow a process and its descendants, found once by their parent and kept until they end.

    Each process of the machine is looked at once in its life, members at each reading. A descendant whose parent had
    ended before both were seen is missed.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._known: set[str] = set()
        self._members: dict[str, bytes] = {}  # process: when it started, so that a number used again is noticed
        self._cpu, self._read, self._written = Held(), Held(), Held()
        self._begun = False
        self._joined: list[int] = []

    def follow(self, pid: int) -> None:
        """Follow this process from now on."""
        self._known = set()
        self._members = {str(pid): b""}
        self._joined.append(pid)

    def joined(self) -> list[int]:
        """Return the processes that were found since the last call."""
        joined, self._joined = self._joined, []
        return joined

    def read(self) -> tuple[float, float, float, float, float]:
        """Return CPU time (s) with ended children, memory, read and written (B), processes; NaN before a start."""
        self._find()
        sums = self._sum()
        if self._cpu.fell(sums[0]):
            sums = self._sum()  # a child was counted neither for itself nor yet for its parent
        if sums[4]:
            self._begun = True
        if not self._begun:
            return NAN, NAN, NAN, NAN, NAN
        return self._cpu.add(sums[0]), sums[1], self._read.add(sums[2]), self._written.add(sums[3]), sums[4]

    def _find(self) -> None:
        present = {name for name in os.listdir(self._proc) if name.isdigit()}  # noqa: PTH208 paths cost more
        parents = {name: parent for name in present - self._known if (parent := self._parent(name))}
        joined = True
        while joined:
            joined = False
            for name, parent in list(parents.items()):
                if parent in self._members:
                    if name not in self._members:
                        self._members[name] = b""
                        self._joined.append(int(name))
                    del parents[name]
                    joined = True
        self._known = present
        self._members = {name: start for name, start in self._members.items() if name in present}

    def _parent(self, name: str) -> str | None:
        fields = self._stat(name)
        return fields[1].decode() if fields else None

    def _sum(self) -> tuple[float, float, float, float, float]:
        ticks = pages = count = 0
        read = written = 0.0
        for name, start in list(self._members.items()):
            moved = self._io(name)  # before the rest: a process that ends in between is then left out as a whole
            fields = self._stat(name)
            if not fields or start not in (b"", fields[19]):
                del self._members[name]
                continue
            self._members[name] = fields[19]
            # Own time and that of ended children that were waited for.
            ticks += int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
            pages += int(fields[21])
            count += 1
            read += moved[0]
            written += moved[1]
        return ticks * _TICK_S, float(pages * _PAGE_B), read, written, float(count)

    def _stat(self, name: str) -> list[bytes]:
        # The command may hold spaces and brackets; what follows the last bracket does not.
        return self._content(f"{self._proc}/{name}/stat").rpartition(b")")[2].split()

    def _io(self, name: str) -> tuple[float, float]:
        found = {key: value for key, _, value in map(_halves, self._content(f"{self._proc}/{name}/io").splitlines())}
        if b"read_bytes" not in found:
            return NAN, NAN  # another user's process, or a kernel that does not account
        return float(found[b"read_bytes"]), float(found[b"write_bytes"])

    def _content(self, path: str) -> bytes:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.read(descriptor, 4096)
        except OSError:
            return b""
        finally:
            os.close(descriptor)


def _halves(line: bytes) -> tuple[bytes, bytes, bytes]:
    return line.partition(b": ")
