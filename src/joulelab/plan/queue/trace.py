"""Reckon what came of a schedule: the site's power over time, energy, waiting, and how the budget was kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.readings import Floats
    from joulelab.plan.queue.jobs import Job
    from joulelab.plan.queue.simulate import Start
    from joulelab.plan.queue.site import Site
    from joulelab.plan.rates.rate import Rate

J_PER_KWH = 3.6e6
SHORTEST_S = 10.0  # jobs shorter than this count as so long in slowdowns, as is usual: else they decide the mean
SLACK = 1e-9


@dataclass(frozen=True)
class Trace:
    """Hold the site's power between edges (s): the sum of means, that of highest powers (W), and nodes in use."""

    edges_s: Floats
    mean_w: Floats
    high_w: Floats
    busy: Floats

    @property
    def steps_s(self) -> Floats:
        """Return how long each step is, in s."""
        return np.diff(self.edges_s)


def trace_of(starts: Sequence[Start], site: Site) -> Trace:
    """Return the site's power from the first submission to the last end; unused nodes idle, or are off."""
    begin = np.array([s.start_s for s in starts])
    end = np.array([s.end_s for s in starts])
    changes = np.array([[s.option.mean_w, s.option.high_w, s.option.nodes] for s in starts])
    first = min(s.submit_s for s in starts)
    times = np.concatenate([[first], begin, end])
    steps = np.concatenate([np.zeros((1, 3)), changes, -changes])
    edges, at = np.unique(times, return_inverse=True)
    sums = np.zeros((len(edges), 3))
    np.add.at(sums, at, steps)
    level = np.cumsum(sums, axis=0)[:-1]
    busy = np.rint(level[:, 2])
    rest = (site.nodes - busy) * site.rest_w
    level[busy == 0, :2] = 0.0  # what a long sum has rounded
    return Trace(edges, level[:, 0] + rest, level[:, 1] + rest, busy)


def figures_of(
    starts: Sequence[Start], jobs: Sequence[Job], site: Site, rates: Mapping[str, Rate], trace: Trace | None = None
) -> dict[str, float]:
    """Return the figures of a schedule: energies in J with PUE, times in s, powers in W, money and g of CO2e.

    Raises ConfigError where a rate is not known for a time.
    """
    trace = trace_of(starts, site) if trace is None else trace
    steps = trace.steps_s
    jobs_j = float(sum(s.option.mean_w * s.option.time_s for s in starts)) * site.pue
    idle_j = float(((site.nodes - trace.busy) * site.rest_w * steps).sum()) * site.pue
    waits = np.array([s.start_s - s.submit_s for s in starts])
    stretch = [
        max((s.end_s - s.submit_s) / max(s.option.free_s, SHORTEST_S), 1.0)
        for s in starts
    ]  # fmt: skip
    found = {
        "energy_j": jobs_j + idle_j, "jobs_j": jobs_j, "idle_j": idle_j,
        "makespan_s": float(trace.edges_s[-1] - trace.edges_s[0]),
        "wait_s": float(waits.mean()), "wait_p95_s": float(np.percentile(waits, 95)),
        "slowdown": float(np.mean(stretch)), "mean_w": float((trace.mean_w * steps).sum() / max(steps.sum(), SLACK)),
    }  # fmt: skip
    for name, watts in (("mean", trace.mean_w), ("highest", trace.high_w)):
        over = watts > site.budget_w * (1 + SLACK)
        found[f"over_{name}_s"] = float(steps[over].sum())
        found[f"over_{name}_w"] = float((watts[over] - site.budget_w).max()) if over.any() else 0.0
        found[f"peak_{name}_w"] = float(watts.max())
    rated = [(jobs[s.job].rated_w or site.rated_w, s) for s in starts]
    if all(watts is not None for watts, _ in rated):
        busy_j = sum((watts or 0) * s.option.nodes * s.option.time_s for watts, s in rated) * site.pue
        # Beside the energy of all nodes: unused ones are counted as in it, or the two could not be compared.
        found |= {"rated_j": busy_j + idle_j, "rated_jobs_j": busy_j}
    return found | {name: accounted(trace, rate) * site.pue for name, rate in rates.items()}


def accounted(trace: Trace, rate: Rate) -> float:
    """Return what the site's energy costs or emits at a rate, hour by hour. Raises ConfigError."""
    changes = rate.changes(float(trace.edges_s[0]), float(trace.edges_s[-1]))
    edges = np.unique(np.concatenate([trace.edges_s, changes]))
    inside = np.searchsorted(trace.edges_s, edges[:-1], side="right") - 1
    return float((trace.mean_w[inside] * np.diff(edges) * rate.means(edges)).sum()) / J_PER_KWH
