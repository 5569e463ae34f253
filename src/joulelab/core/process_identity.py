"""Identify processes by more than their pids, which the system uses again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from joulelab.core.clock import read_boot_id

if TYPE_CHECKING:
    from collections.abc import Mapping

PROC = Path("/proc")
RUN_VARIABLE = "JOULELAB_RUN"  # the run folder, in the environment of all processes of a workload
# `hidden`: in another container of this machine; `elsewhere`: maybe on another machine, so its state is unknown.
ProcessState = Literal["alive", "ended", "hidden", "elsewhere"]


def identify_process(pid: int | None = None, *, proc: Path = PROC, boot: str | None = None) -> dict[str, Any]:
    """Return the identity of a process (None = this one): pid, start ticks, boot, namespace of the pid, and host."""
    number = os.getpid() if pid is None else pid
    try:
        space = str((proc / "self" / "ns" / "pid").readlink())
    except OSError:
        space = ""
    here = {"boot": read_boot_id() if boot is None else boot, "space": space, "host": os.uname().nodename}
    return {"pid": number, "ticks": read_start_ticks(number, proc), **here}


def find_process(known: Mapping[str, Any], *, proc: Path = PROC, boot: str | None = None) -> ProcessState:
    """Return the state of an identified process; run folders name ticks and boot `start_ticks` and `boot_id`."""
    pid, ticks = known.get("pid"), known.get("ticks", known.get("start_ticks"))
    here = identify_process(pid if isinstance(pid, int) else 0, proc=proc, boot=boot)
    then = known.get("boot", known.get("boot_id"))
    if then != here["boot"]:
        return "ended" if then is not None and known.get("host", here["host"]) == here["host"] else "elsewhere"
    if known.get("space", here["space"]) != here["space"]:
        return "hidden"
    return "alive" if ticks is not None and ticks == here["ticks"] else "ended"


def read_start_ticks(pid: int | None = None, proc: Path = PROC) -> int | None:
    """Return the start of a process (None = this one) in kernel ticks since boot; None if it has ended."""
    fields = _read_stat(pid, proc)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def is_stopped(pid: int, proc: Path = PROC) -> bool:
    """Return whether a process is stopped, as by Ctrl-Z."""
    fields = _read_stat(pid, proc)
    return fields is not None and fields[0] == "T"


def is_pending(pid: int, signal: int, proc: Path = PROC) -> bool:
    """Return whether a signal was sent to a process and is not delivered yet."""
    try:
        text = (proc / str(pid) / "status").read_text(errors="replace")
        masks = [int(line.split()[1], 16) for line in text.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    except (OSError, ValueError, IndexError):
        return False
    return any(mask >> (signal - 1) & 1 for mask in masks)


def read_run_folder(pid: int, proc: Path = PROC) -> bytes:
    """Return the folder of the run in which a process was started, by its environment; empty if none is known."""
    try:
        variables = (proc / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return b""
    prefix = f"{RUN_VARIABLE}=".encode()
    return next((one.removeprefix(prefix) for one in variables if one.startswith(prefix)), b"")


def _read_stat(pid: int | None, proc: Path) -> list[str] | None:
    try:
        text = (proc / ("self" if pid is None else str(pid)) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in brackets may hold spaces and brackets itself: count from the last one.
    fields = text[text.rfind(")") + 1 :].split()
    return fields if len(fields) > 19 else None
