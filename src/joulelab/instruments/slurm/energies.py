"""Decide which row of Slurm's accounting is the energy of a job, and list its doubts. Pure functions over rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from joulelab.core.clock import NS
from joulelab.core.spec import Accuracy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.instruments.slurm.client import AccountingRow, OtherJob

# No node draws more: such a figure is a counter that fell, printed as a huge number.
MOST_W = 100_000.0
# Slurm's times are whole seconds, and a step starts some time after its job.
USUAL_LAG_S = 2
# The default of Slurm's own sampling, if no key of the configuration states another.
USUAL_S = 30.0
MOST_NAMED = 5
NODE_GAIN = 0.05
OWN_PACE = ("ipmi", "xcc")  # plugins that read the BMC at a pace of their own
STEPS_OF_SLURM = ("batch", "extern", "interactive")


@dataclass(frozen=True, slots=True)
class Plugin:
    """Describe an energy plugin: its scope on a node, the hardware that it covers, its largest relative error."""

    name: str
    scope: str
    covers: str
    gain: float | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the families of scopes on a node that add up to it."""
        return {"slurm.rapl": ("cpu", "dram"), "slurm.gpu": ("gpu",)}.get(self.scope, (self.scope,))

    def describe_accuracy(self, quantum: float) -> Accuracy:
        """Return the accuracy of a reading with steps of `quantum` (J or W)."""
        shared, reference = (
            f"slurm:{self.name}",
            f"Slurm's plugin {self.name}: {self.covers}; its accuracy is not stated",
        )
        if self.gain is None:
            return Accuracy("unknown", quantum=quantum, shared=shared, reference=reference)
        return Accuracy(
            "assumed", self.gain, quantum=quantum, shared=shared, reference=f"{reference}, {self.gain:.0%} assumed"
        )


PLUGINS = {
    plugin.name: plugin
    for plugin in (
        Plugin("pm_counters", "node.dc", "the node by Cray's board meter", NODE_GAIN),
        Plugin("xcc", "node.dc", "the node by Lenovo's BMC, behind shared supplies on SD650", NODE_GAIN),
        Plugin("ipmi", "node.ac", "BMC sensors that the administrators chose, usually the supplies' input", NODE_GAIN),
        Plugin("ibmaem", "node.ac", "the node by IBM's energy manager", NODE_GAIN),
        Plugin("rapl", "slurm.rapl", "CPU packages and DRAM only, neither GPUs nor the rest of the node"),
        Plugin("gpu", "slurm.gpu", "the GPUs only, not the rest of the node"),
        Plugin("none", "node.dc", "nothing: energy is not accounted"),
    )
}


def find_plugin(value: str) -> Plugin:
    """Return the plugin of AcctGatherEnergyType; several at once, or others, are not known here."""
    name = value.strip().removeprefix("acct_gather_energy/")
    name = "none" if name in ("", "(null)", "(none)") else name
    return PLUGINS.get(name) or Plugin(name, "node.dc", "its coverage is not known here")


@dataclass(frozen=True, slots=True)
class Sampling:
    """Hold how a cluster accounts energy: the plugin, seconds between its samples, and whether these are stated.

    `node_s` is how often the controller polls the nodes' power, 0 if it does not; `private`: it hides others' jobs.
    """

    plugin: Plugin
    frequency_s: float
    is_stated: bool
    node_s: float
    private: bool = False

    @property
    def edge_s(self) -> float:
        """Return the possible error of an edge: one sample, and the part of a second that Slurm's times lack."""
        return self.frequency_s + 1.0

    def is_too_short(self, seconds: float) -> bool:
        """Return whether a row is shorter than two samples: the error of its energy is unknown then."""
        return seconds < 2 * self.frequency_s


def find_sampling(settings: Mapping[str, str]) -> Sampling:
    """Return how energy is accounted, from `scontrol show config`."""

    def find_seconds(key: str, pattern: str = r"\s*(\d{1,6})\b") -> float:
        match = re.match(pattern, settings.get(key, ""))
        return float(match[1]) if match else 0.0

    plugin = find_plugin(settings.get("AcctGatherEnergyType", ""))
    node_s = find_seconds("AcctGatherNodeFreq")
    frequency_s = max(node_s, find_seconds("JobAcctGatherFrequency", r"(?:.*,)?\s*energy=(\d{1,6})\b"))
    is_stated = frequency_s > 0
    if plugin.name in OWN_PACE:  # whatever the other keys are; an empty acct_gather.conf is not shown
        own_s = find_seconds("EnergyIPMIFrequency")
        frequency_s, is_stated = max(frequency_s, own_s or USUAL_S), own_s > 0
    private = "jobs" in settings.get("PrivateData", "").replace(" ", "").split(",")
    return Sampling(plugin, frequency_s or USUAL_S, is_stated, node_s, private)


