"""Find a job in Slurm's accounting: the execution that is meant, final or running, with a bounded wait for its rows."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulelab.core.clock import NS, monotonic_ns, read_utc_ns
from joulelab.core.errors import ConfigError, ReadFailed, Unavailable
from joulelab.instruments.slurm.rows import UNKNOWN, Component, energy_of, grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulelab.instruments.slurm.client import AccountingRow, Slurm
    from joulelab.instruments.slurm.plugins import Sampling
    from joulelab.instruments.slurm.rows import Known

POLL_S = 0.25
RECENT_S = 30.0
_WAITS = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_RUNS = ("RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "RESIZING")
_ACTIVE = (*_WAITS, *_RUNS, "COMPLETING", "STAGE_OUT")


@dataclass(frozen=True, slots=True)
class FoundJob:
    """Hold a job: its components (one, unless it is heterogeneous), whether it runs, and what is to be said of it."""

    components: tuple[Component, ...]
    running: bool
    doubts: tuple[str, ...]
    controller: dict[str, str]


@dataclass(frozen=True, slots=True)
class Finder:
    """Look for one job; wait up to `settle_s` for rows that the database does not have yet.

    `attempt` counts executions of a job that was requeued from 1, None is the last.
    """

    slurm: Slurm
    job: str
    where: str
    sampling: Sampling
    settle_s: float = 10.0
    attempt: int | None = None
    now: Callable[[], int] = monotonic_ns
    sleep: Callable[[float], None] = time.sleep
    utc: Callable[[], int] = read_utc_ns

    def find(self) -> FoundJob:
        """Return the job. Raises Unavailable, ReadFailed, Denied, ConfigError."""
        began = self.now()
        while True:
            rows = self.slurm.accounting(self.job)
            components, doubts = self._components(rows)
            settled = bool(components) and all(is_settled(component) for component in components)
            if settled and self._has_energy(components):
                known = self.slurm.job(self.job)
                return FoundJob(components, running=False, doubts=(*doubts, *self._waited(began)), controller=known)
            known = self.slurm.job(self.job)
            state = known.get("JobState", "")
            if state in _RUNS and not settled and components and all(_started(component) for component in components):
                return FoundJob(components, running=True, doubts=doubts, controller=known)
            if not known and not components:
                raise self._unknown(rows)
            if state in _WAITS and not settled:
                why = f"it is {state}" + ("; attempt = 1 is its first execution" if len(rows) > 1 else "")
                raise Unavailable(f"job {self.job} does not run yet", where=self.where, why=why, next="wait for it")
            if (self.now() - began) / NS >= self.settle_s:
                return self._late(components, doubts, known, state)
            self.sleep(POLL_S)

    def _has_energy(self, components: Sequence[Component]) -> bool:
        """Tell whether no energy is still to come: for a moment the rows of a job that ended say 0."""
        ends = [component.row.end_ns or 0 for component in components]
        if self.sampling.plugin.name == "none" or self.utc() - max(ends) > RECENT_S * NS:
            return True
        return all(has_energy(component, self.sampling) for component in components)

    def _waited(self, began: int) -> list[str]:
        waited = (self.now() - began) / NS
        return [f"the database had the job's end only after {waited:.1f} s of waiting"] if waited > 2 else []

    def _late(
        self, components: tuple[Component, ...], doubts: tuple[str, ...], known: dict[str, str], state: str
    ) -> FoundJob:
        """Take what is there after the wait, if the job's own row is final; its steps may be wrong then."""
        what = f"the database does not have the end of job {self.job} after {self.settle_s:g} s"
        if components and all(is_final(component.row) for component in components):
            if all(is_settled(component) for component in components):
                said = f"it ended less than {RECENT_S:.0f} s ago, and its energy may still come: try again"
                return FoundJob(components, running=False, doubts=(*doubts, said), controller=known)
            open_steps = [f"{c.row.job}.{row.step}" for c in components for row in c.steps if not is_final(row)]
            said = f"{what}: {', '.join(open_steps)} still counts as running there, so its energy may be incomplete"
            return FoundJob(components, running=False, doubts=(*doubts, said), controller=known)
        if not known:
            why = "it runs in the database, but the controller does not know it"
            advice = "an administrator finds such jobs with: sacctmgr show runawayjobs"
            raise Unavailable(f"job {self.job} has no end", where=self.where, why=why, next=advice)
        why = f"the controller says {state or 'nothing'}"
        raise ReadFailed(what, where=self.where, why=why, next="try again in a minute, or give a longer settle_s")

    def _components(self, rows: Sequence[AccountingRow]) -> tuple[tuple[Component, ...], tuple[str, ...]]:
        """Group rows by execution and take the one that is meant, for each component of the job."""
        tasks = sorted({row.job for row in rows if "_" in row.job}, key=_digits)
        if len(tasks) > 1:
            named = ", ".join(tasks[:20]) + (" ..." if len(tasks) > 20 else "")
            why = f"it has {len(tasks)} tasks, each a job of its own"
            raise ConfigError(f"job {self.job} is an array", where=self.where, why=why, next=f"name one of {named}")
        chosen, doubts = [], []
        for tries in grouped(rows).values():
            component, said = self._chosen(tries)
            chosen.append(component)
            doubts += said
        return tuple(chosen), tuple(doubts)

    def _chosen(self, tries: Sequence[Component]) -> tuple[Component, list[str]]:
        if self.attempt is None:
            index = len(tries) - 1
        elif self.attempt <= len(tries):
            index = self.attempt - 1
        else:
            advice = f"attempt is 1 to {len(tries)}"
            raise ConfigError(f"job {self.job} has no execution {self.attempt}", where=self.where, next=advice)
        if len(tries) == 1:
            said = f"job {tries[0].row.job} was put back into the queue after this execution"
            return tries[0], [said] if tries[0].row.state == "REQUEUED" else []
        left = [f"{n + 1} ({c.row.state}, {c.row.elapsed_s or 0} s)" for n, c in enumerate(tries) if n != index]
        said = f"execution {index + 1} of {len(tries)} is shown; not counted: {', '.join(left)}"
        return tries[index], [f"job {tries[index].row.job} was requeued, or its number used again: {said}"]

    def _unknown(self, rows: Sequence[AccountingRow]) -> Unavailable:
        why = "its own row is missing in the database" if rows else "neither the database nor the controller has it"
        advice = "see sacct -S now-30days, and on which cluster it ran"
        return Unavailable(f"there is no job {self.job}", where=self.where, why=why, next=advice)


def has_energy(component: Component, sampling: Sampling, known: Known = UNKNOWN) -> bool:
    """Tell whether what counts of a job that ended has its energy; one that took no time never has any."""
    if any(row is not None and not row.energy_j for row in (component.step("extern"), component.step(known.step))):
        return False
    return not component.row.elapsed_s or energy_of(component, sampling, known).joules is not None


def is_settled(component: Component) -> bool:
    """Tell whether the rows of a job and of all its steps are those of something that ended."""
    return is_final(component.row) and all(is_final(row) for row in component.steps)


def _started(component: Component) -> bool:
    """Tell whether the row is that of a job with nodes; for a moment the database has one that is half filled in."""
    return component.row.start_ns is not None and component.row.node_count > 0 and bool(component.row.nodes)


def is_final(row: AccountingRow) -> bool:
    """Tell whether a row is that of something that ended."""
    ended = row.end_ns is not None and (row.start_ns is not None or not row.elapsed_s)
    # An execution that was put back into the queue is over; its next one has rows of its own.
    return ended and (row.state not in _ACTIVE or row.state == "REQUEUED")


def _digits(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]
