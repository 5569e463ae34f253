"""Put a schedule together: the site as it was given or measured, and what caps do to each workload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.plan.cap_response import find_cap_response, model_cap_response
from joulelab.plan.measured_runs import list_idle_doubts, name_workload
from joulelab.plan.queue.caps import given_response
from joulelab.plan.queue.site import Site

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.plan.cap_response import CapResponse
    from joulelab.plan.measured_runs import MeasuredRun
    from joulelab.plan.queue.jobs import Job, Stream
    from joulelab.plan.queue.site import Schedule, Workload


def site_of(given: Schedule, stream: Stream, measured: Sequence[MeasuredRun]) -> tuple[Site, tuple[str, ...]]:
    """Return the site, and what was taken from where. Raises ConfigError where nobody tells what is needed."""
    if given.nodes is None:
        raise ConfigError("how many nodes the site has is not given", next="give --nodes, or nodes in [schedule]")
    if given.budget_w is None:
        raise ConfigError("the power budget is not given", next="give --budget, or budget_w in [schedule]")
    notes = []
    idle_w = given.idle_w
    found = [draw.idle_w.value for each in measured for draw in each.draws if draw.idle_w is not None]
    if idle_w is None and found:
        idle_w = sum(found) / len(found)
        notes.append(f"an unused node draws {idle_w:.0f} W: the mean of what {len(found)} hosts drew before their runs")
        notes += list_idle_doubts(measured)
    unused = given.unused or "idle"
    if idle_w is None and unused == "idle":
        raise ConfigError(
            "what an unused node draws is not known", why="no run measured it", next="give --idle, or --unused off"
        )
    highest = all(job.highest_w is not None for job in stream.jobs)
    count = given.count or ("highest" if highest else "mean")
    if given.count is None and not highest:
        notes.append("the budget is kept by mean powers: the highest power of some jobs is not known")
    if unused == "idle":
        notes += _below(stream.jobs, idle_w or 0.0)
    return Site(
        given.nodes, given.budget_w, idle_w or 0.0, unused, count, given.margin or 0.0, given.rated_w,
        given.pue or 1.0,
    ), tuple(notes)  # fmt: skip


def _below(jobs: Sequence[Job], idle_w: float) -> list[str]:
    """Return what has to be said where jobs draw less than a node that none uses."""
    low = [job for job in jobs if job.node_w.value < idle_w]
    if not low:
        return []
    many = f"{len(low)} jobs draw" if len(low) > 1 else "a job draws"
    first = f"job {low[0].id} {low[0].node_w.value:.4g} W per node"
    return [f"{many} less than an unused node ({first}, unused {idle_w:.4g} W): one of the two is hardly right"]


def responses_of(
    given: Schedule, stream: Stream, measured: Sequence[MeasuredRun], named: Mapping[str, Sequence[MeasuredRun]]
) -> tuple[dict[str, CapResponse], tuple[str, ...]]:
    """Return what caps do to each workload of the stream, and why it is not known of the others.

    `measured` are runs whose workloads go by their own names, `named` those that the plan file names for a workload.
    Raises ConfigError where what the plan file says cannot be.
    """
    found: dict[str, CapResponse] = {}
    notes = []
    runs: dict[str, list[MeasuredRun]] = {}
    for each in measured:
        runs.setdefault(name_workload(each.result), []).append(each)
    told = {workload.name: workload for workload in given.workloads}
    for name in stream.workloads:
        if name in told:
            found[name] = _told(told[name], stream, named.get(name, ()), given.accuracy)
        elif name in runs:
            try:
                found[name] = find_cap_response(runs[name])
            except ConfigError as error:
                notes.append(f"{name} is never capped: {error}")
        else:
            notes.append(f"{name} is never capped: no run tells what caps do to it")
    return found, tuple(notes)


def _told(workload: Workload, stream: Stream, runs: Sequence[MeasuredRun], accuracy: float | None) -> CapResponse:
    if workload.caps:
        return given_response(workload.caps, accuracy, workload.name)
    if runs:
        return find_cap_response(runs, gpu_w=workload.gpu_w)
    if workload.gpus is None or workload.gpu_w is None:
        raise ConfigError(f"what caps do to {workload.name} is not known", next="give runs, or gpus and gpu_w, or caps")
    jobs = [job for job in stream.jobs if job.workload == workload.name]
    weight = sum(job.nodes * job.duration_s for job in jobs)
    node_w: Quantity = add_quantities(job.node_w * (job.nodes * job.duration_s / weight) for job in jobs)
    highest_w = max(job.highest_w or job.node_w.value for job in jobs)
    return model_cap_response(node_w, highest_w, gpus=workload.gpus, gpu_w=workload.gpu_w, model=workload.model)