@dataclass(frozen=True, slots=True)
class Execution:
    """Hold one execution of a job: its own row and those of its steps."""

    row: AccountingRow
    steps: tuple[AccountingRow, ...]

    def find_step(self, name: str) -> AccountingRow | None:
        """Return a step by its name."""
        return next((row for row in self.steps if row.step == name), None)

    @property
    def launched(self) -> list[AccountingRow]:
        """Return the steps that srun started, in order of their start."""
        started = [row for row in self.steps if row.step not in STEPS_OF_SLURM and row.start_ns is not None]
        return sorted(started, key=lambda row: (row.start_ns or 0, row.end_ns or 0))


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """Hold the energy of a job in J and its row, or None and the reason; `doubts` are sentences.

    `times` are the row's own (UTC, ns), if it has them.
    """

    joules: int | None
    row: str = ""
    reason: str = ""
    doubts: tuple[str, ...] = ()
    times: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class KnownSteps:
    """Hold facts about a job's steps: that of our recorders on all nodes, and whether srun ran the workload.

    `host` is the node that recorded by itself, outside of that step.
    """

    step: str = ""
    launched: bool = False
    host: str = ""


NO_STEPS = KnownSteps()


def group_rows(rows: Sequence[AccountingRow]) -> dict[str, list[Execution]]:
    """Return the executions of every job by its raw number; those without a row of the job itself are left out."""
    executions: dict[tuple[str, str], list[AccountingRow]] = {}
    for row in rows:
        executions.setdefault((row.raw, row.execution), []).append(row)
    found: dict[str, list[Execution]] = {}
    for (raw, _), mine in executions.items():
        own = next((row for row in mine if not row.step), None)
        if own is not None:
            found.setdefault(raw, []).append(Execution(own, tuple(row for row in mine if row.step)))
    return found


def choose_energy(execution: Execution, sampling: Sampling, known: KnownSteps = NO_STEPS) -> JobEnergy:
    """Return the energy of a job: from `.extern`, else `.batch` (one node only), else the job's own row.

    The job's own row is the sum of the steps of srun, unless the cluster has `.extern`. A step of ours that ran on all
    nodes is preferred to all of them; the only other step, if srun ran the workload, to `.batch`.
    """
    job = execution.row
    ours = execution.find_step(known.step) if known.step else None
    others = [row for row in execution.launched if row.step != known.step]
    workload = others[0] if known.launched and len(others) == 1 else None
    wide = [row if row is not None and row.node_count >= job.node_count else None for row in (ours, workload)]
    batch, reasons = execution.find_step("batch"), list[str]()
    for row in (wide[0], execution.find_step("extern"), wide[1], batch if job.node_count <= 1 else None, job):
        if row is None:
            continue
        name = f".{row.step}" if row.step else "the job's row"
        times = None if row.start_ns is None or row.end_ns is None else (row.start_ns, row.end_ns)
        reason = explain_no_energy(row, sampling)
        if not reason:
            doubts = [f"{why}; {name} is used instead" for why in reasons] + _list_doubts(execution, row, sampling)
            return JobEnergy(row.energy_j, name, doubts=tuple(doubts), times=times)
        reasons.append(f"{name}: {reason}")
    if job.node_count > 1 and batch is not None and batch.energy_j:
        reasons.append(
            f".batch has {batch.energy_j} J of the first of {job.node_count} nodes only; use srun in the job"
        )
    return JobEnergy(None, reason="; ".join(reasons), times=times)


def explain_no_energy(row: AccountingRow, sampling: Sampling) -> str:
    """Return why a row has no energy, empty if it has one."""
    seconds, joules, plugin = _find_length(row), row.energy_j, sampling.plugin.name
    if plugin == "none" and not joules:
        return "this cluster does not account energy (AcctGatherEnergyType is none)"
    if joules is None:
        if row.energy_text:
            return f"Slurm marks it as without a value ({row.energy_text})"
        return "Slurm has no value" + ("" if row.step else ": no step was started with srun")
    if seconds <= 0:
        return "it lasted less than a second, and Slurm's times are whole seconds"
    if joules == 0 and seconds <= sampling.frequency_s:
        return f"0 J in {seconds:.0f} s: shorter than the {sampling.frequency_s:g} s between samples of the meter"
    if joules == 0:
        return f"0 J in {seconds:.0f} s: the plugin {plugin} does not read its meter on {row.nodes} (see slurmd's log)"
    if joules > MOST_W * seconds * max(row.node_count, 1):
        return f"{joules} J in {seconds:.0f} s is impossible: a counter fell or was set back"
    return ""


