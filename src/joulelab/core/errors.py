"""Define every error that joulelab raises, in one tree.

JoulelabError
├── ConfigError            bad input: a wrong key, option, file or value
│   └── Refused            a request that is well formed but not allowed here
├── MissingDependency      a library, compiler or program that has to be installed
├── MeterError             anything a meter says instead of a number
│   ├── Unavailable        there is no such instrument here (normal: try the next)
│   ├── Denied             the instrument is there, permission is not
│   ├── ReadFailed         this reading failed; the next may work
│   └── DeviceLost         the device is gone; other devices of the meter go on
├── RecorderError          the sampling process did not start, or stopped
├── WorkloadError          the command could not be started (carries the shell's exit code)
└── StoreError             a run folder that cannot be read or written
    ├── NotARun            the path or name is no run
    ├── NewerSchema        written by a newer joulelab than this one
    └── WriteFailed        rows that did not reach the disk (carries how many did)
"""

from __future__ import annotations

import errno


class JoulelabError(Exception):
    """Say what failed, where, why, and what to do next."""

    def __init__(self, what: str, *, where: str | None = None, why: str | None = None, next: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.next = next

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.why:
            text += f" ({self.why})"
        if self.next:
            text += f"; {self.next}"
        return text


class ConfigError(JoulelabError):
    """Report bad input."""


class Refused(ConfigError):
    """Report a well-formed request that is not allowed."""


class MissingDependency(JoulelabError):
    """Report something that has to be installed first."""


class MeterError(JoulelabError):
    """Report that a meter gave no number."""


class Unavailable(MeterError):
    """Report that there is no such instrument here."""


class Denied(MeterError):
    """Report that the instrument is there but may not be read."""


class ReadFailed(MeterError):
    """Report one failed reading; the next may work."""


class DeviceLost(MeterError):
    """Report a device that is gone."""


class RecorderError(JoulelabError):
    """Report a sampling process that did not start or stopped."""


class WorkloadError(JoulelabError):
    """Report a command that could not be started; `exit_code` is what a shell would return."""

    def __init__(self, what: str, *, exit_code: int, why: str | None = None, next: str | None = None) -> None:
        super().__init__(what, why=why, next=next)
        self.exit_code = exit_code


class StoreError(JoulelabError):
    """Report a run folder that cannot be read or written."""


class NotARun(StoreError):
    """Report a path or a name that is no run."""


class NewerSchema(StoreError):
    """Report a run folder written by a newer joulelab."""


class WriteFailed(StoreError):
    """Report rows that did not reach the file; `rows_written` of the batch did, whole, and later appends may work."""

    def __init__(self, what: str, *, where: str, error: OSError, rows_written: int) -> None:
        reason = errno.errorcode.get(error.errno or 0, type(error).__name__)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        super().__init__(what, where=where, why=f"{reason}: {error.strerror}", next="free some space" if full else None)
        self.errno = error.errno
        self.rows_written = rows_written
