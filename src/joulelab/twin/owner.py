"""Tell by a note in a file whether the process that wrote it is gone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.clock import boot_id
from joulelab.core.process import start_ticks

if TYPE_CHECKING:
    from collections.abc import Mapping


def owner(pid: int) -> dict[str, int | str | None]:
    """Return what identifies a process: number, start in ticks, boot, and the space that its number is of."""
    space = Path("/proc/self/ns/pid").readlink()
    return {"pid": pid, "ticks": start_ticks(pid), "boot": boot_id(), "space": str(space)}


def is_gone(told: Mapping[str, Any]) -> bool:
    """Return whether a process has ended; one in another container cannot be seen, so nothing is known of it."""
    here = owner(int(told["pid"]))
    unseen = told["boot"] == here["boot"] and told["space"] != here["space"]
    return dict(told) != here and not unseen
