"""Describe a site for a queue: its nodes, its power budget and the effect of caps; read [queue] of a plan file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from joulelab.analysis.study_cells import Note
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import ONE, Quantity, add_quantities
from joulelab.core.toml_reading import TEXTS, TIME, declare_key, read_table, read_texts, read_time
from joulelab.plan.cap_response import find_cap_response, model_cap_response
from joulelab.plan.measured_runs import name_workload

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.plan_tables import TomlTable
    from joulelab.plan.queue.jobs import JobStream, QueueJob

PowerCount = Literal["mean", "highest"]
SLOWDOWN = 0.10  # of a job's time that a cap may cost, unless given
EVERY_WORKLOAD = "all"  # [queue.workloads.all] holds for workloads without a table of their own
# Keys of older plan files, and what to do instead.
REMOVED_KEYS = {
    "tariff": "remove it; for money: joulelab plan cost",
    "intensity": "remove it; for carbon: joulelab plan cost",
    "pue": "remove it; energies are those of the nodes, multiply them by the PUE",
    "zone": "remove it; write times with their offset, or call sacct with TZ=UTC",
}
POWER_RULE = {"above": 0.0}


@dataclass(frozen=True, slots=True)
class QueueSite:
    """Hold a site: powers in W, of all compute nodes with those that idle, without cooling.

    `margin` is the share of the budget that is kept free; jobs count against the rest by their mean or highest power.
    """

    nodes: int
    budget_w: float
    idle_w: float
    count: PowerCount = "highest"
    margin: float = 0.0
    rated_w: float | None = None

    @property
    def limit_w(self) -> float:
        """Return the budget without the margin, in W."""
        return self.budget_w * (1 - self.margin)

    @property
    def room_w(self) -> float:
        """Return the power that jobs may add to the idle power of all nodes, in W."""
        return self.limit_w - self.nodes * self.idle_w


@dataclass(frozen=True, slots=True)
class WorkloadCaps:
    """Hold the source of a workload's cap response: runs at several caps, or the model of its GPUs."""

    runs: tuple[str, ...] = declare_key((), "runs at several caps", read=read_texts, advice=TEXTS)
    gpus: int | None = declare_key(None, "GPUs of a node", least=1)
    gpu_w: float | None = declare_key(None, "highest cap of a GPU, W", **POWER_RULE)
    model: str = declare_key("", "kind of GPU")

    def __post_init__(self) -> None:
        if not self.runs and None in (self.gpus, self.gpu_w):
            raise ConfigError(
                "the effect of caps has no source", next="give runs, or both gpus and gpu_w: --gpus 8 --gpu-power 700W"
            )
        if self.runs and self.gpus is not None:
            raise ConfigError("the effect of caps has two sources", next="give runs, or gpus and gpu_w")


@dataclass(frozen=True, slots=True)
class QueueTable:
    """Hold the table [queue] of a plan file, None for keys that it does not have; powers in W, times in s."""

    jobs: str = declare_key("", "file of jobs")
    runs: tuple[str, ...] = declare_key((), "runs that are jobs", read=read_texts, advice=TEXTS)
    repeat: int | None = declare_key(None, "number of jobs to make from the runs", least=1)
    every: float | None = declare_key(None, "time between them", read=partial(read_time, least=0.0), advice=TIME)
    nodes: int | None = declare_key(None, "nodes of the site", least=1)
    budget_w: float | None = declare_key(None, "power budget", **POWER_RULE)
    margin: float | None = declare_key(None, "share of the budget to keep free", least=0.0, most=0.99)
    idle_w: float | None = declare_key(None, "power of an unused node", least=0.0)
    unused: Literal["idle", "off"] | None = declare_key(None, "state of unused nodes")
    rated_w: float | None = declare_key(None, "nameplate of a node", **POWER_RULE)
    node_w: float | None = declare_key(None, "mean power of a node, for jobs without", **POWER_RULE)
    processors: int | None = declare_key(None, "processors of a node, for SWF", least=1)
    accuracy: float | None = declare_key(None, "common error of all powers of the file (k = 2)", least=0.0, most=0.99)
    count: PowerCount | None = declare_key(None, "power that counts against the budget")
    slowdown: float | None = declare_key(None, "largest slowdown by a cap", least=0.0, most=0.99)
    workloads: dict[str, WorkloadCaps] = declare_key(dict, "effect of caps by workload")

    def __post_init__(self) -> None:
        if (self.repeat is None) != (self.every is None):
            raise ConfigError("repeat and every belong together", next='give both: repeat = 100, every = "10m"')
        if self.jobs and self.runs:
            raise ConfigError("jobs and runs are both given", next="give one: a file of jobs, or runs")


def read_schedule(table: TomlTable) -> QueueTable:
    """Read [queue], or [schedule] of older files; mistakes are added to those of the table."""
    for key in [key for key in REMOVED_KEYS if key in table.values]:
        table.problems.add((*table.at, key), f"plan queue has no {key}", next=REMOVED_KEYS[key])
    return read_table(QueueTable, table.values, table.problems, table.at, also=REMOVED_KEYS) or QueueTable()


