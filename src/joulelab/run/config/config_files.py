"""Find and read the files of the configuration. If there are none, this costs a few calls of stat()."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

FILE_NAME = "joulelab.toml"
FILE_VARIABLE = "JOULELAB_CONFIG"
SYSTEM_VARIABLE = "JOULELAB_ETC"  # where the configuration of the machine is, if not in /etc/joulelab


def get_system_file(environ: Mapping[str, str]) -> Path:
    """Return the machine's file, whether it exists or not."""
    return Path(environ.get(SYSTEM_VARIABLE) or "/etc/joulelab") / FILE_NAME


def get_user_file(environ: Mapping[str, str]) -> Path:
    """Return the user's file, whether it exists or not."""
    base = environ.get("XDG_CONFIG_HOME") or os.path.join(environ.get("HOME") or "~", ".config")  # noqa: PTH118 quick
    return Path(base).expanduser() / "joulelab" / FILE_NAME


def find_project_file(cwd: str | None = None) -> Path | None:
    """Return the nearest joulelab.toml in a folder or above it, None without one."""
    try:
        folder = cwd or os.getcwd()  # noqa: PTH109 quick
    except OSError:  # deleted under us
        return None
    while True:
        path = os.path.join(folder, FILE_NAME)  # noqa: PTH118 quick
        if os.path.lexists(path):
            return Path(path)
        above = os.path.dirname(folder)  # noqa: PTH120 quick
        if above == folder:
            return None
        folder = above


def list_config_files(
    environ: Mapping[str, str], *, named: Path | None = None, cwd: str | None = None
) -> tuple[list[Path], list[str]]:
    """Return the files to read, the weakest first, and warnings about files that are not used.

    The order is system, user, project, and the file that is named by an option or by JOULELAB_CONFIG. A file may
    be unreadable, such as a folder, and the last one may be missing: reading it reports that.
    """
    chosen = named or (Path(environ[FILE_VARIABLE]) if environ.get(FILE_VARIABLE) else None)
    if chosen is not None and not chosen.is_absolute():
        chosen = Path(cwd or os.curdir, chosen.expanduser()).absolute()  # it stays that file wherever we go
    files = [path for path in (get_system_file(environ), get_user_file(environ)) if os.path.lexists(path)]
    warnings = []
    project = find_project_file(cwd)
    if project is not None:
        why = None if chosen is not None and _is_same_file(project, chosen) else explain_distrust(project, environ)
        if why is None:
            files.append(project)
        else:
            warnings.append(f"{project} is not used: {why}; to trust it, name it: {FILE_VARIABLE}={project}")
    files = [path for path in files if chosen is None or not _is_same_file(path, chosen)]
    return [*files, *([chosen] if chosen is not None else [])], warnings


def explain_distrust(path: Path, environ: Mapping[str, str]) -> str | None:
    """Return why a file is not trusted, None if it is: files may name code to run and receivers of secrets."""
    found = path.stat() if path.exists() else path.lstat()  # a link to nothing: reading it reports that
    mine = {0, os.geteuid(), int(environ["SUDO_UID"]) if environ.get("SUDO_UID", "").isdecimal() else 0}
    if found.st_uid not in mine:
        return f"it belongs to another user ({found.st_uid})"
    is_open = found.st_mode & stat.S_IWOTH and not stat.S_ISLNK(found.st_mode)
    return "every user may write it" if is_open else None


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def read_toml(path: Path, what: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a regular file and its tables; `what` names the kind of file in errors. Raises ConfigError."""
    from joulelab.core.toml_reading import parse_toml
    from joulelab.store.safe_files import read_regular

    try:
        data = read_regular(path)
    except FileNotFoundError:
        near = ", ".join(sorted(file.name for file in path.parent.glob("*.toml") if file.is_file())[:10])
        why = "it is a link to nothing" if path.is_symlink() else f"{what}s there: {near}" if near else None
        raise ConfigError(
            f"there is no such {what}", where=str(path), why=why, next="name another", code="config.no-such-file"
        ) from None
    except OSError as error:
        then = "name a file of TOML that you can read"
        raise ConfigError(
            f"cannot read the {what}", where=str(path), why=error.strerror, next=then, code="config.unreadable"
        ) from None
    return parse_toml(data, path)
