"""Find meters: modules of this package by their name, outside packages by the entry-point group `joulelab.meters`.

A meter module has a line `SUMMARY`, a mapping `CONFIG` (key: what it means), a line `PRIVILEGE` (what reading needs),
a line `TRIED` (on what it was tried), and `open_meter(config) -> Meter`; `DEFAULT = False` if it opens on request only.
It may have `check(config) -> None`, which refuses wrong settings before a run starts (see `MeterModule`).
See README.md here for how to add one. Imports neither numpy nor duckdb.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from joulelab.core.entry_points import list_entry_points
from joulelab.core.errors import ConfigError, JoulelabError, Unavailable
from joulelab.core.text import suggest_name

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoint

    from joulelab.core.spec import Meter

GROUP = "joulelab.meters"


class MeterModule(Protocol):
    """Describe what a meter's module (or entry point) has.

    Optional: `check(config) -> None`, called for an entry of the configuration before a run starts. It raises
    ConfigError for settings that cannot be right, and neither asks the network nor loads a client library. Secrets are
    not resolved yet: in their place stands a text of no meaning.
    """

    SUMMARY: str
    CONFIG: Mapping[str, str]
    PRIVILEGE: str
    TRIED: str

    def open_meter(self, config: Mapping[str, Any]) -> Meter:
        """Open the instrument. Raises Unavailable, Denied, ConfigError."""
        ...


def find(name: str) -> MeterModule:
    """Return the module of a meter. Raises ConfigError with the nearest name, Unavailable for a broken package."""
    inside = _import(name)
    if inside is not None:
        return inside
    for point in list_entry_points(GROUP):
        if point.name == name:
            return _load(point)
    raise ConfigError(f"there is no meter {name!r}", where="meters", next=suggest_name(name, [*names(), *archives()]))


def names() -> list[str]:
    """Return the names of all meters, inside first; hardly anything is imported for it."""
    import pkgutil

    inside = [module.name for module in pkgutil.iter_modules(__path__) if _is_meter(module.name)]
    return inside + sorted({point.name for point in list_entry_points(GROUP)} - set(inside))


def archives() -> list[str]:
    """Return the names of sources that are only asked after a run; nothing is imported for it."""
    import pkgutil

    found = ((module.name, _text(module.name)) for module in pkgutil.iter_modules(__path__))
    return [n for n, text in found if _has_line(text, "def open_archive(") and not _has_line(text, "def open_meter(")]


def defaults() -> list[str]:
    """Return the names of the meters that a run opens unless told otherwise; a broken outside package is among them."""
    chosen = []
    for name in names():
        if _has_line(_text(name), "DEFAULT = False"):
            continue  # most are: to load them all would hold up every run
        try:
            wanted = getattr(find(name), "DEFAULT", True)
        except JoulelabError:
            wanted = True  # opening it will say what is wrong
        if wanted:
            chosen.append(name)
    return chosen


def open_meter(name: str, config: Mapping[str, Any]) -> Meter:
    """Open a meter by name. Raises ConfigError, Unavailable (also for whatever an outside package raises), Denied."""
    module = find(name)
    try:
        return module.open_meter(config)
    except JoulelabError:
        raise
    except Exception as error:
        if _import(name) is not None:
            raise
        raise _broken(name, error) from error


def _import(name: str) -> MeterModule | None:
    """Return a module of this package if it is a meter: its name decides, no list does."""
    path = f"{__name__}.{name}"
    if not name.isidentifier():
        return None
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return None
    return cast("MeterModule", module) if hasattr(module, "open_meter") else None


def _is_meter(name: str) -> bool:
    """Return whether a module of this package is a meter; its text tells unless it is written in an unusual way."""
    text = _text(name)
    if text and "open_meter" not in text:
        return False
    return _has_line(text, "def open_meter(") or _import(name) is not None


def _text(name: str) -> str:
    """Return the source of a module of this package, empty where there is none to read."""
    for folder in map(Path, __path__):
        for file in (folder / f"{name}.py", folder / name / "__init__.py"):
            if file.is_file():
                return file.read_text()
    return ""


def _has_line(text: str, start: str) -> bool:
    return f"\n{start}" in text


def _load(point: EntryPoint) -> MeterModule:
    try:
        module = point.load()
    except Exception as error:
        raise _broken(point.name, error) from error
    if not callable(getattr(module, "open_meter", None)):
        raise _broken(point.name, TypeError(f"{point.value} has no open_meter(config)"))
    return cast("MeterModule", module)


def _broken(name: str, error: Exception) -> Unavailable:
    why = f"{type(error).__name__}: {error}"
    return Unavailable("its package is broken", where=f"meter {name}", why=why, next="update or remove that package")
