"""Find setters: `instruments/FAMILY/setter.py`, and outside packages by the entry-point group `joulelab.setters`.

A setter's module has `open_setters(environ) -> SetterFamily`, which raises Unavailable if there is no such hardware.
Imported only by keepers: a run that only measures does not load it.
"""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, cast

from joulelab import instruments
from joulelab.core.errors import JoulelabError, MissingDependency, Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from joulelab.core.setting import Kind, Setter, SetterFamily

GROUP = "joulelab.setters"
KINDS: tuple[Kind, ...] = ("power", "clocks")


class SetterModule(Protocol):
    """Describe the module (or entry point) of a family of setters."""

    def open_setters(self, environ: Mapping[str, str]) -> SetterFamily:
        """Open all devices of a family. Raises Unavailable, Denied."""
        ...


@dataclass(slots=True)
class SetterInventory:
    """List the setters of this machine, (scope or family, reason) of those that do not work, and absent families."""

    setters: list[Setter] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    absent: list[tuple[str, str]] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def close(self) -> None:
        """Close all libraries; twice is harmless."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add_family(self, opened: SetterFamily, kinds: Collection[Kind]) -> None:
        """Take over the setters of a family."""
        self._stack.callback(opened.close)
        self.setters += [setter for setter in opened.setters if setter.kind in kinds]
        self.missing += opened.missing


def list_families() -> list[str]:
    """List the names of all families, our own first."""
    own = _list_own_families()
    return own + sorted({point.name for point in entry_points(group=GROUP)} - set(own))


def load_family(name: str) -> SetterModule:
    """Import the module of a family. Raises MissingDependency for a broken package."""
    if name in _list_own_families():
        return cast("SetterModule", importlib.import_module(f"{instruments.__name__}.{name}.setter"))
    try:
        (point,) = entry_points(group=GROUP, name=name)
        return cast("SetterModule", point.load())
    except Exception as error:
        raise _explain_broken_package(name, error) from error


def open_all_setters(environ: Mapping[str, str], kinds: Collection[Kind] = KINDS) -> SetterInventory:
    """Open every family; a family that fails does not stop the others."""
    inventory = SetterInventory()
    try:
        for name in list_families():
            try:
                inventory.add_family(_open_family(name, environ), kinds)
            except Unavailable as error:
                inventory.absent.append((name, str(error)))
            except JoulelabError as error:
                inventory.missing.append((name, str(error)))
    except BaseException:
        inventory.close()
        raise
    return inventory


def _list_own_families() -> list[str]:
    return sorted(file.parent.name for folder in instruments.__path__ for file in Path(folder).glob("*/setter.py"))


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
