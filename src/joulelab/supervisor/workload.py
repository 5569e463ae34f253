"""Start the workload as a shell would, and leave as it left."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from joulelab.core.errors import WorkloadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OWN_FAILURE, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
# Python ignores these for itself; a program expects the default.
DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ)
PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True)
class Ending:
    """Say how a process ended, and what it used: CPU in s, peak memory in bytes."""

    exit_code: int | None
    signal: int | None
    user_s: float
    system_s: float
    peak_memory_b: int


def start_workload(
    argv: Sequence[str], environ: Mapping[str, str], mask: Iterable[int], outputs: tuple[int, int] | None = None
) -> int:
    """Start the command with our own input, output, terminal and process group; return its pid.

    `outputs` replaces standard output and error. Raises WorkloadError with the exit code of a shell.
    """
    actions = [(os.POSIX_SPAWN_DUP2, fd, target) for fd, target in zip(outputs or (), (1, 2), strict=False)]

    def spawn(words: Sequence[str]) -> int:
        return os.posix_spawnp(
            words[0], list(words), environ, file_actions=actions, setsigmask=list(mask), setsigdef=DEFAULTS
        )

    try:
        try:
            return spawn(argv)
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            # A script without a first line that names its interpreter: shells run it themselves.
            return spawn(["/bin/sh", _on_path(argv[0]), *argv[1:]])
    except (OSError, ValueError) as error:
        raise _not_started(argv[0], error) from error


def _on_path(name: str) -> str:
    if "/" in name:
        return name
    return next((p for d in os.get_exec_path() if os.access(p := str(Path(d) / name), os.X_OK)), name)


def _not_started(name: str, error: OSError | ValueError) -> WorkloadError:
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR):
        interpreter = "/" in name and Path(name).exists()
        why = "its interpreter is missing" if interpreter else "no such command"
        return WorkloadError(f"{name} cannot be started", exit_code=NOT_FOUND, why=why)
    why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return WorkloadError(f"{name} cannot be started", exit_code=NOT_EXECUTABLE, why=why)


def poll_workload(pid: int) -> tuple[Ending | None, int]:
    """Return how the workload ended (None while it has not), and the signal that has just stopped it, 0 for none."""
    found, status, usage = os.wait4(pid, os.WNOHANG | os.WUNTRACED)
    if not found:
        return None, 0
    if os.WIFSTOPPED(status):
        return None, os.WSTOPSIG(status)
    code = os.waitstatus_to_exitcode(status)
    killed = -code if code < 0 else None
    return Ending(code if code >= 0 else None, killed, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024), 0


def stop_like(number: int) -> None:
    """Stop this process as the workload was stopped, so that the shell sees its job stopped; return when continued."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])


def leave(exit_code: int | None, killed_by: int | None = None) -> NoReturn:
    """End this process as the workload ended: with its exit code, or by the same signal and without a core."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if killed_by is not None:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        if killed_by not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(killed_by, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [killed_by])
        os.kill(os.getpid(), killed_by)
        os._exit(128 + killed_by)  # the signal does not end a process here
    os._exit(OWN_FAILURE if exit_code is None else exit_code)


class Capture:
    """Copy the workload's output to a file on its way to where it goes anyway.

    The workload then sees pipes instead of the terminal, and its output and errors may change their order.
    """

    def __init__(self, path: Path) -> None:
        """Open the file; raise OSError where that fails."""
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._threads: list[threading.Thread] = []
        self._ours: list[int] = []
        writers = []
        for target in (1, 2):
            reader, writer = os.pipe()
            writers.append(writer)
            self._ours.append(writer)
            self._threads.append(threading.Thread(target=self._copy, args=(reader, target), daemon=True))
        self.outputs: tuple[int, int] = (writers[0], writers[1])

    def start(self) -> None:
        """Begin to copy; the workload holds the other ends by now."""
        for fd in self._ours:
            os.close(fd)
        for thread in self._threads:
            thread.start()

    def finish(self, bound_s: float = 0.5) -> bool:
        """Wait until all output is copied; return False where a process that outlives the workload still holds it."""
        until = time.monotonic() + bound_s
        while any(t.is_alive() for t in self._threads) and time.monotonic() < until:
            time.sleep(0.002)
        return not any(t.is_alive() for t in self._threads)

    def _copy(self, reader: int, target: int) -> None:
        keep = True
        try:
            while data := os.read(reader, 65536):
                if keep:
                    try:
                        _write_all(self._file, data)
                    except OSError:
                        keep = False  # a full disk costs the copy, not the output
                _write_all(target, data)
        except OSError:
            pass  # nobody reads our output any more: close, so that the workload is told as it would be without us
        finally:
            os.close(reader)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
