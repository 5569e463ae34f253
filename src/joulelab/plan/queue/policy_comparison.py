"""Compare policies over one stream of jobs, recommend one, and find how sure the differences are.

Uncertain values are drawn many times, alike for all policies: the policies plan by believed values, the jobs take the
drawn time and power. So an error that all policies share cancels in their difference.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.queue.simulation import (
    BACKFILL,
    NAMEPLATE,
    POLICIES,
    compute_figures,
    list_every_way,
    list_ways,
    simulate_queue,
)
from joulelab.plan.queue.site import NO_CAP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.plan.queue.jobs import JobStream, QueueJob
    from joulelab.plan.queue.simulation import Policy, Start, Way
    from joulelab.plan.queue.site import CapSteps, QueueSite

MOST_DRAWS, FEWEST_DRAWS = 100, 10
DRAWN_JOBS = 100_000  # jobs of all draws together, unless the number of draws is given
SEED = 9
EXACT = 1e-12
TIME_FIGURES = ("makespan_s", "turnaround_s", "wait_s", "wait_p95_s", "longest_wait_s", "slowdown")
LEAST_CHANGE = 0.01  # of the mean time from submission to end: smaller differences decide nothing


class Truth(NamedTuple):
    """Hold one draw, by job and cap step: true run times (s), and factors of the believed power."""

    times_s: list[list[float]]
    factors: list[list[float]]


@dataclass(frozen=True)
class Outcome:
    """Hold the figures of a policy, first by believed values, then of each draw.

    A policy under which a job can never start has no figures: `blocked` is that job, `blocked_w` the extra power that
    it needs (W). The flags state whether the accuracy of all times and of all powers is known.
    """

    policy: Policy
    figures: tuple[Mapping[str, float], ...] = ()
    starts: tuple[Start, ...] = ()
    blocked: QueueJob | None = None
    blocked_w: float = 0.0
    is_time_known: bool = True
    is_power_known: bool = True

    @property
    def caps(self) -> dict[float | None, int]:
        """Return the number of jobs by cap (W per GPU; None: without), from the lowest."""
        counts = Counter(start.way.cap_w for start in self.starts)
        return dict(sorted(counts.items(), key=lambda item: item[0] or float("inf")))

    def get_figure(self, name: str) -> Quantity:
        """Return a figure; its uncertainty is the distance of the draws from the believed value."""
        return self._make_quantity([each[name] for each in self.figures], name)

    def get_change(self, name: str, base: Outcome, *, is_share: bool = False) -> Quantity:
        """Return the difference of a figure to another policy, draw by draw; as a share of the other's if wanted."""
        pairs = zip(self.figures, base.figures, strict=True)
        values = [
            own[name] - other[name] if not is_share else own[name] / other[name] - 1 if other[name] else 0.0
            for own, other in pairs
        ]
        made = self._make_quantity(values, name)
        return replace(made, known=made.known and base.get_figure(name).known)

    def find_excess(self, site: QueueSite) -> tuple[float, float]:
        """Return the share of draws in which the power exceeds the budget, and the excess (W) at 95 %."""
        over = [max(each[f"peak_{site.count}_w"] - site.budget_w, 0.0) for each in self.figures[1:]]
        return (float(np.mean(np.array(over) > 0)), float(np.percentile(over, 95))) if over else (0.0, 0.0)

    def _make_quantity(self, values: Sequence[float], name: str) -> Quantity:
        known = self.is_time_known and (name in TIME_FIGURES or self.is_power_known)
        u = float(np.sqrt(np.mean((np.array(values[1:]) - values[0]) ** 2))) if len(values) > 1 else 0.0
        return Quantity(values[0], {"drawn": u} if u > EXACT * max(abs(values[0]), 1.0) else {}, known)


@dataclass(frozen=True)
class Comparison:
    """Hold a stream of jobs under several policies.

    `enough_w` is the budget (W) from which no job waits for power without caps; `uncapped` counts jobs without a known
    effect of caps.
    """

    stream: JobStream
    site: QueueSite
    outcomes: tuple[Outcome, ...]
    enough_w: float
    draws: int
    seed: int
    uncapped: int

    @property
    def completed(self) -> tuple[Outcome, ...]:
        """Return the outcomes of policies that start all jobs."""
        return tuple(each for each in self.outcomes if each.blocked is None)

    @property
    def base(self) -> Outcome:
        """Return the outcome that others are compared with: first come, first served, if it starts all jobs."""
        return self.completed[0]

    @property
    def best(self) -> Outcome:
        """Return the recommended outcome: the shortest mean time from submission to end.

        Among policies without a significant difference in it, the least energy; the simpler policy if this is equal.
        """
        able = [each for each in self.completed if each.policy != NAMEPLATE]
        fastest = min(able, key=lambda o: o.figures[0]["turnaround_s"])
        least = LEAST_CHANGE * fastest.figures[0]["turnaround_s"]
        equal = []
        for each in able:
            later = each.get_change("turnaround_s", fastest)
            if later.value <= max(least, later.expanded or 0.0):
                equal.append(each)
        return min(equal, key=lambda o: round(o.figures[0]["energy_j"] / fastest.figures[0]["energy_j"], 9))


