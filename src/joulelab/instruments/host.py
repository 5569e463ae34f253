"""Record the load of the machine, and of the workload's processes, once a second: CPU, memory, disk, network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import monotonic_ns
from joulelab.core.errors import Unavailable
from joulelab.core.spec import Spec, Stream
from joulelab.instruments.procfs import CpuLoad, Machine, Tree
from joulelab.instruments.settings import check_keys, seconds, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.core.spec import Meter

SUMMARY = "the machine's and the workload's load: CPU, memory, disk, network (procfs)"
PRIVILEGE = "none; disk use of other users' processes needs root"
TRIED = "this machine"
CONFIG = {
    "slow_period_s": "seconds between readings (1)",
    "proc": "the procfs tree (/proc)",
    "sys": "the sysfs tree (/sys)",
}
MACHINE = (
    Spec("busy", "CPU load", "1"),  # of all CPUs, since the last reading
    Spec("memory_used_b", "memory", "B"),
    Spec("disk_read_b", "disk", "B", "counter"),
    Spec("disk_written_b", "disk", "B", "counter"),
    Spec("net_received_b", "network", "B", "counter"),
    Spec("net_sent_b", "network", "B", "counter"),
    Spec("load1", "load average", "1"),
)
TREE = (
    Spec("cpu_s", "CPU time", "s", "counter"),  # ended children included once their parent has waited for them
    Spec("memory_b", "memory", "B"),  # resident; what processes share counts for each of them
    Spec("disk_read_b", "disk", "B", "counter"),
    Spec("disk_written_b", "disk", "B", "counter"),
    Spec("processes", "processes", "1"),
)

MOST_TOLD = 20_000  # processes named in events; a workload that starts more is not followed further


def open_meter(config: Mapping[str, Any]) -> Meter:
    """Open procfs. Raises Unavailable, ConfigError."""
    check_keys("host", config, CONFIG)
    period_s = seconds("host", config, "slow_period_s", 1.0)
    proc, sys = Path(text("host", config, "proc") or "/proc"), Path(text("host", config, "sys") or "/sys")
    if not (proc / "stat").exists():
        raise Unavailable(
            "there is no load to read", where="host", why=f"no {proc / 'stat'}", next="recording needs Linux with /proc"
        )
    return HostMeter(proc, sys, period_s)


class HostMeter:
    """Read the streams `machine` and `tree`."""

    def __init__(self, proc: Path, sys: Path, period_s: float) -> None:
        """Open the files. Raises MeterError."""
        self._busy = CpuLoad(proc)
        self._machine = Machine(proc, sys)
        self._tree = Tree(proc)
        self._followed: int | None = None
        self._told = 0
        self._streams = (
            Stream("machine", "machine", "host", period_s, MACHINE),
            Stream("tree", "tree", "workload", period_s, TREE, "host"),
        )

    def streams(self) -> Sequence[Stream]:
        """Return the streams `machine` and `tree`."""
        return self._streams

    def set_workload(self, pid: int) -> None:
        """Follow this process and its descendants; before, `tree` is NaN."""
        self._followed = pid

    def read(self, stream: Stream) -> Sequence[float]:
        """Return one row (shares of 1, B, s). Raises ReadFailed."""
        if stream.name == "machine":
            machine = self._machine
            return self._busy.read(), machine.memory_b(), *machine.disk_b(), *machine.net_b(), machine.load1()
        if self._followed is not None:  # taken over here, so that only the reading thread touches the tree
            self._tree.follow(self._followed)
            self._followed = None
        return self._tree.read()

    def events(self) -> list[dict[str, Any]]:
        """Return `tree` with the workload's new processes, so that others on its devices can be told apart."""
        pids = self._tree.joined()[: MOST_TOLD - self._told]
        self._told += len(pids)
        return [{"t": monotonic_ns(), "event": "tree", "pids": pids}] if pids else []

    def close(self) -> None:
        """Close the files."""
        self._busy.close()
        self._machine.close()
