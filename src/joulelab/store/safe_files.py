"""Read and write files in folders that other people may write to. The recorder imports this module: standard library.

Reads accept regular files only: a FIFO would wait for a writer for ever, a device may do anything. Writes never follow
a planted link: `replace_file` creates a new file under an unpredictable name inside the open folder and renames it;
`open_append` opens or creates regular files only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Windows reads runs: it has no FIFOs to wait for, and needs a flag for binary files.
_COMMON = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
READ_FLAGS = os.O_RDONLY | NO_WAIT | _COMMON
NEW_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | _COMMON
MOST_LINKS = 40  # on the way to a folder, as the kernel allows
LARGEST_FILE = 256 << 20  # bytes that are read into memory at once: fifty times the largest file of a real run so far
READ_BYTES = 1 << 20
KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a link"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class UntrustedPlace(OSError):
    """Report a path that other users could have prepared; `next` is the command that repairs it."""

    def __init__(self, why: str, next: str) -> None:
        super().__init__(errno.EPERM, why)
        self.next = next


def open_regular(path: Path | str, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading, through a link if `follow`; raise OSError at once for anything else."""
    return os.fdopen(_open_descriptor(path, follow=follow), "rb")


def _open_descriptor(path: Path | str, *, follow: bool) -> int:
    check_regular(path, os.stat(path, follow_symlinks=follow))  # noqa: PTH116 (making a Path takes longer)
    fd = os.open(path, READ_FLAGS if follow else READ_FLAGS | NO_FOLLOW)
    try:
        check_regular(path, os.fstat(fd))  # it may have been replaced since
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_regular(path: Path | str, found: os.stat_result) -> None:
    """Raise OSError if a path is not a regular file."""
    if not stat.S_ISREG(found.st_mode):
        kind = next((words for is_kind, words in KINDS if is_kind(found.st_mode)), "a special file")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))


def read_regular(path: Path | str, limit: int = LARGEST_FILE, *, follow: bool = True) -> bytes:
    """Read a regular file of at most `limit` bytes; raise OSError like `open_regular`."""
    fd = _open_descriptor(path, follow=follow)
    try:
        parts = [os.read(fd, min(os.fstat(fd).st_size, limit) + 1)]  # the limit would reserve as much memory
        left = limit + 1 - len(parts[0])
        while left > 0 and parts[-1]:  # to the end, also of a file that grows
            parts.append(os.read(fd, min(left, READ_BYTES)))
            left -= len(parts[-1])
    finally:
        os.close(fd)
    if left <= 0:
        raise OSError(errno.EFBIG, f"it is larger than {limit >> 20} MB", str(path))
    return b"".join(parts)


def is_being_written(path: Path) -> bool:
    """Return whether a writer still locks a file, here or in another container or host that shares locks."""
    if sys.platform == "win32":  # Windows reads runs, it does not record them
        return False
    import fcntl

    with contextlib.suppress(OSError), open_regular(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def is_own(found: os.stat_result) -> bool:
    """Return whether a file or folder belongs to the user who runs this; on Windows always."""
    return not hasattr(os, "geteuid") or found.st_uid == os.geteuid()


def replace_file(path: Path, data: bytes, *, sync: bool, own: bool = False, mode: int | None = None) -> None:
    """Write a file atomically; raise OSError and leave no temporary file behind.

    The new file and the rename are relative to the open folder, so that the folder cannot be exchanged in between.
    `sync`: it is on the disk on return, after a power loss too. `own`: refuse the folder of another user, for caches.
    `mode`: permissions whatever the umask.
    """
    temporary = f".{path.name[-40:]}.{os.urandom(12).hex()}.tmp"  # the whole name may be as long as names can be
    with open_folder(path.parent) as folder:
        if own and not is_own(path.parent.stat() if folder is None else os.fstat(folder)):
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path.parent))
        before, target = (temporary, path.name) if folder is not None else (path.with_name(temporary), path)
        try:
            with os.fdopen(os.open(before, NEW_FLAGS, 0o666 if mode is None else mode, dir_fd=folder), "wb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            os.replace(before, target, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(before, dir_fd=folder)
            raise
        if sync and folder is not None:
            with contextlib.suppress(OSError):
                os.fsync(folder)


def open_append(path: Path | str, mode: int = 0o644) -> int:
    """Open a regular file for appending, and create it if it is missing; raise OSError for links and anything else."""
    return open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)