def make_site(table: QueueTable, stream: JobStream, measured: Sequence[MeasuredRun]) -> tuple[QueueSite, list[Note]]:
    """Return the site as given or measured, and notes. Raises ConfigError where something is missing or impossible."""
    if table.nodes is None:
        raise ConfigError("the number of nodes is not given", next="give --nodes, or nodes in [queue]")
    if table.budget_w is None:
        raise ConfigError("the power budget is not given", next="give --budget, or budget_w in [queue]")
    notes = []
    idle_w = 0.0 if table.unused == "off" else table.idle_w
    if idle_w is None:
        idle = [draw.idle_w.value for each in measured for draw in each.draws if draw.idle_w is not None]
        if not idle:
            raise ConfigError(
                "the power of an unused node is not known", why="no run measured it",
                next="give --idle 2.2kW, or --idle 0W for nodes that are off",
            )  # fmt: skip
        idle_w = sum(idle) / len(idle)
        notes.append(Note("queue.idle-measured", {"idle_w": idle_w, "count": len(idle)}))
    count = table.count or "highest"
    if table.count is None and any(job.highest_w is None for job in stream.jobs):
        notes.append(Note("queue.mean-powers"))
        count = "mean"
    site = QueueSite(table.nodes, table.budget_w, idle_w, count, table.margin or 0.0, table.rated_w)
    if site.margin >= 1:
        raise ConfigError("the margin leaves nothing of the budget", next="give less than 100%: --margin 5%")
    if site.room_w <= 0:
        idle_text = f"{site.nodes} idle nodes draw {site.nodes * idle_w:,.10g} W of {site.limit_w:,.10g} W"
        raise ConfigError(
            "the power budget is used up before any job starts", why=idle_text,
            next="give a higher --budget, fewer --nodes, or --idle 0W for nodes that are off",
        )  # fmt: skip
    low = [job for job in stream.jobs if job.node_w.value < idle_w]
    if low:
        texts = {"job": low[0].id}
        notes.append(
            Note("queue.below-idle", {"jobs": len(low), "node_w": low[0].node_w.value, "idle_w": idle_w}, texts)
        )
    _check_jobs(stream.jobs, site)
    return site, notes


def _check_jobs(jobs: Sequence[QueueJob], site: QueueSite) -> None:
    large = [job for job in jobs if job.nodes > site.nodes]
    if large:
        raise ConfigError(
            f"job {large[0].id} needs {large[0].nodes} nodes of {site.nodes}", where=large[0].where or None,
            why=f"{len(large)} such jobs" if len(large) > 1 else None,
            next="give a site with more --nodes, or remove such jobs",
        )  # fmt: skip
    unknown = next((job for job in jobs if job.highest_w is None), None)
    if site.count == "highest" and unknown is not None:
        raise ConfigError(
            f"the highest power of job {unknown.id} is not known", where=unknown.where or None,
            next="give highest_w, or --count mean",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CapStep:
    """Hold one cap of a workload (W per GPU, None: without): time, mean and highest power as ratios to no cap."""

    cap_w: float | None
    slowdown: Quantity
    node: Quantity
    highest: float


CapSteps = tuple[CapStep, ...]
NO_CAP = CapStep(None, ONE, ONE, 1.0)


def list_cap_steps(response: CapResponse, slowdown: float) -> CapSteps:
    """Return the caps that cost at most this share of time, from the lowest to no cap."""
    reference = response.points[-1]
    capped = [
        CapStep(p.cap_w, p.slowdown, p.node_w / reference.node_w, p.highest_w / reference.highest_w)
        for p in response.points[:-1]
        if p.slowdown.value <= 1 + slowdown
    ]
    return (*capped, NO_CAP)


def find_responses(
    table: QueueTable,
    stream: JobStream,
    measured: Sequence[MeasuredRun],
    named: Mapping[str, Sequence[MeasuredRun]],
) -> tuple[dict[str, CapResponse], list[Note]]:
    """Return the cap response of each workload, and notes on those without one.

    `measured` are runs whose workloads have their own names, `named` the runs that the plan file names for a workload.
    """
    found: dict[str, CapResponse] = {}
    notes: list[Note] = []
    unknown: list[str] = []
    runs: dict[str, list[MeasuredRun]] = {}
    for each in measured:
        runs.setdefault(name_workload(each.result), []).append(each)
    for name in stream.workloads:
        source = name if name in table.workloads else EVERY_WORKLOAD
        try:
            if source in table.workloads and (source == name or name not in runs):
                caps = table.workloads[source]
                found[name] = _find_stated_response(caps, name, stream, named.get(source, ()))
            elif name in runs:
                found[name] = find_cap_response(runs[name])
            else:
                unknown.append(name or "jobs without a workload")
        except ConfigError as error:
            if source in table.workloads:
                raise
            notes.append(Note("queue.no-response", texts={"workload": name, "error": str(error)}))
    if unknown:
        notes.insert(0, Note("queue.never-capped", texts={"workloads": tuple(unknown)}))
    return found, notes


def _find_stated_response(caps: WorkloadCaps, name: str, stream: JobStream, runs: Sequence[MeasuredRun]) -> CapResponse:
    if runs:
        return find_cap_response(runs, gpu_w=caps.gpu_w)
    if caps.gpus is None or caps.gpu_w is None:  # WorkloadCaps refuses one without the other
        raise ConfigError(f"no run shows the effect of caps on {name}", next="name runs at several caps")
    jobs = [job for job in stream.jobs if job.workload == name]
    weight = sum(job.nodes * job.duration_s for job in jobs)
    node_w = add_quantities(job.node_w * (job.nodes * job.duration_s / weight) for job in jobs)
    highest_w = max(job.highest_w or job.node_w.value for job in jobs)
    return model_cap_response(node_w, highest_w, gpus=caps.gpus, gpu_w=caps.gpu_w, model=caps.model)
