"""Load the host beside `burn`: stress-ng with tasks of 3D matrices that fill a share of its memory."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError
from joulelab.workloads.burning.settings import STRESS_NG

if TYPE_CHECKING:
    from collections.abc import Iterator

STRESSOR = "matrix-3d"
# A task has three matrices of N x N x N numbers of four bytes; stress-ng takes N from 16 to 1024.
BYTES_OF_CELL, LEAST, MOST = 12, 16, 1024
SETTLED, SETTLE_S, END_S = 0.9, 300.0, 60.0
# More than this of what is free would end in the kernel killing processes.
MOST_OF_FREE = 0.95
PR_SET_PDEATHSIG = 1
# Many tasks on few cores would starve what starts work on the GPUs, and the recorder; what those leave is theirs.
NICE = 19
TOLD = {"bogo-ops": "host_bogo_ops", "bogo-ops-per-second-real-time": "host_bogo_ops_per_s"}


@dataclass(slots=True)
class Host:
    """Hold a running stress-ng; `began` is when it was started, by our own clock."""

    process: subprocess.Popen[bytes]
    metrics: Path
    tasks: int
    wanted: int
    began: float = field(default_factory=time.monotonic)

    def settle(self, wait_s: float = SETTLE_S) -> str:
        """Wait until all tasks are there with their memory; return what is missing, empty if nothing."""
        until = time.monotonic() + wait_s
        while True:
            if self.process.poll() is not None:
                return f"stress-ng ended with {self.process.returncode}"
            tasks, used = self.held()
            if tasks >= self.tasks and used >= SETTLED * self.wanted:
                return ""
            if time.monotonic() > until:
                return f"stress-ng has {tasks} of {self.tasks} tasks and {used / 1e9:.1f} of {self.wanted / 1e9:.1f} GB"
            time.sleep(0.1)

    def held(self) -> tuple[int, int]:
        """Return how many tasks there are, and the bytes of memory they hold."""
        import psutil

        found = []
        with contextlib.suppress(psutil.Error):
            for task in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.Error):
                    found.append(task.memory_info().rss)
        return len(found), sum(found)

    def end(self) -> dict[str, Any]:
        """End the tasks, and return what stress-ng says of them, with the seconds by our own clock.

        `-t` is not when they end, where there are more tasks than cores.
        """
        early = self.process.poll()
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(END_S)
        told = {"host_seconds": round(time.monotonic() - self.began, 3), **parse(self.metrics)}
        return told if early is None else {"host_exit_code": early, **told}


def size(tasks: int, share: float, total: int, free: int) -> int | None:
    """Return N so that all tasks fill a share of the host's memory; None for stress-ng's own. Raises ConfigError."""
    if not share:
        return None
    wanted = int(share * total)
    if wanted > MOST_OF_FREE * free:
        why = f"{wanted / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free"
        then = f"give host_memory={MOST_OF_FREE * free / total - 0.005:.2f} or less"
        raise ConfigError(f"host_memory {share:g} is more than there is", why=why, next=then)
    found = round(math.cbrt(wanted / tasks / BYTES_OF_CELL))
    if not LEAST <= found <= MOST:
        few, many = (int(wanted / BYTES_OF_CELL / n**3) for n in (MOST, LEAST))
        what = f"{tasks} tasks of {STRESSOR} cannot fill {wanted / 1e9:.1f} GB"
        raise ConfigError(what, next=f"give tasks from {few + 1} to {max(many, 1)}")
    return found


def memory(cgroup: Path = Path("/proc/self/cgroup"), mount: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """Return the host's bytes of memory and those that are free, as far as our control group may use them."""
    import psutil

    there = psutil.virtual_memory()
    total, free = int(there.total), int(there.available)
    with contextlib.suppress(OSError, ValueError):
        own = next(line[3:].strip("/") for line in cgroup.read_text().splitlines() if line.startswith("0::"))
        for folder in (mount / own, *(mount / own).parents):
            text = folder.joinpath("memory.max").read_text().strip() if (folder / "memory.max").exists() else "max"
            if text != "max" and folder.is_relative_to(mount):
                used = int(folder.joinpath("memory.current").read_text())
                total, free = min(total, int(text)), min(free, int(text) - used)
    return total, free


@contextlib.contextmanager
def stress(tasks: int, share: float, longest_s: float, folder: Path) -> Iterator[Host]:
    """Run stress-ng in this block; it ends with it, and with us however we end. Raises ConfigError."""
    total, free = memory()
    length = size(tasks, share, total, free)
    metrics, log = folder / "metrics.yaml", folder / "log"
    argv = [STRESS_NG, f"--{STRESSOR}", str(tasks), "--oomable", "--metrics", "--yaml", str(metrics)]
    argv += ["--temp-path", str(folder), "--timeout", str(int(longest_s) + 1)]
    argv += [f"--{STRESSOR}-size", str(length)] if length else []
    wanted = tasks * BYTES_OF_CELL * length**3 if length else 0
    with log.open("wb") as out:  # quiet, it would write no metrics
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=_begin())  # noqa: PLW1509 no thread runs here
    try:
        yield Host(process, metrics, tasks, wanted)
    finally:
        _stop(process)


def parse(file: Path) -> dict[str, float]:
    """Return what stress-ng's metrics say of the tasks, by the names of our facts; nothing where there is no file."""
    found: dict[str, float] = {}
    with contextlib.suppress(OSError):
        for line in file.read_text(errors="replace").splitlines():
            key, _, value = line.strip().partition(": ")
            if key in TOLD:
                with contextlib.suppress(ValueError):
                    found[TOLD[key]] = float(value)
    return found


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End stress-ng, which ends its tasks; where it does not, the kernel does when it is killed."""
    for send in (process.terminate, process.kill):
        if process.poll() is None:
            send()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5.0)


def _begin() -> Any:
    """Return what a child calls first: others come before it, and the kernel ends it when this process is gone."""
    libc, parent = ctypes.CDLL(None), os.getpid()

    def arrange() -> None:
        os.nice(NICE)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it went before that was arranged
            os._exit(1)

    return arrange
