"""Keep files where root can trust them: nobody else can have prepared what is written, locked or read here."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING

from joulelab.store.journal import sync_directory

if TYPE_CHECKING:
    from pathlib import Path

# Never led elsewhere by a link, never waiting for the other end of a pipe.
_CAREFUL = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


class Untrusted(OSError):
    """Report a place that others could have prepared; `next` says how to mend it."""

    def __init__(self, why: str, next: str) -> None:
        super().__init__(errno.EPERM, why)
        self.next = next


def make_folder(folder: Path) -> None:
    """Make a folder that all may read and its owner may write, whatever the umask. Raises OSError."""
    for each in reversed([p for p in (folder, *folder.parents) if not p.exists()]):
        try:
            each.mkdir(0o755)
        except FileExistsError:
            continue
        fd = os.open(each, os.O_RDONLY | os.O_DIRECTORY | _CAREFUL)
        try:
            os.fchmod(fd, 0o755)
        finally:
            os.close(fd)


def check_folder(folder: Path, user: int) -> None:
    """Refuse, where `user` is root, a folder that others can write to or replace. Raises Untrusted, OSError."""
    if user:
        return
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise Untrusted(f"{folder} is no folder of its own", f"sudo rm {folder}")
    for each in (folder, folder.parent):
        found = each.stat()
        # What is in somebody else's sticky folder (/tmp) stays ours.
        sticky = each != folder and found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()):
            raise Untrusted(f"{each} belongs to user {found.st_uid}", f"look at what is in it; sudo chown root {each}")
        if found.st_mode & 0o022 and not sticky:
            raise Untrusted(f"others can write to {each}", f"look at what is in it; sudo chmod go-w {each}")


def open_file(path: Path | str, flags: int, mode: int = 0o600) -> int:
    """Open a file and nothing else: no link, no pipe, no folder. Raises OSError."""
    fd = os.open(path, flags | _CAREFUL, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Untrusted(f"{os.fspath(path)} is no file", f"look who made it, and remove {os.fspath(path)}")
    return fd


def read(path: Path) -> bytes:
    """Return what is in a file. Raises OSError."""
    with open(open_file(path, os.O_RDONLY), "rb") as file:
        return file.read()


def write(path: Path, content: bytes) -> None:
    """Replace a file as a whole, readable for all, so that it is there after a power loss. Raises OSError.

    Only one may write a path at a time: there is one temporary file, which a killed process may have left.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CAREFUL, 0o644), "wb") as file:
            os.fchmod(file.fileno(), 0o644)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)
