"""Write files for the user: never over one that is not ours, whole or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MOST_BYTES = 32_000_000  # in which a file says that it is ours


def check_own(file: Path, mark: bytes, *, what: str, force: bool, option: str = "-o") -> None:
    """Refuse to write over what has not our mark in it; `what` is what it would be then, `option` names it.

    Raises ConfigError.
    """
    if force or not os.path.lexists(file):
        return
    why = f"there is a file that is no {what} of joulelab's"
    try:
        with file.open("rb") as opened:
            if mark in opened.read(MOST_BYTES):
                return
    except OSError as error:
        why = error.strerror or type(error).__name__
    then = f"name another with {option}, or add --force"
    raise ConfigError("it is not written over", where=str(file), why=why, next=then, code="config.foreign-file")


def write_whole(file: Path, data: bytes, *, what: str, option: str = "-o") -> None:
    """Write a file whole or not at all; where there is a device or a pipe, into that. Raises ConfigError."""
    from joulelab.store.safe_files import replace_file

    file = file.resolve()  # a link stays, and what it leads to is written
    try:
        if file.exists() and not file.is_file() and not file.is_dir():
            file.write_bytes(data)
            return
        replace_file(file, data, sync=False)
    except OSError as error:
        raise ConfigError(
            f"the {what} cannot be written",
            where=str(file),
            why=error.strerror,
            next=f"set {option}",
            code="config.write",
        ) from error
