"""Compare policies over one stream of jobs, and say how sure the differences are.

What is not known exactly is drawn again and again, alike for all policies: the policies go on by what is believed, the
jobs take and draw what was drawn. So an error that all policies share is not in their difference.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity
from joulelab.plan.queue.caps import UNCAPPED, options_of, truths_of
from joulelab.plan.queue.jobs import check_fits
from joulelab.plan.queue.policies import POLICIES, allowed
from joulelab.plan.queue.simulate import simulate
from joulelab.plan.queue.trace import figures_of, trace_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.plan.queue.caps import Curve, Drawn, Option
    from joulelab.plan.queue.jobs import Job, Stream
    from joulelab.plan.queue.policies import Policy
    from joulelab.plan.queue.simulate import Start
    from joulelab.plan.queue.site import Site
    from joulelab.plan.queue.trace import Trace
    from joulelab.plan.rates.rate import Rate

MOST_DRAWS, FEWEST_DRAWS = 100, 10
DRAWN_JOBS = 50_000  # jobs that are run again in all draws together, unless said otherwise
SEED = 9
EXACT = 1e-12
TIMES = ("makespan_s", "wait_s", "wait_p95_s", "slowdown")  # no power is in them
ABSOLUTE = ("wait_s", "wait_p95_s")  # nobody waits at all under some policies: there is no share of that


@dataclass(frozen=True)
class Outcome:
    """Hold what came of a policy: its figures as all is believed, then those of each draw.

    `refused` says why it could not be followed; then there is nothing else. `sure` tells whether the accuracy of what
    its times, and of what its energies are made from is known. `caps` counts jobs by cap (W; None: without).
    """

    policy: Policy
    drawn: tuple[Mapping[str, float], ...] = ()
    refused: str = ""
    sure: tuple[bool, bool] = (True, True)
    caps: Mapping[float | None, int] = field(default_factory=dict)
    trace: Trace | None = None
    starts: tuple[Start, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return what its figures are called; the end of each is its unit."""
        return tuple(self.drawn[0]) if self.drawn else ()

    def figure(self, name: str) -> Quantity:
        """Return a figure; its uncertainty is how far the draws are from what is believed."""
        return _quantity([each[name] for each in self.drawn], self.sure[name not in TIMES])

    def change(self, name: str, base: Outcome) -> Quantity | None:
        """Return the change of a figure against another policy, draw by draw, as a share: of waiting in s.

        None where there is none: a policy was refused, or the other's figure is 0.
        """
        if self.refused or base.refused or name not in base.names:
            return None
        pairs = [(own[name], other[name]) for own, other in zip(self.drawn, base.drawn, strict=True)]
        sure = self.sure[name not in TIMES] and base.sure[name not in TIMES]
        if name in ABSOLUTE:
            return _quantity([own - other for own, other in pairs], sure)
        return _quantity([own / other - 1 for own, other in pairs], sure) if pairs[0][1] > 0 else None

    def exceeded(self, count: str) -> tuple[float, float] | None:
        """Return the share of draws in which the budget was exceeded, and the most (W); None without draws."""
        over = [each[f"over_{count}_w"] for each in self.drawn[1:]]
        return (sum(w > 0 for w in over) / len(over), max(over)) if over else None


@dataclass(frozen=True)
class Comparison:
    """Hold a stream of jobs under several policies. `uncapped` jobs are of workloads whose caps nobody knows."""

    stream: Stream
    site: Site
    outcomes: tuple[Outcome, ...]
    rates: Mapping[str, Rate]
    draws: int
    seed: int
    uncapped: int

    @property
    def base(self) -> Outcome:
        """Return what the others are compared with: the first that starts all jobs."""
        return next(each for each in self.outcomes if not each.refused)

    def outcome(self, policy: Policy) -> Outcome | None:
        """Return what came of a policy, None where it was refused or not asked for."""
        return next((each for each in self.outcomes if each.policy == policy and not each.refused), None)


