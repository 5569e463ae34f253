"""Read small files of sysfs and procfs that stay open; a file that was replaced is opened again."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from joulelab.core.errors import Denied, DeviceLost, MeterError, ReadFailed
from joulelab.instruments.readers import Readers

if TYPE_CHECKING:
    from pathlib import Path

GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.ESRCH})


class OpenFile:
    """Hold one small file open and read it from its start each time."""

    __slots__ = ("_descriptor", "_size", "_where", "path")

    def __init__(self, path: Path, where: str, size: int = 64) -> None:
        """Open the file; a reading has at most `size` bytes. Raises Denied, DeviceLost, ReadFailed."""
        self.path = path
        self._where = where
        self._size = size
        self._descriptor = -1
        try:
            self._reopen()
        except OSError as error:
            raise explain_read_error(error, path, where) from error

    def read(self) -> bytes:
        """Return the content now. Raises Denied, DeviceLost, ReadFailed."""
        try:
            # A file without a name left was removed, or replaced by a new one of the same name.
            if self._descriptor < 0 or os.fstat(self._descriptor).st_nlink == 0:
                self._reopen()
            return os.pread(self._descriptor, self._size, 0)
        except OSError as error:
            raise explain_read_error(error, self.path, self._where) from error

    def read_number(self) -> int:
        """Return the content as an integer. Raises Denied, DeviceLost, ReadFailed."""
        content = self.read()
        try:
            return int(content)
        except ValueError:
            what, why = f"{self.path} does not hold a number", f"it holds {content[:40]!r}"
            code = "read-failed.no-number"
            raise ReadFailed(what, where=self._where, why=why, next="it is tried again", code=code) from None

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _reopen(self) -> None:
        self.close()
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)


class FileMeter(Readers):
    """Be a meter of small files: each is opened once, and closed with the meter."""

    def __init__(self, family: str) -> None:
        super().__init__()
        self._family = family
        self._files: list[OpenFile] = []

    def close(self) -> None:
        """Close the files; closing twice is harmless."""
        for file in self._files:
            file.close()

    def _open_file(self, path: Path, size: int = 32) -> OpenFile:
        file = OpenFile(path, self._family, size)
        self._files.append(file)
        return file


def explain_read_error(error: OSError, path: Path, where: str) -> MeterError:
    """Return joulelab's error for a file that cannot be read."""
    why, doctor = os.strerror(error.errno) if error.errno else str(error), f"joulelab doctor {where}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return Denied(f"cannot read {path}", where=where, why=why, next=doctor, code="denied.file")
    if error.errno in GONE:
        return DeviceLost(f"{path} is gone", where=where, why=why, next=doctor, code="device-lost.file")
    return ReadFailed(f"cannot read {path}", where=where, why=why, next="it is tried again", code="read-failed.file")


def read_text(path: Path) -> str | None:
    """Return the stripped content of a small file, None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def read_number(path: Path) -> int | None:
    """Return the integer in a small file, None if there is none."""
    try:
        return int(read_text(path) or "")
    except ValueError:
        return None
