"""Describe the jobs of a schedule: when each was submitted, what it needs, and what a node of it drew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.plan.cap_response import find_cap, list_caps
from joulelab.plan.cost.energy import side_of
from joulelab.plan.cost.entries import SIDES
from joulelab.plan.measured_runs import count_nodes, list_even_spread_notes, name_workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulelab.core.quantity import Quantity
    from joulelab.plan.measured_runs import MeasuredRun


@dataclass(frozen=True, slots=True)
class Job:
    """Hold a job as it was run, without a cap: times in s (`submit_s` since 1970), powers in W of one node.

    `node_w` is the mean, `highest_w` the most, `rated_w` what the nameplate says; None where nobody tells. `where` is
    where it was read: a line of a file, or a run.
    """

    id: str
    submit_s: float
    nodes: int
    duration_s: float
    node_w: Quantity
    highest_w: float | None = None
    workload: str = ""
    rated_w: float | None = None
    where: str = ""


@dataclass(frozen=True)
class Stream:
    """Hold jobs in the order of their submission, where they are from, and what has to be said of them.

    `zoned` tells whether their times are UTC for certain, `dated` whether they are dates at all and not s from a start
    of their own: only then do prices and carbon of the hour apply. `twins` are the
    simulated nodes that their powers are from.
    """

    jobs: tuple[Job, ...]
    source: str
    notes: tuple[str, ...] = ()
    zoned: bool = True
    dated: bool = True
    twins: tuple[str, ...] = ()

    @property
    def workloads(self) -> tuple[str, ...]:
        """Return the names of the workloads, each once."""
        return tuple(dict.fromkeys(job.workload for job in self.jobs if job.workload))


def stream_of_runs(measured: Sequence[MeasuredRun]) -> Stream:
    """Return runs as jobs, each submitted when it started; those under a cap only tell what caps do.

    Raises ConfigError where there are none.
    """
    if not measured:
        raise ConfigError("there are no jobs to schedule", next="name runs, or a file of jobs with --jobs")
    free = uncapped_of(measured)
    jobs = tuple(sorted((job_of(each) for each in free), key=lambda job: job.submit_s))
    notes = []
    if len(free) < len(measured):
        notes.append(f"{len(measured) - len(free)} runs under caps are no jobs: they tell what caps do")
    notes += list_even_spread_notes(free)
    sides = {side_of(each) for each in free}
    notes += [text for side, text in SIDES.items() if side in sides]
    twins = tuple(dict.fromkeys(each.result.twin for each in measured if each.result.twin))
    return Stream(jobs, f"{len(jobs)} run{'s' if len(jobs) > 1 else ''}", tuple(notes), twins=twins)


def uncapped_of(measured: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return the runs without a cap: of each workload those at the highest. Raises ConfigError."""
    groups: dict[str, list[MeasuredRun]] = {}
    for each in measured:
        groups.setdefault(name_workload(each.result), []).append(each)
    found = []
    for group in groups.values():
        if all(find_cap(each.result) is None for each in group):
            found += group
            continue
        caps = list_caps(group)
        found += [each for each, cap in zip(group, caps, strict=True) if cap == max(caps)]
    return found


def job_of(measured: MeasuredRun) -> Job:
    """Return a run as a job: its hosts are its nodes, its mean power per node has the meters' terms.

    Raises ConfigError where it does not tell its nodes.
    """
    result, draws, nodes = measured.result, measured.draws, count_nodes(measured)
    [energy] = measured.energies([0.0, result.duration_s])
    rated = [draw.rated_w for draw in draws]
    known = [watts for watts in rated if watts is not None]
    return Job(
        result.run, measured.start_utc_s, nodes, result.duration_s,
        energy * (1 / (result.duration_s * nodes)),
        max((draw.highest_w for draw in draws), default=None), name_workload(result),
        sum(known) / len(known) if known and len(known) == len(draws) else None, f"run {result.run}",
    )  # fmt: skip


def repeated(stream: Stream, count: int, every_s: float) -> Stream:
    """Return so many jobs, one each `every_s` from the first one's submission on: those of a stream in turn."""
    first = stream.jobs[0].submit_s
    jobs = tuple(
        replace(stream.jobs[k % len(stream.jobs)], id=f"{stream.jobs[k % len(stream.jobs)].id}#{k + 1}",
                submit_s=first + k * every_s)
        for k in range(count)
    )  # fmt: skip
    said = f"{count} jobs, one each {every_s:g} s, made from {stream.source}"
    return replace(stream, jobs=jobs, source=said)


def check_fits(jobs: Iterable[Job], nodes: int) -> None:
    """Refuse jobs that need more nodes than there are. Raises ConfigError that names the first of them."""
    large = [job for job in jobs if job.nodes > nodes]
    if large:
        more = f", and {len(large) - 1} more" if len(large) > 1 else ""
        raise ConfigError(
            f"job {large[0].id} needs {large[0].nodes} nodes of {nodes}{more}", where=large[0].where or None,
            next="give a site with more nodes, or leave such jobs out",
        )  # fmt: skip
