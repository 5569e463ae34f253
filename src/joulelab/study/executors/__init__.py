"""Find executors: modules of this package by their name. One runs slots somewhere: on this machine, on a cluster.

A module has a line `SUMMARY` and `open_executor(environ, nodes, study) -> Executor`; its `check(nodes, environ)`, if
there is one, tells beforehand what is wrong with the node types that are its own. An executor starts there
`python -m joulelab.study.slot FOLDER`; everything else is done by that process and read from the folder.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from joulelab.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulelab.study.nodes import NodeType

# What the place itself did to a slot: nothing (the folder tells), to be tried again, cancelled by somebody, failed.
Fate = Literal["", "again", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class Ended:
    """Hold a slot whose process has ended: what it told (None where it told nothing), and what else is known."""

    slot: Path
    told: Mapping[str, Any] | None
    said: str = ""
    fate: Fate = ""


@dataclass(frozen=True, slots=True)
class Waits:
    """Tell that a slot waits, for its turn unless `what` says otherwise, and for whom or why, in words."""

    slot: Path
    why: str
    what: str = ""


class Executor(Protocol):
    """Run slots somewhere."""

    at_once: int

    def submit(self, slot: Path) -> None:
        """Start a slot; returns at once. Raises JoulelabError."""
        ...

    def poll(self, timeout_s: float, also: Sequence[int] = ()) -> Sequence[Ended | Waits]:
        """Return the slots that have ended, waiting so long at most, or until a descriptor of `also` is readable.

        It may tell as well that one waits.
        """
        ...

    def cancel(self, slot: Path) -> None:
        """End a slot in good order, within bounds; called again, at once. Returns before it has ended."""
        ...

    def is_over(self, claim: Mapping[str, Any]) -> bool | None:
        """Return whether the job of a claim has ended that cannot be judged by its process; None where nobody knows."""
        ...

    def going_on(self) -> Sequence[str]:
        """Return the jobs of the study that go on though the drive has ended, by what ends them."""
        ...

    def close(self) -> None:
        """Release what is held; slots that run go on."""
        ...


def names() -> list[str]:
    """Return the names of the executors."""
    return [module.name for module in pkgutil.iter_modules(__path__)]


def open_executor(name: str, environ: Mapping[str, str], nodes: Mapping[str, NodeType], study: Path) -> Executor:
    """Open an executor by its name, for the node types and the folder of a study. Raises ConfigError."""
    if name not in names():
        raise ConfigError(f"there is no executor {name!r}", where="study", why=f"there are {', '.join(names())}")
    opened: Executor = importlib.import_module(f"{__name__}.{name}").open_executor(environ, nodes, study)
    return opened


def check(name: str, nodes: Mapping[str, NodeType], environ: Mapping[str, str]) -> list[str]:
    """Let an executor look at its node types before anything runs; return its warnings. Raises JoulelabError."""
    own = {key: node for key, node in nodes.items() if node.executor == name}
    look = getattr(importlib.import_module(f"{__name__}.{name}"), "check", None)
    return list(look(own, environ)) if look is not None else []