def open_file(path: Path | str, flags: int, mode: int = 0o600) -> int:
    """Open a regular file and return its descriptor; raise OSError for a link, a FIFO, a device or a folder."""
    fd = os.open(path, flags | NO_FOLLOW | NO_WAIT | _COMMON, mode)
    try:
        check_regular(path, os.fstat(fd))
    except OSError as error:
        os.close(fd)
        name = os.fspath(path)
        raise UntrustedPlace(f"{name}: {error.strerror}", f"check who created it, then remove {name}") from None
    if hasattr(os, "set_blocking"):
        os.set_blocking(fd, True)  # a child may inherit it
    return fd


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[int | None]:
    """Open a folder to work inside it; None on Windows, which cannot. Raises OSError for links of other users."""
    if os.open not in os.supports_dir_fd:
        yield None
        return
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        found = path.lstat()
        if not stat.S_ISLNK(found.st_mode) or not (is_own(found) or found.st_uid == 0):
            raise
        fd = os.open(path, flags)  # a link that the user (or root) made, such as a store on another disk
    try:
        yield fd
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Sync the entries of a directory to the disk, if the system can."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder that everybody may read and only its owner may write, whatever the umask is.

    The levels that exist are checked first, so that root makes nothing in a place of others. Raises UntrustedPlace,
    OSError.
    """
    check_folder(folder, os.geteuid())
    for each in reversed([p for p in (folder, *folder.parents) if not p.exists()]):
        try:
            each.mkdir(0o755)
        except FileExistsError:
            continue
        fd = os.open(each, os.O_RDONLY | os.O_DIRECTORY | NO_FOLLOW | NO_WAIT | _COMMON)
        try:
            os.fchmod(fd, 0o755)
        finally:
            os.close(fd)
    check_folder(folder, os.geteuid())  # somebody else may have made it meanwhile


def check_folder(folder: Path, user: int) -> None:
    """If `user` is root, refuse a folder that others can write to or replace, at any level up to the root of the files.

    Links on the way are followed like folders; a folder that does not exist yet is checked as far as it exists. Raises
    UntrustedPlace, OSError.
    """
    if user:
        return
    place, names, links = "/", _split_path(os.path.abspath(folder)), 0  # noqa: PTH100 (links stay)
    _check_level(place, os.lstat(place), is_last=not names)
    while names:
        name = names.pop()
        above, place = place, os.path.normpath(os.path.join(place, name))  # noqa: PTH118 (paths of text)
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            return
        if not stat.S_ISLNK(found.st_mode) or not names:
            _check_level(place, found, is_last=not names)
            continue
        _check_owner(place, found)
        links += 1
        if links > MOST_LINKS:
            raise UntrustedPlace(f"{folder} leads through too many links", "choose a folder without links")
        target = os.readlink(place)  # noqa: PTH115 (a path of text)
        place = "/" if target.startswith("/") else above
        names += _split_path(target)


def _split_path(path: str) -> list[str]:
    """Return the names of a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _check_level(place: str, found: os.stat_result, *, is_last: bool) -> None:
    if not stat.S_ISDIR(found.st_mode):
        if not is_last:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), place)
        raise UntrustedPlace(f"{place} is no folder of its own", f"sudo rm {place}")
    _check_owner(place, found)
    # Our files in a sticky folder of another user (/tmp) stay ours.
    sticky = not is_last and found.st_mode & stat.S_ISVTX
    if found.st_mode & 0o022 and not sticky:
        raise UntrustedPlace(f"others can write to {place}", f"check its content, then type: sudo chmod go-w {place}")


def _check_owner(place: str, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        chown = "chown -h" if stat.S_ISLNK(found.st_mode) else "chown"
        then = f"check its content, then type: sudo {chown} root {place}"
        raise UntrustedPlace(f"{place} belongs to user {found.st_uid}", then)
