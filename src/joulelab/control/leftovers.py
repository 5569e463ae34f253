"""Find the caps that a killed keeper left behind. Imports almost nothing, because every start of joulelab uses it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

STATE, LOCKS, TWIN = "JOULELAB_STATE", "JOULELAB_LOCKS", "JOULELAB_TWIN"
DEFAULT_STATE = "/var/lib/joulelab"
JOURNAL, LOCK = ".json", ".lock"


def get_caps_folder(environ: Mapping[str, str]) -> str:
    """Return the folder of the journals of caps."""
    return os.path.join(os.path.abspath(environ.get(STATE) or DEFAULT_STATE), "caps")  # noqa: PTH100, PTH118


def get_locks_folder(environ: Mapping[str, str]) -> str:
    """Return the folder of the locks, which all keepers of this machine share whatever their JOULELAB_STATE is.

    The devices of a twin are its own: their locks are in its state.
    """
    if environ.get(TWIN):
        return get_caps_folder(environ)
    return os.path.abspath(environ.get(LOCKS) or os.path.join(DEFAULT_STATE, "caps"))  # noqa: PTH100, PTH118


def has_leftovers(environ: Mapping[str, str]) -> bool:
    """Return whether there is a journal that no keeper holds and that this user may finish."""
    folder = get_caps_folder(environ)
    try:
        names = [n for n in os.listdir(folder) if n.endswith(JOURNAL) and not n.startswith(".")]  # noqa: PTH208
    except OSError:
        return False
    if not names or not os.access(folder, os.W_OK):
        return False
    locks = get_locks_folder(environ)
    return any(not is_locked(os.path.join(locks, n[: -len(JOURNAL)] + LOCK)) for n in names)  # noqa: PTH118


def is_locked(lock: str) -> bool | None:
    """Return whether a keeper holds a lock file, without locking it; None if this user has no permission."""
    import fcntl
    import stat
    import struct

    # flock() is tested by taking it, which could turn a keeper away at that moment; F_OFD_GETLK only looks.
    try:
        fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):  # a pipe would block
            return None
        request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer: bytes = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, request)
        return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(fd)


def restore_at_start(environ: Mapping[str, str], report: Callable[[str], None]) -> None:
    """Restore caps that were left behind, and report each in words; a failure is reported, too, and stops nothing."""
    if not has_leftovers(environ):
        return
    try:
        from joulelab.control.client import restore_leftovers

        for outcome in restore_leftovers(environ):
            report(outcome.message)
    except Exception as error:  # noqa: BLE001 - the command that was typed matters more
        report(f"a cap that was left behind cannot be restored ({error}); sudo joulelab cap restore")