def draws_for(jobs: int) -> int:
    """Return how often to draw, so that it takes no longer than people wait."""
    return int(np.clip(DRAWN_JOBS // max(jobs, 1), FEWEST_DRAWS, MOST_DRAWS))


def compare(
    stream: Stream,
    site: Site,
    curves: Mapping[str, Curve],
    *,
    rates: Mapping[str, Rate] | None = None,
    policies: Sequence[Policy] = POLICIES,
    draws: int | None = None,
    seed: int = SEED,
) -> Comparison:
    """Run a stream under every policy. `curves` are the caps of each workload; one without is never capped.

    Raises ConfigError where a job or the site cannot be, or a rate is not known.
    """
    _check(stream.jobs, site)
    of_jobs = [curves.get(job.workload, UNCAPPED) for job in stream.jobs]
    runs = [_Run(policy, stream.jobs, site) for policy in policies]
    count = draws_for(len(stream.jobs)) if draws is None else draws
    vague = _uncertain(stream.jobs, curves, rates or {})
    if not vague:
        count = 0
    for k in range(count + 1):
        drawn = None if k == 0 else _Drawn(seed, k)
        truths = truths_of(curves, drawn) | {"": [(1.0, 1.0)]}
        options = [
            options_of(job, curve, truths[job.workload if job.workload in curves else ""], site, drawn)
            for job, curve in zip(stream.jobs, of_jobs, strict=True)
        ]
        for run in runs:
            run.once(options, rates or {}, drawn)
    # Where nothing was drawn although something could be, no interval is known.
    known = _Known(powers=False, caps=False) if vague and not count else _Known.of(stream.jobs, curves)
    outcomes = tuple(run.outcome(known) for run in runs)
    uncapped = sum(len(curve) == 1 for curve in of_jobs)
    return Comparison(stream, site, outcomes, rates or {}, count, seed, uncapped)


def _check(jobs: Sequence[Job], site: Site) -> None:
    """Refuse what cannot be scheduled. Raises ConfigError."""
    site.check()
    check_fits(jobs, site.nodes)
    if site.count == "highest" and (missing := [job for job in jobs if job.highest_w is None]):
        raise ConfigError(
            f"the highest power of job {missing[0].id} is not known", where=missing[0].where or None,
            why="the budget is kept by highest powers", next="give highest_w, or --count mean",
        )  # fmt: skip


class _Drawn:
    """Draw for each source once by how many standard uncertainties it is wrong."""

    def __init__(self, seed: int, k: int) -> None:
        self._rng = np.random.default_rng([seed, k])
        self._of: dict[str, float] = {}

    def __call__(self, source: str) -> float:
        if source not in self._of:
            self._of[source] = float(self._rng.standard_normal())
        return self._of[source]


@dataclass(frozen=True)
class _Known:
    """Tell whether the accuracy of all powers, and of what all caps do, is known."""

    powers: bool
    caps: bool

    @classmethod
    def of(cls, jobs: Sequence[Job], curves: Mapping[str, Curve]) -> _Known:
        used = {job.workload for job in jobs}
        steps = [step for name, curve in curves.items() if name in used for step in curve]
        return cls(all(j.node_w.known for j in jobs), all(s.slowdown.known and s.node.known for s in steps))


def _uncertain(jobs: Sequence[Job], curves: Mapping[str, Curve], rates: Mapping[str, Rate]) -> bool:
    """Return whether there is anything to draw."""
    steps = [step for curve in curves.values() for step in curve]
    return (
        any(job.node_w.terms for job in jobs)
        or any(step.slowdown.terms or step.node.terms for step in steps)
        or any(rate.label.u_rel for rate in rates.values())
    )


class _Run:
    """Follow one policy: as all is believed, then once more for each draw."""

    def __init__(self, policy: Policy, jobs: Sequence[Job], site: Site) -> None:
        self._policy, self._jobs, self._site = policy, jobs, site
        self._ways: list[tuple[Option, ...]] = []
        self._numbers: list[list[int]] = []
        self._starts: list[Start] = []
        self._refused = ""
        self._figures: list[dict[str, float]] = []

    def once(self, options: Sequence[Sequence[Option]], rates: Mapping[str, Rate], drawn: Drawn) -> None:
        """Run the jobs once and keep the figures."""
        if not self._figures and not self._refused:
            self._refused = self._allow(options)
        if self._refused:
            return
        if drawn is None:
            starts = self._starts = simulate([j.submit_s for j in self._jobs], self._ways, self._policy, self._site)
        else:
            starts = self._again(options)
        found = figures_of(starts, self._jobs, self._site, rates)
        if drawn is not None:
            wrong = {n: 1 + (r.label.u_rel or 0.0) * drawn(f"rate:{n}") for n, r in rates.items()}
            found |= {name: found[name] * share for name, share in wrong.items()}
        self._figures.append(found)

    def _allow(self, options: Sequence[Sequence[Option]]) -> str:
        """Find what the policy chooses from; return why it cannot be followed, if so."""
        for job, each in zip(self._jobs, options, strict=True):
            try:
                ways = allowed(self._policy, each, job, self._site)
            except ConfigError as error:
                return str(error)
            if not ways:
                least_w = self._least_w(job, each)
                return (
                    f"job {job.id} can never start: its {job.nodes} nodes take {least_w:.0f} W beside idle ones, "
                    f"and there are {self._site.room_w:.0f} W"
                )
            self._ways.append(ways)
            caps = [option.cap_w for option in each]
            self._numbers.append([caps.index(way.cap_w) for way in ways])
        return ""

    def _least_w(self, job: Job, options: Sequence[Option]) -> float:
        rated_w = job.rated_w or self._site.rated_w
        if self._policy.counts == "rated" and rated_w is not None:
            return job.nodes * (rated_w - self._site.rest_w)
        return min(o.extra_w for o in options) if self._policy.goal else options[-1].extra_w

    def _again(self, options: Sequence[Sequence[Option]]) -> list[Start]:
        """Run the jobs again with what was drawn; when they start changes only with how long they take."""
        ways = [
            tuple(
                way._replace(time_s=each[n].time_s, mean_w=each[n].mean_w, high_w=each[n].high_w)
                for way, n in zip(own, numbers, strict=True)
            )
            for own, numbers, each in zip(self._ways, self._numbers, options, strict=True)
        ]
        if self._policy.goal:
            return simulate([j.submit_s for j in self._jobs], ways, self._policy, self._site)
        return [start._replace(option=ways[start.job][0]) for start in self._starts]

    def outcome(self, known: _Known) -> Outcome:
        """Return what came of it."""
        if self._refused:
            return Outcome(self._policy, refused=self._refused)
        caps = Counter(start.option.cap_w for start in self._starts)
        timed = known.caps or not self._policy.goal
        return Outcome(
            self._policy, tuple(self._figures), sure=(timed, timed and known.powers),
            caps=dict(sorted(caps.items(), key=lambda item: item[0] or float("inf"))),
            trace=trace_of(self._starts, self._site), starts=tuple(self._starts),
        )  # fmt: skip


def _quantity(values: Sequence[float], known: bool) -> Quantity:
    """Return the first value; its uncertainty is how far the others are from it."""
    u = float(np.sqrt(np.mean((np.array(values[1:]) - values[0]) ** 2))) if len(values) > 1 else 0.0
    return Quantity(values[0], {"drawn": u} if u > EXACT * max(abs(values[0]), 1.0) else {}, known)
