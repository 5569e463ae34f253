"""Tell processes apart beyond their reusable numbers."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")


def start_ticks(pid: int | None = None, proc: Path = PROC) -> int | None:
    """Return when a process (None = this one) started, in kernel ticks since boot; None where it has ended."""
    fields = _stat(pid, proc)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])


def is_stopped(pid: int, proc: Path = PROC) -> bool:
    """Return whether a process is stopped, as by Ctrl-Z."""
    fields = _stat(pid, proc)
    return fields is not None and fields[0] == "T"


def is_pending(pid: int, signal: int, proc: Path = PROC) -> bool:
    """Return whether a signal was sent to a process that has not taken it yet."""
    try:
        text = (proc / str(pid) / "status").read_text(errors="replace")
        masks = [int(line.split()[1], 16) for line in text.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    except (OSError, ValueError, IndexError):
        return False
    return any(mask >> (signal - 1) & 1 for mask in masks)


def _stat(pid: int | None, proc: Path) -> list[str] | None:
    try:
        text = (proc / ("self" if pid is None else str(pid)) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name in brackets may hold spaces and brackets itself: count from the last one.
    fields = text[text.rfind(")") + 1 :].split()
    return fields if len(fields) > 19 else None
