"""Decide which of Slurm's rows is the energy of a job, and say what makes it doubtful. Pure functions over rows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from joulelab.core.clock import NS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.slurm.client import AccountingRow, OtherJob
    from joulelab.instruments.slurm.plugins import Sampling

# No node takes more: such a figure is a counter that fell, seen as a huge number.
MOST_W = 100_000.0
# Slurm's times are whole seconds, and a step starts some time after its job.
USUAL_LAG_S = 2
_OWN = ("batch", "extern", "interactive")


@dataclass(frozen=True, slots=True)
class Component:
    """Hold one execution of a job, or of one component of a heterogeneous job: its own row and those of its steps."""

    row: AccountingRow
    steps: tuple[AccountingRow, ...]

    def step(self, name: str) -> AccountingRow | None:
        """Return a step by its name."""
        return next((row for row in self.steps if row.step == name), None)

    @property
    def launched(self) -> list[AccountingRow]:
        """Return the steps that srun started, in order of their start."""
        started = [row for row in self.steps if row.step not in _OWN and row.start_ns is not None]
        return sorted(started, key=lambda row: (row.start_ns or 0, row.end_ns or 0))


@dataclass(frozen=True, slots=True)
class Energy:
    """Hold the energy of a job in J and the row that it is from, or None and the reason; `doubts` are sentences.

    `times` are the row's own (UTC, ns), where it has them.
    """

    joules: int | None
    row: str = ""
    reason: str = ""
    doubts: tuple[str, ...] = ()
    times: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """Say what is known of a job's steps: that of ours which ran on all nodes, and whether srun ran the workload.

    `host` is the node that recorded by itself, outside of that step.
    """

    step: str = ""
    launched: bool = False
    host: str = ""


UNKNOWN = Known()


def grouped(rows: Sequence[AccountingRow]) -> dict[str, list[Component]]:
    """Return the executions of every job, or component of one, by its raw number; those without a row are left out."""
    executions: dict[tuple[str, str], list[AccountingRow]] = {}
    for row in rows:
        executions.setdefault((row.raw, row.execution), []).append(row)
    found: dict[str, list[Component]] = {}
    for (raw, _), mine in executions.items():
        own = next((row for row in mine if not row.step), None)
        if own is not None:
            found.setdefault(raw, []).append(Component(own, tuple(row for row in mine if row.step)))
    return found


def energy_of(component: Component, sampling: Sampling, known: Known = UNKNOWN) -> Energy:
    """Return the energy that counts: `.extern`, then `.batch` (which sees one node only), then the job's own row.

    The job's own row is the sum of what srun started, unless the cluster has `.extern`. A step of ours that ran on all
    nodes comes before all of them; the only other step, where srun ran the workload, before `.batch`.
    """
    job, doubts = component.row, []
    candidates = [_ours(component, known), component.step("extern"), _workload(component, known)]
    candidates += [component.step("batch") if job.node_count <= 1 else None, job]
    reasons: list[str] = []
    for row in candidates:
        if row is None:
            continue
        reason = why_not(row, sampling)
        if not reason:
            doubts += [f"{said}; {_name(row)} is taken instead" for said in reasons]
            doubts += _doubts(component, row, sampling)
            return Energy(row.energy_j, _name(row), doubts=tuple(doubts), times=_times(row))
        reasons.append(f"{_name(row)}: {reason}")
    batch = component.step("batch")
    if job.node_count > 1 and batch is not None and batch.energy_j:
        reasons.append(
            f".batch has {batch.energy_j} J of the first of {job.node_count} nodes only; use srun in the job"
        )
    return Energy(None, reason="; ".join(reasons), times=_times(job))


def total_of(energies: Sequence[Energy]) -> Energy:
    """Add the energies of all components of a job; without one of them there is no sum."""
    missing = [energy for energy in energies if energy.joules is None]
    doubts = tuple(doubt for energy in energies for doubt in energy.doubts)
    known = [energy.times for energy in energies if energy.times is not None]
    times = (min(t[0] for t in known), max(t[1] for t in known)) if known else None
    if missing:
        return Energy(None, reason="; ".join(energy.reason for energy in missing), doubts=doubts, times=times)
    rows = sorted({energy.row for energy in energies})
    return Energy(sum(energy.joules or 0 for energy in energies), " and ".join(rows), doubts=doubts, times=times)


def _ours(component: Component, known: Known) -> AccountingRow | None:
    """Return the row of our step, if it ran on all nodes of the job."""
    row = component.step(known.step) if known.step else None
    return row if row is not None and row.node_count >= component.row.node_count else None


def _workload(component: Component, known: Known) -> AccountingRow | None:
    """Return the row of the step that ran the workload: the only one beside ours."""
    steps = [row for row in component.launched if row.step != known.step]
    fits = known.launched and len(steps) == 1 and steps[0].node_count >= component.row.node_count
    return steps[0] if fits else None


def _times(row: AccountingRow) -> tuple[int, int] | None:
    return None if row.start_ns is None or row.end_ns is None else (row.start_ns, row.end_ns)


def why_not(row: AccountingRow, sampling: Sampling) -> str:
    """Return why a row has no energy, empty where it has."""
    elapsed, joules = _seconds(row), row.energy_j
    if joules is None:
        return _why_no_value(row, sampling)
    if elapsed <= 0:
        return "it lasted less than a second, and Slurm's times are whole seconds"
    if joules == 0:
        return _why_zero(row, elapsed, sampling)
    if joules > MOST_W * elapsed * max(row.node_count, 1):
        return f"{joules} J in {elapsed:.0f} s cannot be: a counter fell or was set back"
    return ""


def _why_no_value(row: AccountingRow, sampling: Sampling) -> str:
    if sampling.plugin.name == "none":
        return "this cluster does not account energy (AcctGatherEnergyType is none)"
    if row.energy_text:
        return f"Slurm marks it as without a value ({row.energy_text})"
    if not row.step:
        return "Slurm has no value: no step was started with srun"
    return "Slurm has no value"


def _why_zero(row: AccountingRow, elapsed: float, sampling: Sampling) -> str:
    if sampling.plugin.name == "none":
        return f"0 J in {elapsed:.0f} s: this cluster does not account energy (AcctGatherEnergyType is none)"
    if elapsed <= sampling.frequency_s:
        return f"0 J in {elapsed:.0f} s: shorter than the {sampling.frequency_s:g} s between looks at the meter"
    plugin = sampling.plugin.name
    return (
        f"0 J in {elapsed:.0f} s: the plugin {plugin} does not read its meter on {row.nodes} (see slurmd's log there)"
    )


def _doubts(component: Component, taken: AccountingRow, sampling: Sampling) -> list[str]:
    doubts = []
    overlap, summed = overlap_s(component.launched), not taken.step and component.step("extern") is None
    if overlap > 0 and summed:
        text = "each is charged all of its nodes, so the sum counts them more than once"
        doubts.append(f"steps ran side by side for {overlap:.0f} s: {text}")
    elif overlap > 0:
        doubts.append(
            f"steps ran side by side for {overlap:.0f} s: each has the energy of all its nodes; do not add them"
        )
    open_s = uncovered_s(component) if summed else 0.0
    if open_s >= USUAL_LAG_S:
        doubts.append(
            f"for {open_s:.0f} s of {_seconds(taken):.0f} s no step ran: that energy is not in the sum of steps"
        )
    if too_short(_seconds(taken), sampling):
        looks = f"the meter is looked at every {sampling.frequency_s:g} s"
        wide = "the edges are too wide to say how far its energy is off, and no interval is stated"
        doubts.append(f"it lasted {_seconds(taken):.0f} s and {looks}: {wide}")
    return doubts


def too_short(seconds: float, sampling: Sampling) -> bool:
    """Return whether a row is below two looks at the meter: how far its energy is off cannot be told then."""
    return seconds < 2 * sampling.frequency_s


def overlap_s(steps: Sequence[AccountingRow]) -> float:
    """Return for how many seconds more than one step ran; those that run still are left out."""
    ended = [(row.start_ns, row.end_ns) for row in steps if row.start_ns is not None and row.end_ns is not None]
    edges = sorted([(start, 1) for start, _ in ended] + [(end, -1) for _, end in ended])
    total, running = 0, 0
    for (now, change), (then, _) in pairwise(edges):
        running += change
        total += then - now if running > 1 else 0
    return total / NS


def uncovered_s(component: Component) -> float:
    """Return for how many seconds of a job no step ran that srun started."""
    job = component.row
    if job.start_ns is None or job.end_ns is None:
        return 0.0
    total, reached = 0, job.start_ns
    for row in component.launched:
        start, end = row.start_ns or reached, row.end_ns if row.end_ns is not None else job.end_ns
        total += max(min(start, job.end_ns) - reached, 0)
        reached = max(reached, min(end, job.end_ns))
    return (total + max(job.end_ns - reached, 0)) / NS


def shared_with(component: Component, others: Sequence[OtherJob], end_ns: int) -> dict[str, float]:
    """Return the other jobs on the same nodes at the same time, and for how many seconds each."""
    row, found = component.row, dict[str, float]()
    for other in others:
        if other.raw == row.raw or other.start_ns is None or row.start_ns is None:
            continue
        until = min(end_ns, other.end_ns if other.end_ns is not None else end_ns)
        together = until - max(row.start_ns, other.start_ns)
        if together > 0:
            found[other.raw] = found.get(other.raw, 0.0) + together / NS
    return found


def live_energy(component: Component, live: Mapping[str, int | None]) -> Energy:
    """Return the energy so far of a job that runs: sstat's for steps that run, sacct's for those that ended."""
    now = {name.partition(".")[2]: joules for name, joules in live.items()}
    single = component.row.node_count <= 1
    for name in ("extern", *(("batch",) if single else ())):
        if now.get(name):
            return Energy(now[name], f".{name}")
        if name in now:
            return Energy(None, reason=f".{name} has no energy yet")
    ended = {row.step: row.energy_j for row in component.launched if row.end_ns is not None}
    parts = [joules for name, joules in {**ended, **now}.items() if name not in _OWN and joules]
    if not parts:
        return Energy(None, reason="no step that runs has an energy yet")
    return Energy(sum(parts), "steps", doubts=("energy between steps is not in their sum",))


def _seconds(row: AccountingRow) -> float:
    if row.start_ns is not None and row.end_ns is not None:
        return (row.end_ns - row.start_ns) / NS
    return float(row.elapsed_s or 0)


def _name(row: AccountingRow) -> str:
    return f".{row.step}" if row.step else "the job's row"
