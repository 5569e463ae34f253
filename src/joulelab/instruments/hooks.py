"""Describe what a meter may have beyond `Meter`: each is optional, and used where it is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulelab.core.errors import JoulelabError


# The code of a remark on where a reading comes from: `doctor` and `meters --all` show it, a run does not.
SOURCE_NOTE = "meter.source"


@dataclass(frozen=True, slots=True)
class Missing:
    """Name a part that an open meter cannot measure, why, and what to do."""

    scope: str
    what: str
    why: str
    next: str = ""
    code: str = "meter.part"

    @classmethod
    def from_error(cls, scope: str, error: JoulelabError) -> Missing:
        """Return the text of an error, for one scope."""
        return cls(scope, error.what, error.why or "", error.next or "", error.code)


@runtime_checkable
class HasEvents(Protocol):
    """Report events since the last call: the recorder drains them after each reading and stores them."""

    def events(self) -> list[dict[str, Any]]:
        """Return events in order, each with `t` (monotonic ns) and `event`, and forget them."""
        ...


@runtime_checkable
class FollowsWorkload(Protocol):
    """Follow the workload's processes; they are known only once the command has started."""

    def set_workload(self, pid: int) -> None:
        """Follow this process and its descendants from now on; called once, maybe from another thread."""
        ...


@runtime_checkable
class HasMissing(Protocol):
    """List the parts that this open meter cannot measure."""

    def missing(self) -> Sequence[Missing]:
        """Return what cannot be measured; fixed for the life of the meter."""
        ...
