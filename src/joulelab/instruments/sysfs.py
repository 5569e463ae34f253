"""Read numbers from sysfs and procfs through files that stay open; a file that was replaced is opened again."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from joulelab.core.errors import Denied, DeviceLost, MeterError, ReadFailed

if TYPE_CHECKING:
    from pathlib import Path

_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ESRCH})
_DENIED = frozenset({errno.EACCES, errno.EPERM})


class OpenFile:
    """Hold one small file open and read it from its start each time."""

    __slots__ = ("_descriptor", "_size", "_where", "path")

    def __init__(self, path: Path, where: str, size: int = 64) -> None:
        """Open the file; `size` is the most bytes that a reading may have. Raises Denied, DeviceLost, ReadFailed."""
        self.path = path
        self._where = where
        self._size = size
        self._descriptor = -1
        self._open()

    def read(self) -> bytes:
        """Return the content now. Raises Denied, DeviceLost, ReadFailed."""
        try:
            # A file without a name left was removed, or replaced by a new one of the same name.
            if self._descriptor < 0 or os.fstat(self._descriptor).st_nlink == 0:
                self._open()
            return os.pread(self._descriptor, self._size, 0)
        except OSError as error:
            raise failure(error, self.path, self._where) from error

    def number(self) -> int:
        """Return the content as an integer. Raises Denied, DeviceLost, ReadFailed."""
        content = self.read()
        try:
            return int(content)
        except ValueError:
            raise ReadFailed(
                f"{self.path} does not hold a number",
                where=self._where,
                why=f"it holds {content[:40]!r}",
                next="it is tried again",
            ) from None

    def close(self) -> None:
        """Close the file; twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> None:
        self.close()
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise failure(error, self.path, self._where) from error


def failure(error: OSError, path: Path, where: str) -> MeterError:
    """Return joulelab's error for a file that cannot be read."""
    why = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in _DENIED:
        return Denied(f"cannot read {path}", where=where, why=why, next=f"run joulelab doctor {where}")
    if error.errno in _GONE:
        return DeviceLost(f"{path} is gone", where=where, why=why, next=f"run joulelab doctor {where}")
    return ReadFailed(f"cannot read {path}", where=where, why=why, next="it is tried again")


def read_text(path: Path) -> str | None:
    """Return the stripped content of a small file, None where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return a small file's integer, None where there is none."""
    content = read_text(path)
    try:
        return int(content) if content is not None else None
    except ValueError:
        return None