def compare_policies(
    stream: JobStream,
    site: QueueSite,
    steps: Mapping[str, CapSteps],
    *,
    policies: Sequence[Policy] = POLICIES,
    draws: int | None = None,
    seed: int = SEED,
) -> Comparison:
    """Run a stream under every policy; `steps` are the caps of each workload, one without is never capped.

    Raises ConfigError with the name of a job that fits under no cap.
    """
    jobs = stream.jobs
    own_steps = [steps.get(job.workload, (NO_CAP,)) for job in jobs]
    if any(job.rated_w is None for job in jobs) and site.rated_w is None:
        policies = [policy for policy in policies if policy != NAMEPLATE]
    every_step = [step for listed in steps.values() for step in listed]
    is_uncertain = any(job.node_w.terms for job in jobs) or any(s.slowdown.terms or s.node.terms for s in every_step)
    if draws is None:
        draws = int(np.clip(DRAWN_JOBS // len(jobs), FEWEST_DRAWS, MOST_DRAWS))
    draws = draws if is_uncertain else 0
    truths = [draw_truth(jobs, steps, seed, k) for k in range(1, draws + 1)]
    # Without draws, uncertain values have no interval.
    is_drawn = draws > 0 or not is_uncertain
    is_cap_known = is_drawn and all(step.slowdown.known for step in every_step)
    is_power_known = is_drawn and all(job.node_w.known for job in jobs) and all(s.node.known for s in every_step)
    outcomes = []
    for policy in policies:
        outcome = _run_policy(policy, jobs, own_steps, site, truths)
        is_time_known = is_cap_known or not policy.goal
        outcomes.append(replace(outcome, is_time_known=is_time_known, is_power_known=is_power_known))
    if all(each.blocked for each in outcomes):
        _refuse_job(outcomes[-1], site)
    roomy = replace(site, budget_w=float("inf"), margin=0.0)
    starts = _run_policy(BACKFILL, jobs, own_steps, roomy, ()).starts
    # As the budget counts: a job below the idle power frees nothing. Ends come before starts at the same time.
    changes = sorted([(s.end_s, -s.way.extra_w) for s in starts] + [(s.start_s, s.way.extra_w) for s in starts])
    peak_w = site.nodes * site.idle_w + max(accumulate(extra_w for _, extra_w in changes))
    uncapped = sum(len(listed) == 1 for listed in own_steps)
    return Comparison(stream, site, tuple(outcomes), peak_w / (1 - site.margin), draws, seed, uncapped)


def draw_truth(jobs: Sequence[QueueJob], steps: Mapping[str, CapSteps], seed: int, number: int) -> Truth:
    """Draw one deviation for each source of uncertainty; return the times and powers that follow from it.

    A cap makes no job faster, and no power is below 0.
    """
    rng = np.random.default_rng([seed, number])
    deviations: defaultdict[str, float] = defaultdict(lambda: float(rng.standard_normal()))

    def draw_value(quantity: Quantity) -> float:
        return quantity.value + sum(u * deviations[source] for source, u in quantity.terms.items())

    slowdowns: dict[str, list[float]] = {"": [1.0]}
    ratios: dict[str, list[float]] = {"": [1.0]}
    for name, listed in steps.items():
        slowdowns[name] = [max(draw_value(step.slowdown), min(step.slowdown.value, 1.0)) for step in listed]
        ratios[name] = [max(draw_value(step.node), 0.0) / step.node.value for step in listed]
    times, factors = [], []
    for job in jobs:
        name = job.workload if job.workload in slowdowns else ""
        gain = max(draw_value(job.node_w), 0.0) / job.node_w.value
        times.append([job.duration_s * slowdown for slowdown in slowdowns[name]])
        factors.append([gain * ratio for ratio in ratios[name]])
    return Truth(times, factors)


def _run_policy(
    policy: Policy, jobs: Sequence[QueueJob], steps: Sequence[CapSteps], site: QueueSite, truths: Sequence[Truth]
) -> Outcome:
    """Run a policy by believed values, then once for each draw."""
    ways: list[tuple[Way, ...]] = []
    for job, listed in zip(jobs, steps, strict=True):
        ways.append(list_ways(policy, job, listed, site))
        if not ways[-1]:
            every = list_every_way(policy, job, listed, site)
            return Outcome(policy, blocked=job, blocked_w=min(way.extra_w for way in every))
    submits = [job.submit_s for job in jobs]
    believed = simulate_queue(submits, ways, policy, site)
    figures = [compute_figures(believed, jobs, site)]
    for truth in truths:
        # Only caps change run times: without them, jobs start as believed.
        starts = simulate_queue(submits, ways, policy, site, truth.times_s) if policy.goal else believed
        factors = np.array([truth.factors[start.job][start.way.step] for start in starts])
        figures.append(compute_figures(starts, jobs, site, factors))
    return Outcome(policy, tuple(figures), tuple(believed))


def _refuse_job(outcome: Outcome, site: QueueSite) -> None:
    job = outcome.blocked
    if job is not None:
        raise ConfigError(
            f"job {job.id} never fits the power budget", where=job.where or None,
            why=f"its {job.nodes} nodes need {outcome.blocked_w:.0f} W beyond idle, also under its lowest cap, and "
            f"{site.room_w:.0f} W are free on an empty site",
            next="give a higher --budget, allow lower caps with --slowdown, or remove the job",
        )  # fmt: skip
