"""Open files in folders that other people may write to. The recorder imports this module: standard library only.

Reads accept regular files only: a FIFO would wait for a writer for ever, a device may do anything. Writes never follow
a link: they create a new file under a name that nobody can guess, and rename it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Windows reads runs: it has no FIFOs to wait for, and needs to be told that files are binary.
READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file for reading; raise OSError for anything else, without waiting for it."""
    check_regular(path, os.stat(path))  # noqa: PTH116 (making a Path takes longer): a device is not even opened
    fd = os.open(path, READ_FLAGS)
    try:
        check_regular(path, os.fstat(fd))  # it may have been replaced since
        return os.fdopen(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def check_regular(path: Path | str, found: os.stat_result) -> None:
    """Raise OSError where a path is not a regular file."""
    if not stat.S_ISREG(found.st_mode):
        kind = next((words for is_kind, words in KINDS if is_kind(found.st_mode)), "a special file")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def read_regular(path: Path | str) -> bytes:
    """Read a regular file; raise OSError for anything else, without waiting for it."""
    with open_regular(path) as file:
        return file.read()


def is_own(found: os.stat_result) -> bool:
    """Return whether a file or folder belongs to the user who runs this; on Windows always."""
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def replace_file(path: Path, data: bytes, *, sync: bool) -> None:
    """Write a file so that readers see the whole of it or nothing; raise OSError and leave no rest behind.

    The new file and the rename are relative to the open folder, so that nobody can exchange the folder in between.
    """
    temporary = f".{path.name}.{os.getpid()}-{os.urandom(8).hex()}.tmp"
    with _open_folder(path.parent) as folder:
        before, target = (temporary, path.name) if folder is not None else (path.with_name(temporary), path)
        try:
            with os.fdopen(os.open(before, NEW_FLAGS, 0o666, dir_fd=folder), "wb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            os.replace(before, target, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(before, dir_fd=folder)
            raise


@contextlib.contextmanager
def _open_folder(path: Path) -> Iterator[int | None]:
    """Open a folder to work inside it; None where the system cannot (Windows)."""
    if os.open not in os.supports_dir_fd:
        yield None
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
