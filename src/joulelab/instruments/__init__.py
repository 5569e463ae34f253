"""Find meters: modules of this package by their name, outside packages by the entry-point group `joulelab.meters`.

A meter module has a line `SUMMARY`, a mapping `CONFIG` (key: meaning), a line `PRIVILEGE` (the right that reading
needs), a line `TRIED` (on which devices it was tried), and `open_meter(config) -> Meter`; `DEFAULT = False` if it opens
on request only. It may have `check(config) -> None`, which refuses wrong settings before a run starts (`MeterModule`).
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
    from collections.abc import Iterator, Mapping

    from joulelab.core.spec import Meter

GROUP = "joulelab.meters"


class MeterModule(Protocol):
    """Describe the module (or entry point) of a meter.

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


def find_meter(name: str) -> MeterModule:
    """Return the module of a meter. Raises ConfigError with the nearest name, Unavailable for a broken package."""
    inside = _import_meter(name)
    if inside is not None:
        return inside
    for point in list_entry_points(GROUP):
        if point.name == name:
            try:
                module = point.load()
            except Exception as error:
                raise _explain_broken_package(name, error) from error
            if not callable(getattr(module, "open_meter", None)):
                raise _explain_broken_package(name, TypeError(f"{point.value} has no open_meter(config)"))
            return cast("MeterModule", module)
    nearest, code = suggest_name(name, [*list_meters(), *list_archives()]), "config.unknown-meter"
    raise ConfigError(f"there is no meter {name!r}", where="meters", next=nearest, code=code)


def list_meters() -> list[str]:
    """Return the names of all meters, inside first; nothing is imported for it."""
    inside = [name for name, source in _iterate_sources() if "\ndef open_meter(" in source]
    return inside + sorted({point.name for point in list_entry_points(GROUP)} - set(inside))


def list_archives() -> list[str]:
    """Return the names of sources that are only read after a run; nothing is imported for it."""
    found = _iterate_sources()
    return [name for name, source in found if "\ndef open_archive(" in source and "\ndef open_meter(" not in source]


def list_defaults() -> list[str]:
    """Return the names of the meters that every run opens; a broken outside package is among them."""
    on_request = {name for name, source in _iterate_sources() if "\nDEFAULT = False" in source}
    chosen = []
    for name in list_meters():
        if name in on_request:
            continue  # most are: to load them all would delay every run
        try:
            is_default = getattr(find_meter(name), "DEFAULT", True)
        except JoulelabError:
            is_default = True  # its opening reports the error
        if is_default:
            chosen.append(name)
    return chosen


def open_meter(name: str, config: Mapping[str, Any]) -> Meter:
    """Open a meter by name. Raises ConfigError, Unavailable (also for any exception of an outside package), Denied."""
    module = find_meter(name)
    try:
        return module.open_meter(config)
    except JoulelabError:
        raise
    except Exception as error:
        if _import_meter(name) is not None:
            raise
        raise _explain_broken_package(name, error) from error


def _import_meter(name: str) -> MeterModule | None:
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


def _iterate_sources() -> Iterator[tuple[str, str]]:
    """Yield the name and the source of each module of this package, in the order of their names."""
    files: dict[str, Path] = {}
    for folder in map(Path, __path__):
        files |= {file.stem: file for file in folder.glob("*.py") if file.stem != "__init__"}
        files |= {file.parent.name: file for file in folder.glob("*/__init__.py")}
    for name in sorted(files):
        yield name, files[name].read_text()


def _explain_broken_package(name: str, error: Exception) -> Unavailable:
    what, why, advice = "its package is broken", f"{type(error).__name__}: {error}", "update or remove that package"
    return Unavailable(what, where=f"meter {name}", why=why, next=advice, code="unavailable.broken-package")
