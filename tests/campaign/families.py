"""Find, kill and wait for the processes of one joulelab, each by its id and start time, never by a name."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psutil
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterable


def list_family(pid: int) -> list[psutil.Process]:
    """Return a process and everything that it started, as far as it still runs."""
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    return []


def read_words(process: psutil.Process) -> list[str]:
    """Return the command of a process, nothing if it has ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def is_alive(process: psutil.Process) -> bool:
    """Return whether a process runs; one that only waits for its parent does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def kill_at_once(processes: Iterable[psutil.Process], *, stop_first: bool = False) -> None:
    """Kill processes; with `stop_first` at one moment, so that none of them sees another one end."""
    found = list(processes)
    for act in ("suspend", "kill") if stop_first else ("kill",):
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                getattr(process, act)()


def clear_family(members: Iterable[psutil.Process], within_s: float = 60.0) -> list[psutil.Process]:
    """Wait until processes have ended; kill those that have not, and return them."""
    found = list({member.pid: member for member in members}.values())
    with contextlib.suppress(AssertionError):
        until(lambda: not any(map(is_alive, found)), within_s=within_s)
    left = [member for member in found if is_alive(member)]
    kill_at_once(left)
    return left
