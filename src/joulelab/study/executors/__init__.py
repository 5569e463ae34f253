"""Find executors by their name. One runs slots somewhere: on this machine, on a cluster, on a simulated node.

They are modules of this package, apps of joulelab (`APPS`) and, in outside packages, the entry-point group
`joulelab.executors`. A module has a line `SUMMARY` and `open_executor(environ, nodes, study) -> Executor`. It may have
these hooks, so that nobody else needs to know one executor from another:

- `check(nodes, environ) -> warnings`: look at the node types that are its own before anything runs
- `read_options(name, folder) -> options`: read the description of a node type that a study file names
- `place_plan(plan, names) -> plan`: put the node types of a plan onto this executor
- `check_cells(plan, cells, refusals) -> warnings`: refuse cells that it cannot run
- `list_remarks(plan) -> remarks`: list the differences between its results and the study as written

An executor starts `python -m joulelab.study.slot FOLDER`, or writes the same run folder by other means.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from joulelab.core.entry_points import list_entry_points
from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import ModuleType

    from joulelab.study.matrix import NodeType

GROUP = "joulelab.executors"
APPS = {"twin": "joulelab.twin.executor"}

# Effect of the place on a slot: none (its folder decides), to be tried again, cancelled by somebody, failed.
Fate = Literal["", "again", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class SlotEnd:
    """Hold a slot whose process has ended: its last answer (None if it gave none), and how it ended, in words."""

    slot: Path
    answer: Mapping[str, Any] | None
    ending: str = ""
    fate: Fate = ""


@dataclass(frozen=True, slots=True)
class SlotWait:
    """Hold a slot that waits: for its turn unless `what` is given, and for whom or why, in words."""

    slot: Path
    why: str
    what: str = ""


class Executor(Protocol):
    """Run slots somewhere."""

    at_once: int

    def submit(self, slot: Path) -> None:
        """Start a slot; returns at once. Raises JoulelabError."""
        ...

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> Sequence[SlotEnd | SlotWait]:
        """Return the slots that have ended or wait, after at most this time, or when one of `also` is readable."""
        ...

    def cancel(self, slot: Path) -> None:
        """End a slot in good order, within bounds; called again, at once. Returns before it has ended."""
        ...

    def is_over(self, claim: Mapping[str, Any]) -> bool | None:
        """Return whether the job of a claim has ended, if its process cannot be seen; None if that is not known."""
        ...

    def list_open_jobs(self) -> Sequence[str]:
        """Return the names of jobs of the study that continue after the drive."""
        ...

    def close(self) -> None:
        """Release all resources; running slots continue."""
        ...


def list_executors() -> list[str]:
    """Return the names of the executors, joulelab's own first."""
    inside = [*(module.name for module in pkgutil.iter_modules(__path__)), *APPS]
    return inside + sorted({point.name for point in list_entry_points(GROUP)} - set(inside))


def open_executor(name: str, environ: Mapping[str, str], nodes: Mapping[str, NodeType], study: Path) -> Executor:
    """Open an executor by its name, for the node types and the folder of a study. Raises ConfigError."""
    opened: Executor = _find_module(name).open_executor(environ, nodes, study)
    return opened


def find_hook(name: str, hook: str) -> Callable[..., Any] | None:
    """Return a hook of an executor, None if it has no such hook. Raises ConfigError for an unknown executor."""
    found: Callable[..., Any] | None = getattr(_find_module(name), hook, None)
    return found


def require_hook(name: str, hook: str) -> Callable[..., Any]:
    """Return a hook of an executor. Raises ConfigError if it has no such hook."""
    found = find_hook(name, hook)
    if found is None:
        raise ConfigError(f"the executor {name!r} has no {hook}", where="study")
    return found


def check_nodes(name: str, nodes: Mapping[str, NodeType], environ: Mapping[str, str]) -> list[str]:
    """Let an executor look at its node types before anything runs; return its warnings. Raises JoulelabError."""
    own = {key: node for key, node in nodes.items() if node.executor == name}
    look = find_hook(name, "check")
    return list(look(own, environ)) if look is not None else []


def _find_module(name: str) -> ModuleType:
    if name not in list_executors():
        raise ConfigError(
            f"there is no executor {name!r}", where="study", why=f"there are {', '.join(list_executors())}"
        )
    for point in (point for point in list_entry_points(GROUP) if point.name == name):
        try:
            module: ModuleType = point.load()
        except Exception as error:
            why, then = f"{type(error).__name__}: {error}", "update or remove that package"
            where = f"executor {name}"
            raise ConfigError(
                "its package is broken", where=where, why=why, next=then, code="config.broken-package"
            ) from error
        return module
    return importlib.import_module(APPS.get(name, f"{__name__}.{name}"))
