"""Find setters: `open_setters` in `instruments/FAMILY/setter.py` or `FAMILY.py`, and entry points `joulelab.setters`.

A setter's module has `open_setters(environ) -> SetterFamily`, which raises Unavailable if there is no such hardware.
Imported only by keepers.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from joulelab import instruments
from joulelab.core.entry_points import list_entry_points
from joulelab.core.errors import JoulelabError, MissingDependency, Unavailable
from joulelab.core.setting import SetterFamily

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from joulelab.core.setting import Kind

GROUP = "joulelab.setters"
KINDS: tuple[Kind, ...] = ("power", "clocks")


class SetterModule(Protocol):
    """Describe the module (or entry point) of a family of setters."""

    def open_setters(self, environ: Mapping[str, str]) -> SetterFamily:
        """Open all devices of a family. Raises Unavailable, Denied."""
        ...


@dataclass(slots=True)
class SetterInventory(SetterFamily):
    """Hold the open setters of all families; `absent` are (family, reason) of those without hardware here."""

    absent: list[tuple[str, str]] = field(default_factory=list)


def list_families() -> list[str]:
    """List the names of all families, our own first."""
    own = sorted(_find_own_families())
    return own + sorted({point.name for point in list_entry_points(GROUP)} - set(own))


def load_family(name: str) -> SetterModule:
    """Import the module of a family. Raises MissingDependency for a broken package."""
    module = _find_own_families().get(name)
    if module is not None:
        return cast("SetterModule", importlib.import_module(module))
    try:
        (point,) = (point for point in list_entry_points(GROUP) if point.name == name)
        return cast("SetterModule", point.load())
    except Exception as error:
        raise _explain_broken_package(name, error) from error


def open_all_setters(environ: Mapping[str, str], kinds: Collection[Kind] = KINDS) -> SetterInventory:
    """Open every family; a family that fails does not stop the others."""
    libraries = contextlib.ExitStack()
    inventory = SetterInventory(on_close=libraries.close)
    try:
        for name in list_families():
            try:
                family = _open_family(name, environ)
                libraries.callback(family.close)
                inventory.setters += [setter for setter in family.setters if setter.kind in kinds]
                inventory.missing += family.missing
            except Unavailable as error:
                inventory.absent.append((name, str(error)))
            except JoulelabError as error:
                inventory.missing.append((name, str(error)))
    except BaseException:
        inventory.close()
        raise
    return inventory


def _find_own_families() -> dict[str, str]:
    """Return the modules of our own families by name: a folder has setter.py, a single file has open_setters."""
    found: dict[str, str] = {}
    for folder in map(Path, instruments.__path__):
        names = [file.stem for file in folder.glob("*.py") if "\ndef open_setters(" in file.read_text()]
        found |= {name: f"{instruments.__name__}.{name}" for name in names}
        folders = [file.parent.name for file in folder.glob("*/setter.py")]
        found |= {name: f"{instruments.__name__}.{name}.setter" for name in folders}
    return found


def _open_family(name: str, environ: Mapping[str, str]) -> SetterFamily:
    module = load_family(name)
    try:
        return module.open_setters(environ)
    except JoulelabError:
        raise
    except Exception as error:
        raise _explain_broken_package(name, error) from error


def _explain_broken_package(name: str, error: Exception) -> MissingDependency:
    why, advice = f"{type(error).__name__}: {error}", "update or remove that package"
    code = "missing-dependency.broken-package"
    return MissingDependency("its package is broken", where=f"setter {name}", why=why, next=advice, code=code)
