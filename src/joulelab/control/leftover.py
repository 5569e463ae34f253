"""Tell whether caps were left behind. Imports next to nothing: every start of joulelab asks."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

STATE = "JOULELAB_STATE"
DEFAULT = "/var/lib/joulelab"
JOURNAL, LOCK = ".json", ".lock"


def caps_folder(environ: Mapping[str, str]) -> str:
    """Return the folder of this machine's locks and journals of caps."""
    return os.path.join(os.path.abspath(environ.get(STATE) or DEFAULT), "caps")  # noqa: PTH100, PTH118


def has_leftovers(environ: Mapping[str, str]) -> bool:
    """Return whether there is a journal that no keeper holds, and that this user may put back."""
    folder = caps_folder(environ)
    try:
        names = [n for n in os.listdir(folder) if n.endswith(JOURNAL) and not n.startswith(".")]  # noqa: PTH208
    except OSError:
        return False
    if not names or not os.access(folder, os.W_OK):
        return False
    return any(not is_held(os.path.join(folder, n[: -len(JOURNAL)] + LOCK)) for n in names)  # noqa: PTH118


def is_held(lock: str) -> bool | None:
    """Return whether a keeper holds a lock, without taking it; None where that may not be seen."""
    import fcntl
    import stat
    import struct

    # flock() can only be asked by taking it, which could turn a keeper away just then; this kind can be looked at.
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # a pipe would be waited for
            return None
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer: bytes = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
        return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(fd)
