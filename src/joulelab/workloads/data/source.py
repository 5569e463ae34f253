"""Say what is trained on: its name as tables print it, whether it is real, how much there is of it, and where."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AUTO, FILES, MEMORY = "auto", "synthetic-files", "synthetic-memory"
VARIABLE = "JOULELAB_DATA"
# What reading a table of text may end with; `explain_failure` says why.
BROKEN = (OSError, UnicodeDecodeError, csv.Error)


@dataclass(frozen=True, slots=True)
class Source:
    """Name what is trained on; a stand-in or a substitute is never named as what it stands for."""

    name: str
    real: bool
    samples: int
    where: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """Hold the parts of a set of data (each a torch Dataset) and what they are."""

    train: Any
    valid: Any
    test: Any
    source: Source


def name_data(published: str, *, sums: bool = False, counts: bool = False) -> str:
    """Return the name of a folder in a published form: plain only where its checksums (`sums`) are the published ones.

    Where only `counts` agree it may still hold anything, and the name says so.
    """
    if sums:
        return published
    return f"{published} (by its counts)" if counts else f"folder in the form of {published}"


def explain_failure(error: OSError | UnicodeDecodeError | csv.Error) -> str:
    """Say why a table of text cannot be read."""
    if isinstance(error, UnicodeDecodeError):
        return f"it is no text in UTF-8: byte {error.object[error.start]:#04x}"
    return getattr(error, "strerror", None) or str(error)


def choose_source(
    asked: str,
    folders: Sequence[str],
    *,
    environ: Mapping[str, str] = os.environ,
    otherwise: str,
    named: Sequence[str] = (),
) -> str | Path:
    """Return where data comes from: a folder, one of the `named` substitutes, or a kind of synthetic data.

    `auto` is the first of the usual `folders` that is in $JOULELAB_DATA, and what it is `otherwise` where none is.
    Raises ConfigError for a folder that is named and not there.
    """
    if asked in (FILES, MEMORY, *named):
        return asked
    if asked != AUTO:
        path = Path(asked).expanduser()
        if path.is_dir():
            return path
        then = (
            f"name the folder that holds {' or '.join(folders)}, or one of: {', '.join((AUTO, FILES, MEMORY, *named))}"
        )
        raise ConfigError(f"data is {asked!r}", why="there is no such folder", next=then)
    root = environ.get(VARIABLE)
    usual = [Path(root).expanduser() / folder for folder in folders] if root else []
    return next((folder for folder in usual if folder.is_dir()), otherwise)


def get_cache_folder(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder where files that are made once are kept; it may not be there yet."""
    base = environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    return root / "joulelab" / name