def has_energy(execution: Execution, sampling: Sampling, known: KnownSteps = NO_STEPS) -> bool:
    """Return whether a job that ended has its energy already; one that took no time never has any."""
    if any(row is not None and not row.energy_j for row in map(execution.find_step, ("extern", known.step))):
        return False
    return not execution.row.elapsed_s or choose_energy(execution, sampling, known).joules is not None


def add_live_energy(execution: Execution, live: Mapping[str, int | None]) -> JobEnergy:
    """Return the energy so far of a running job: sstat's for steps that run, sacct's for steps that ended."""
    now = {name.partition(".")[2]: joules for name, joules in live.items()}
    for name in ("extern", "batch") if execution.row.node_count <= 1 else ("extern",):
        if name in now:
            return JobEnergy(now[name] or None, f".{name}", "" if now[name] else f".{name} has no energy yet")
    ended = {row.step: row.energy_j for row in execution.launched if row.end_ns is not None}
    parts = [joules for name, joules in {**ended, **now}.items() if name not in STEPS_OF_SLURM and joules]
    return JobEnergy(sum(parts) or None, "steps", "" if parts else "no running step has an energy yet")


def _list_doubts(execution: Execution, used: AccountingRow, sampling: Sampling) -> list[str]:
    doubts, seconds = [], _find_length(used)
    is_sum = not used.step and execution.find_step("extern") is None
    overlap_s = _measure_overlap(execution.launched)
    if overlap_s > 0:
        text = "each has the energy of all its nodes; do not add them"
        text = "each is charged all of its nodes, so the sum counts them more than once" if is_sum else text
        doubts.append(f"steps ran side by side for {overlap_s:.0f} s: {text}")
    open_s = _measure_uncovered(execution) if is_sum else 0.0
    if open_s >= USUAL_LAG_S:
        doubts.append(f"for {open_s:.0f} s of {seconds:.0f} s no step ran: that energy is not in the sum of steps")
    if sampling.is_too_short(seconds):
        why = f"it lasted {seconds:.0f} s and the meter is sampled every {sampling.frequency_s:g} s"
        doubts.append(f"{why}: the edges are too wide for an interval, and none is stated")
    return doubts


def _measure_overlap(steps: Sequence[AccountingRow]) -> float:
    """Return for how many seconds more than one step ran; running steps are left out."""
    ended = [(row.start_ns, row.end_ns) for row in steps if row.start_ns is not None and row.end_ns is not None]
    edges = sorted([(start, 1) for start, _ in ended] + [(end, -1) for _, end in ended])
    total, running = 0, 0
    for (now, change), (then, _) in pairwise(edges):
        running += change
        total += then - now if running > 1 else 0
    return total / NS


def _measure_uncovered(execution: Execution) -> float:
    """Return for how many seconds of a job no step of srun ran."""
    job = execution.row
    if job.start_ns is None or job.end_ns is None:
        return 0.0
    total, reached = 0, job.start_ns
    for row in execution.launched:
        start, end = row.start_ns or reached, row.end_ns if row.end_ns is not None else job.end_ns
        total += max(min(start, job.end_ns) - reached, 0)
        reached = max(reached, min(end, job.end_ns))
    return (total + max(job.end_ns - reached, 0)) / NS


def explain_sharing(
    execution: Execution, others: Sequence[OtherJob] | str, sampling: Sampling, *, may_share: bool = False
) -> list[str]:
    """Return a sentence if a job shared its nodes, or may have: Slurm charges every job the whole node.

    `others` are the jobs on its nodes, or why they are unknown; `may_share`: the job allowed others (OverSubscribe).
    """
    row, found = execution.row, dict[str, float]()
    if isinstance(others, str):
        return [f"whether others were on {row.nodes} is not known: {others}"]
    for other in others:
        if other.raw == row.raw or other.start_ns is None or row.start_ns is None or row.end_ns is None:
            continue
        until = row.end_ns if other.end_ns is None else min(row.end_ns, other.end_ns)
        together = until - max(row.start_ns, other.start_ns)
        if together > 0:
            found[other.raw] = found.get(other.raw, 0.0) + together / NS
    if found:
        listed = ", ".join(f"{raw} ({seconds:.0f} s)" for raw, seconds in list(found.items())[:MOST_NAMED])
        more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
        text = "its energy is that of whole nodes, theirs included; use --exclusive"
        return [f"job {row.job} shared {row.nodes} with {listed}{more}: {text}"]
    if may_share:
        return [f"job {row.job} allowed others on {row.nodes} (OverSubscribe=YES); none was found"]
    if sampling.private:
        return [f"whether others were on {row.nodes} cannot be seen: this cluster hides jobs (PrivateData)"]
    return []


def _find_length(row: AccountingRow) -> float:
    """Return the length of a row in s."""
    if row.start_ns is not None and row.end_ns is not None:
        return (row.end_ns - row.start_ns) / NS
    return float(row.elapsed_s or 0)
