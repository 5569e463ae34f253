"""Say what is trained on: its name as tables print it, whether it is real, how much there is of it, and where."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

AUTO, FILES, MEMORY = "auto", "synthetic-files", "synthetic-memory"
VARIABLE = "JOULELAB_DATA"


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


def choose(
    asked: str, folder: str, *, environ: Mapping[str, str] = os.environ, otherwise: str, named: Sequence[str] = ()
) -> str | Path:
    """Return where data comes from: a folder, one of the `named` substitutes, or a kind of synthetic data.

    `auto` is the usual `folder` in $JOULELAB_DATA, and what it is `otherwise` where that is not there. Raises
    ConfigError for a folder that is named and not there.
    """
    if asked in (FILES, MEMORY, *named):
        return asked
    if asked != AUTO:
        path = Path(asked).expanduser()
        if path.is_dir():
            return path
        then = f"name the folder that holds {folder}, or one of: {', '.join((AUTO, FILES, MEMORY, *named))}"
        raise ConfigError(f"data is {asked!r}", why="there is no such folder", next=then)
    root = environ.get(VARIABLE)
    usual = Path(root).expanduser() / folder if root else None
    return usual if usual is not None and usual.is_dir() else otherwise


def cache_folder(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder where files that are made once are kept; it may not be there yet."""
    base = environ.get("XDG_CACHE_HOME")
    root = Path(base) if base else Path.home() / ".cache"
    return root / "joulelab" / name
