"""Find the programs that commands start, before anything runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.study.knobs import fill_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulelab.study.matrix import PlannedCell


def program_of(cell: PlannedCell) -> str:
    """Return the first word of a cell's command."""
    first = cell.workload.command[0]
    return fill_command([first], {n: v.text for n, v in cell.knobs.items()})[0] if "{" in first else first


def check_program(name: str, environ: Mapping[str, str], own: Mapping[str, str], beside: Path | None) -> None:
    """Refuse a program that cannot be started here. Raises ConfigError.

    `own` are variables of the workload: its PATH is for what it starts itself, and does not find it. `beside` is the
    folder of the study file, where people look for it too.
    """
    if "/" in name:
        _check_file(Path(name), name, beside)
        return
    if shutil.which(name, path=environ.get("PATH", os.defpath)) is not None:
        return
    why, then = "it is not in PATH", "install it, or name its file"
    found = shutil.which(name, path=own["PATH"]) if "PATH" in own else None
    if found is not None:
        why, then = "it is in the PATH of its node type only, which is for what it starts itself", f"write {found}"
    elif Path(name).is_file():
        why, then = "it is not in PATH, but a file of this folder", f"write ./{name}, or its interpreter before it"
    raise ConfigError(f"there is no program {name!r}", why=why, next=then)


def _check_file(file: Path, name: str, beside: Path | None) -> None:
    if file.is_file() and os.access(file, os.X_OK):
        return
    if file.is_file():
        then = f"chmod +x {name}, or write its interpreter before it"
        raise ConfigError(f"{name} cannot be started", why="it may not be executed", next=then)
    if file.exists():
        raise ConfigError(f"{name} cannot be started", why="it is no file", next="name a program")
    then = "commands run in the folder where joulelab is started"
    if beside is not None and (beside / file).is_file():
        then = f"{then}: start it in {beside}"
    raise ConfigError(f"there is no program {name}", why=f"looked for in {Path.cwd()}", next=then)
