"""Find setters: `instruments/FAMILY/setter.py`, and outside packages by the entry-point group `joulelab.setters`.

A setter's module has `open_setters(environ) -> Opened`, which raises Unavailable where there is no such hardware.
Imported only where something is to be set: what a run needs to measure does not come this way.
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

    from joulelab.core.setting import Kind, Opened, Setter

GROUP = "joulelab.setters"
KINDS: tuple[Kind, ...] = ("power", "clocks")


class SetterModule(Protocol):
    """Describe what a setter's module (or entry point) has."""

    def open_setters(self, environ: Mapping[str, str]) -> Opened:
        """Open all devices of a family. Raises Unavailable, Denied."""
        ...


@dataclass(slots=True)
class Found:
    """Hold every setter of this machine, (scope or family, reason) of what cannot be set, and absent families."""

    setters: list[Setter] = field(default_factory=list)
    missing: list[tuple[str, str]] = field(default_factory=list)
    absent: list[tuple[str, str]] = field(default_factory=list)
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def close(self) -> None:
        """Let go of all libraries; twice is harmless."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, opened: Opened, kinds: Collection[Kind]) -> None:
        """Take over what a family has."""
        self._stack.callback(opened.close)
        self.setters += [setter for setter in opened.setters if setter.kind in kinds]
        self.missing += opened.missing


def names() -> list[str]:
    """Return the names of all families, inside first."""
    inside = _families()
    return inside + sorted({point.name for point in entry_points(group=GROUP)} - set(inside))


def load(name: str) -> SetterModule:
    """Return the module of a family. Raises MissingDependency for a broken package."""
    if name in _families():
        return cast("SetterModule", importlib.import_module(f"{instruments.__name__}.{name}.setter"))
    try:
        (point,) = entry_points(group=GROUP, name=name)
        return cast("SetterModule", point.load())
    except Exception as error:
        raise _broken(name, error) from error


def find(environ: Mapping[str, str], kinds: Collection[Kind] = KINDS) -> Found:
    """Open every family; none of them, broken or refused, keeps the others from being found."""
    found = Found()
    try:
        for name in names():
            try:
                found.add(_open(name, environ), kinds)
            except Unavailable as error:
                found.absent.append((name, str(error)))
            except JoulelabError as error:
                found.missing.append((name, str(error)))
    except BaseException:
        found.close()
        raise
    return found


def _families() -> list[str]:
    """Return the families of joulelab's own instruments that have a setter."""
    return sorted(file.parent.name for folder in instruments.__path__ for file in Path(folder).glob("*/setter.py"))


def _open(name: str, environ: Mapping[str, str]) -> Opened:
    module = load(name)
    try:
        return module.open_setters(environ)
    except JoulelabError:
        raise
    except Exception as error:
        raise _broken(name, error) from error


def _broken(name: str, error: Exception) -> MissingDependency:
    why, advice = f"{type(error).__name__}: {error}", "update or remove that package"
    return MissingDependency("its package is broken", where=f"setter {name}", why=why, next=advice)
