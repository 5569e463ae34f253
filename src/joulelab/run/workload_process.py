"""Start the workload as a shell would, and end as the workload ended."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import select
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from joulelab.core.errors import WorkloadError
from joulelab.store.safe_files import open_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
OWN_FAILURE, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127
# Python ignores these for itself; a program expects the default.
DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ)
PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True)
class WorkloadEnd:
    """Hold how a process ended, and what it used: CPU in s, peak memory in bytes."""

    exit_code: int | None
    signal: int | None
    user_s: float
    system_s: float
    peak_memory_b: int


def strip_own_locale(environ: Mapping[str, str], began: Path = Path("/proc/self/environ")) -> dict[str, str]:
    """Return the environment without the locale that Python sets itself if there was none when it `began`."""
    found = dict(environ)
    if found.get("LC_CTYPE") in COERCED:
        with contextlib.suppress(OSError):
            if not any(entry.startswith(b"LC_CTYPE=") for entry in began.read_bytes().split(b"\0")):
                del found["LC_CTYPE"]
    return found


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
            return spawn(["/bin/sh", _find_on_path(argv[0]), *argv[1:]])
    except (OSError, ValueError) as error:
        raise _refuse_start(argv[0], error) from error


def become_workload(argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command. Raises WorkloadError."""
    for number in DEFAULTS:
        signal.signal(number, signal.SIG_DFL)
    try:
        try:
            os.execvpe(argv[0], list(argv), environ)  # noqa: S606 no shell: the words are the command's own
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                raise
            os.execve("/bin/sh", ["/bin/sh", _find_on_path(argv[0]), *argv[1:]], environ)  # noqa: S606
    except (OSError, ValueError) as error:
        raise _refuse_start(argv[0], error) from error


def _find_on_path(name: str) -> str:
    if "/" in name:
        return name
    return next((p for d in os.get_exec_path() if os.access(p := str(Path(d) / name), os.X_OK)), name)


def _refuse_start(name: str, error: OSError | ValueError) -> WorkloadError:
    if isinstance(error, OSError) and error.errno in (errno.ENOENT, errno.ENOTDIR):
        interpreter = "/" in name and Path(name).exists()
        why = "its interpreter is missing" if interpreter else "no such command"
        return WorkloadError(f"{name} cannot be started", exit_code=NOT_FOUND, why=why, code="workload.not-found")
    why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return WorkloadError(f"{name} cannot be started", exit_code=NOT_EXECUTABLE, why=why, code="workload.not-started")


def poll_workload(pid: int) -> tuple[WorkloadEnd | None, int]:
    """Return how the workload ended (None while it runs), and the signal that has just stopped it, 0 for none."""
    found, status, usage = os.wait4(pid, os.WNOHANG | os.WUNTRACED)
    if not found:
        return None, 0
    if os.WIFSTOPPED(status):
        return None, os.WSTOPSIG(status)
    code = os.waitstatus_to_exitcode(status)
    killed = -code if code < 0 else None
    return WorkloadEnd(code if code >= 0 else None, killed, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024), 0


def stop_like_workload(number: int) -> None:
    """Stop this process as the workload was stopped, so that the shell sees its job stopped; return when continued."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_BLOCK, [number])


def exit_like_workload(exit_code: int | None, killed_by: int | None = None) -> NoReturn:
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


class OutputCapture:
    """Copy the workload's output to a file and pass it on.

    The workload then has pipes instead of the terminal, and its output and errors may change their order.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. Raises OSError."""
        self._file = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self._threads: dict[int, threading.Thread] = {}
        self._ours: list[int] = []
        # Since when each reader waits for output, in s; readers that are busy are left out.
        self._idle: dict[int, float] = {}
        for target in (1, 2):
            reader, writer = os.pipe()
            self._ours.append(writer)
            self._threads[reader] = threading.Thread(target=self._copy, args=(reader, target), daemon=True)
        self.outputs: tuple[int, int] = (self._ours[0], self._ours[1])

    def start(self) -> None:
        """Begin to copy, after the workload has got the other ends."""
        for fd in self._ours:
            os.close(fd)
        for thread in self._threads.values():
            thread.start()

    @property
    def is_complete(self) -> bool:
        """Return whether all output has been copied and its pipes are closed."""
        return not any(t.is_alive() for t in self._threads.values())

    def is_settled(self, quiet_s: float = 0.5) -> bool:
        """Return whether all output is copied, or processes that outlived the workload have been silent for `quiet_s`.

        Output that the reader of our own output does not take yet is waited for without a limit.
        """
        before = time.monotonic() - quiet_s
        held = [reader for reader, thread in self._threads.items() if thread.is_alive()]
        return all(self._idle.get(reader, before + 1) <= before and not _has_data(reader) for reader in held)

    def _copy(self, reader: int, target: int) -> None:
        has_file = True
        try:
            while data := self._read(reader):
                if has_file:
                    try:
                        _write_all(self._file, data)
                    except OSError:
                        has_file = False  # a full disk costs the copy, not the output
                _write_all(target, data)
        except OSError:
            pass  # our own output was closed: close the pipe, so that the workload notices as it would without us
        finally:
            os.close(reader)

    def _read(self, reader: int) -> bytes:
        self._idle[reader] = time.monotonic()
        data = os.read(reader, 65536)
        self._idle.pop(reader)
        return data


def _has_data(fd: int) -> bool:
    try:
        return bool(select.select([fd], (), (), 0)[0])
    except (OSError, ValueError):
        return False  # just closed


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
