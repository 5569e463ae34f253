"""Take turns: one slot of a user at a time on a machine, whatever study it is of, or slots would disturb each other.

Nodes of a cluster that share one machine count as machines.
Who can lock a file can hold up all who wait for it: the file is in a folder of ours and only we may open it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.control.state import format_holder, format_utc, get_user_name
from joulelab.core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

STATE_VARIABLE, DEFAULT_STATE = "JOULELAB_STATE", "/var/lib/joulelab"
RUNTIME_VARIABLE = "XDG_RUNTIME_DIR"
TURN_POLL_S = 0.2
# Slots that follow each other wait for moments; who waits longer says so.
TURN_NOTICE_S = 1.0
HOLDER_BYTES = 4096
TURN_ADVICE = f"set {STATE_VARIABLE} to a folder of yours"


def list_lock_files(environ: Mapping[str, str]) -> list[Path]:
    """Return where the lock may be, the best first: in the machine's state, among the user's sockets, in /tmp."""
    user, node = os.geteuid(), _node(environ)
    name = f"joulelab-slot-{user}{node}.lock"
    folders = [
        Path(environ.get(STATE_VARIABLE) or DEFAULT_STATE),
        Path(environ.get(RUNTIME_VARIABLE) or f"/run/user/{user}"),
    ]
    with contextlib.suppress(OSError):
        folders[0].mkdir(parents=True, exist_ok=True)
    files = [folder / own for folder, own in zip(folders, (f"slot{node}.lock", name), strict=True) if _is_ours(folder)]
    return [*files, Path(tempfile.gettempdir()) / name]


def _node(environ: Mapping[str, str]) -> str:
    """Return what tells nodes of a cluster apart that are one machine: each has its own turn there; else nothing."""
    name = environ.get("SLURMD_NODENAME", "") if "SLURM_JOB_ID" in environ else ""
    here = os.uname().nodename.partition(".")[0]
    return f"-{name.replace('/', '-')}" if name and name.partition(".")[0] != here else ""


def _is_ours(folder: Path) -> bool:
    try:
        found = folder.stat()
    except OSError:
        return False
    return folder.is_absolute() and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


@contextlib.contextmanager
def hold_turn(
    environ: Mapping[str, str],
    pause: Callable[[float], bool],
    *,
    command: str = "",
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[bool]:
    """Wait for the turn and hold it; give False where the wait was cut short. Raises StoreError.

    `pause` waits so many s and returns False where the slot shall end; `tell` hears once for whom we wait; `command`
    is what others are told of us.
    """
    began = time.monotonic()
    told = False
    while (fd := _take(environ)) is None:
        if not told and time.monotonic() - began >= TURN_NOTICE_S:
            told = True
            tell(_holder(environ))
        if not pause(TURN_POLL_S):
            yield False
            return
    try:
        _write(fd, {"pid": os.getpid(), "user": get_user_name(os.geteuid()), "command": command, "since": format_utc()})
        yield True
    finally:
        os.close(fd)


def _take(environ: Mapping[str, str]) -> int | None:
    """Return the lock, held; None where somebody has it. Raises StoreError."""
    fd, file = _open(environ)
    try:
        # A lock of this kind needs the right to write, and does not go by process as others of fcntl() do.
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        # Somebody may have removed the file meanwhile: a lock on that would be a lock on nothing.
        if os.path.samestat(os.fstat(fd), file.stat()):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(fd)
        raise _failed(file, error.strerror) from error
    os.close(fd)
    return None


def _open(environ: Mapping[str, str]) -> tuple[int, Path]:
    """Return the first lock file that can be opened and is ours. Raises StoreError."""
    why: str | None = None
    file = Path()
    for file in list_lock_files(environ):
        try:
            return _open_ours(file), file
        except OSError as error:
            why = error.strerror
    raise _failed(file, why)


def _open_ours(file: Path) -> int:
    """Open a lock file that nobody else can have placed, whatever is there; raise OSError."""
    # Not to wait for the other end of a pipe, nor to be led elsewhere by a link.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    fd = os.open(file, flags, 0o600)
    found = os.fstat(fd)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        if stat.S_IMODE(found.st_mode) != 0o600:
            os.fchmod(fd, 0o600)
        return fd
    os.close(fd)
    plain = stat.S_ISREG(found.st_mode)
    raise PermissionError(0, f"it belongs to {get_user_name(found.st_uid)}" if plain else "it is no plain file")


def _failed(file: Path, why: str | None) -> StoreError:
    return StoreError("cannot take turns with other slots", where=str(file), why=why, next=TURN_ADVICE)


def _write(fd: int, who: Mapping[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk costs the text, not the lock
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(who).encode()[:HOLDER_BYTES] + b"\n", 0)


def _holder(environ: Mapping[str, str]) -> str:
    """Return who has the turn, for people."""
    told: Any = {}
    with contextlib.suppress(OSError, ValueError, StoreError):
        fd, _ = _open(environ)
        try:
            told = json.loads(os.pread(fd, 2 * HOLDER_BYTES, 0))
        finally:
            os.close(fd)
    return format_holder(told if isinstance(told, dict) else {})
