"""Define every error that joulelab raises, in one tree.

JoulelabError
├── ConfigError            bad input: a wrong key, option, file or value
│   └── Refused            a request that is well formed but not allowed here
├── MissingDependency      a library, compiler or program that has to be installed
├── MeterError             an error in place of a reading
│   ├── Unavailable        there is no such instrument here (normal: try the next)
│   ├── Denied             the instrument is there, permission is not
│   ├── ReadFailed         this reading failed; the next may work
│   └── DeviceLost         the device is gone; other devices of the meter go on
├── RecorderError          the sampling process did not start, or stopped
├── WorkloadError          the command could not be started (carries the shell's exit code)
├── StoreError             a run folder that cannot be read or written
│   ├── NotARun            the path or name is no run
│   ├── NewerSchema        written by a newer joulelab than this one
│   └── WriteFailed        rows that did not reach the disk (carries how many did)
└── Defect                 an exception that joulelab itself did not expect

Every error has a `code` that does not change when its words do: that of its class (`config`), or a more precise one
that begins with it (`config.unknown-key`).
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class JoulelabError(Exception):
    """Report what failed, where, why, and what to do next; `code`, for programs, begins with the code of the class."""

    code = "error"

    def __init__(
        self, what: str, *, where: str | None = None, why: str | None = None, next: str | None = None, code: str = ""
    ) -> None:
        super().__init__(what)
        self.code = code or type(self).code
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
    """Report bad input; `mistakes` are the single errors if several were found at once.

    `choices` are settings that would be right, each with a text for a person to choose by.
    """

    code = "config"
    mistakes: tuple[JoulelabError, ...] = ()
    choices: tuple[tuple[str, dict[str, str]], ...] = ()


class Refused(ConfigError):
    """Report a well-formed request that is not allowed."""

    code = "refused"


class MissingDependency(JoulelabError):
    """Report something that has to be installed first."""

    code = "missing-dependency"


class MeterError(JoulelabError):
    """Report that a meter gave no number."""

    code = "meter"


class Unavailable(MeterError):
    """Report that there is no such instrument here."""

    code = "unavailable"


class Denied(MeterError):
    """Report that the instrument is there but may not be read."""

    code = "denied"


class ReadFailed(MeterError):
    """Report one failed reading; the next may work."""

    code = "read-failed"


class DeviceLost(MeterError):
    """Report a device that is gone."""

    code = "device-lost"


class RecorderError(JoulelabError):
    """Report a sampling process that did not start or stopped."""

    code = "recorder"


class WorkloadError(JoulelabError):
    """Report a command that could not be started; `exit_code` is what a shell would return."""

    code = "workload"

    def __init__(
        self, what: str, *, exit_code: int, why: str | None = None, next: str | None = None, code: str = ""
    ) -> None:
        super().__init__(what, why=why, next=next, code=code)
        self.exit_code = exit_code


class StoreError(JoulelabError):
    """Report a run folder that cannot be read or written."""

    code = "store"


class NotARun(StoreError):
    """Report a path or a name that is no run."""

    code = "not-a-run"


class NewerSchema(StoreError):
    """Report a run folder written by a newer joulelab."""

    code = "newer-schema"


class WriteFailed(StoreError):
    """Report rows that were not written; `rows_written` complete rows of the batch were, and later appends may work."""

    code = "write-failed"

    def __init__(self, what: str, *, where: str, error: OSError, rows_written: int) -> None:
        reason = errno.errorcode.get(error.errno or 0, type(error).__name__)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice, code = ("free some space", "write-failed.no-space") if full else (None, "")
        super().__init__(what, where=where, why=f"{reason}: {error.strerror}", next=advice, code=code)
        self.errno = error.errno
        self.rows_written = rows_written


class Defect(JoulelabError):
    """Report a defect of joulelab, with the line that raised the exception."""

    code = "defect"


def explain_defect(error: BaseException) -> Defect:
    """Return an error for an unexpected exception; its place is the last line of joulelab in the traceback."""
    places, trace = [], error.__traceback__
    while trace is not None:
        file, line = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        places += [f"{file.rpartition('/joulelab/')[2]}:{line}"] if "/joulelab/" in file else []
        trace = trace.tb_next
    return Defect(
        "joulelab has a defect",
        where=places[-1] if places else None,
        why=f"{type(error).__name__}: {error}",
        next="please report this line, with the command and `joulelab --version`",
    )


def join_errors(errors: Sequence[JoulelabError]) -> JoulelabError:
    """Return one error for several: the error itself if it is the only one, else a ConfigError with a line for each."""
    different: dict[str, JoulelabError] = {}
    for error in errors:
        different.setdefault(str(error), error)
    if len(different) == 1:
        return errors[0]
    joined = ConfigError("\n".join(different), code="config.several")
    joined.mistakes = tuple(different.values())
    return joined
