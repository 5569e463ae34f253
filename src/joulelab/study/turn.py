"""Take turns: one slot at a time on a machine, whatever study it is of, or the slots would disturb each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

STATE, DEFAULT = "JOULELAB_STATE", "/var/lib/joulelab"
POLL_S = 0.2


def lock_file(environ: Mapping[str, str]) -> Path:
    """Return the file whose lock is the turn: in the machine's state, or where anybody may write if there is none."""
    folder = Path(environ.get(STATE) or DEFAULT)
    if environ.get(STATE):
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
    file = folder / "slot.lock"
    if _opens(file):
        return file
    return Path(tempfile.gettempdir()) / "joulelab-slot.lock"


@contextlib.contextmanager
def turn(environ: Mapping[str, str], pause: Callable[[float], bool]) -> Iterator[bool]:
    """Wait for the turn and hold it; give False where the wait was cut short. Raises StoreError.

    `pause` waits so many s and returns False where the slot shall end.
    """
    file = lock_file(environ)
    try:
        fd = _open(file)
    except OSError as error:
        raise StoreError("cannot take turns with other slots", where=str(file), why=error.strerror) from error
    try:
        while not _locked(fd):
            if not pause(POLL_S):
                yield False
                return
        yield True
    finally:
        os.close(fd)


def _opens(file: Path) -> bool:
    try:
        os.close(_open(file))
    except OSError:
        return False
    return True


def _open(file: Path) -> int:
    # To lock it is enough to read; the file may be somebody else's, in a folder where only they may write.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(file, flags)
    except FileNotFoundError:
        return os.open(file, flags | os.O_CREAT, 0o644)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
