"""Read what a node drew from a run: its power over time, its energy between any two times, and what it is rated at.

Every plan that begins with measurements begins here. The power of a host is that of the outermost thing measured on it,
so nothing is counted twice.
"""

from __future__ import annotations

import datetime as dt
import shlex
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from joulelab.analysis.analyse import analyse_run, find_span, load_joined
from joulelab.analysis.breakdown import stack_scopes
from joulelab.analysis.job_accounting import list_account_events
from joulelab.analysis.power import GAP_STEPS
from joulelab.analysis.power_profile import find_guides
from joulelab.analysis.profile_buckets import BucketBuilder
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.report.messages import word_check

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulelab.analysis.channels import EnergyChannel, ScopeChannels
    from joulelab.analysis.readings import Floats
    from joulelab.analysis.result import Result
    from joulelab.store.run_reader import Run

Side = Literal["ac", "dc", "parts"]

LEAST_STEP_S = 0.1  # finer readings than these are taken together
MOST_STEPS = 2_000_000
SYSTEMATIC = ("gain", "offset")
PARTS = ("gpu", "cpu", "dram")
ALIKE = ("batch", "precision", "ranks", "data")  # facts by which one workload is two
JOB = "job"  # what a cluster accounted: one figure for all of the time


@dataclass(frozen=True)
class Draw:
    """Hold the power of one host in one run: means over steps of `step_s` and the highest reading in each (W).

    NaN where nothing was read. `side` is where it was measured: at the wall, behind the supplies, or only in `parts` of
    the node. `raw_s` is how far apart the readings are, `window_s` what each of them is a mean over (0: a moment).
    `gain` is the share by which all of them may be wrong alike (k = 2), None where nobody knows. Hosts of one `run` did
    one job together; runs of the same `work` repeat it. `parts` are the means of what was measured inside, by family:
    `gpu`, `cpu`, `dram`. `read_w` are the readings themselves at `read_s` (s from the start), which no grid has
    smoothed; none where nobody kept them.
    """

    run: str
    name: str
    host: str
    side: Side
    scopes: tuple[str, ...]
    start_utc_s: float
    duration_s: float
    step_s: float
    raw_s: float
    window_s: float
    mean_w: Floats
    high_w: Floats
    gain: float | None
    idle_w: Quantity | None = None
    rated_w: float | None = None
    rated_by: str = ""
    twin: str = ""
    gpus: int = 0
    work: str = ""
    parts: Mapping[str, Floats] = field(default_factory=dict)
    read_s: Floats = field(default_factory=lambda: np.empty(0))
    read_w: Floats = field(default_factory=lambda: np.empty(0))

    @property
    def highest_w(self) -> float:
        """Return the highest reading, in W."""
        return float(np.nanmax(self.high_w))

    @property
    def average_w(self) -> float:
        """Return the mean over what was read, in W."""
        return float(np.nanmean(self.mean_w))


@dataclass(frozen=True)
class Accounted:
    """Hold what a cluster told beside the energy: on how many nodes it was (None where it did not), what it covers."""

    nodes: int | None = None
    covers: str = ""


@dataclass(frozen=True)
class Measured:
    """Hold a run for planning: its result, and what each of its hosts drew.

    Of a run that was only accounted for (by Slurm) the energy is known and not when it was used: there are no draws,
    its energy is taken as spread evenly, and `accounted` holds what else was told.
    """

    result: Result
    draws: tuple[Draw, ...]
    _edges: tuple[int, int]
    _scopes: tuple[ScopeChannels, ...]
    accounted: Accounted | None = None

    @property
    def nodes(self) -> int | None:
        """Return on how many nodes it was, None where nobody tells."""
        return len(self.draws) or (self.accounted.nodes if self.accounted is not None else None)

    @property
    def resolved(self) -> bool:
        """Return whether it is known when the energy was used."""
        return bool(self._scopes)

    @property
    def start_utc_s(self) -> float:
        """Return when the workload started, in s since 1970."""
        return utc_s(self.result.start_utc)

    def energies(self, at_s: Sequence[float] | Floats) -> list[Quantity]:
        """Return the energy (J) between each two of some times (s from the workload's start), of everything measured.

        They add up to that of the whole. Times outside of the workload count as its ends.
        """
        a, b = self._edges
        times = np.clip(np.asarray(at_s, dtype=float), 0.0, (b - a) * 1e-9)
        stamps = [a + round(t * 1e9) for t in times]
        stamps = [min(t, b) for t in stamps]
        if not self._scopes:
            whole = self.result.energy or Quantity(0.0, known=False)
            return [whole * ((until - since) / (b - a)) for since, until in pairwise(stamps)]
        return [
            add_quantities(s.best.energy(since, until) for s in self._scopes) if until > since else Quantity(0.0)
            for since, until in pairwise(stamps)
        ]


def utc_s(text: str) -> float:
    """Return an ISO time as s since 1970."""
    return dt.datetime.fromisoformat(text).timestamp()


def measured_of(run: Run) -> Measured:
    """Read a run for planning. Raises ConfigError where no power was measured."""
    result = analyse_run(run)
    if result.is_damaged and result.energy is None:
        why = "a file of it cannot be read or is missing"
        raise ConfigError(f"run {result.run} cannot be planned with", why=why, next=f"joulelab show {result.run}")
    wrong = next((c for c in result.checks if (c.name, c.status) == ("impossible power", "failed")), None)
    if wrong is not None:
        worded = word_check(wrong)
        what, next_step = f"run {result.run} cannot be planned with", worded.next or f"joulelab show {result.run}"
        raise ConfigError(what, why=worded.text, next=next_step)
    events = list(run.events())
    span = find_span(run, events)
    told = list_account_events(events)
    every = [s for s in load_joined(run, span).scopes if not s.estimate]
    scopes = [s for s in every if s.host not in told and find_family(s.scope) != JOB]
    if every and not scopes and result.energy is not None and result.duration_s > 0:
        return Measured(result, (), (span.start_ns, span.end_ns), (), _accounted(run, list(told.values())))
    if not scopes or result.duration_s <= 0:
        why = "there is an estimate only" if result.scopes else "no power was measured"
        raise ConfigError(f"run {result.run} cannot be planned with", why=why, next="joulelab doctor")
    stack = stack_scopes(scopes)
    a, b = span.start_ns, span.end_ns
    hosts = dict.fromkeys(outer.host for outer, _ in stack)
    guides = find_guides(scopes)
    draws = tuple(_draw(result, host, [p for p in stack if p[0].host == host], guides, (a, b)) for host in hosts)
    return Measured(result, draws, (a, b), tuple(outer for outer, _ in stack))


def workload_of(result: Result) -> str:
    """Return what a run's workload is called: by its label, what it told of itself, or its command."""
    return str(result.labels.get("workload") or result.facts.get("workload") or shlex.join(result.command))


def tells_work(result: Result) -> bool:
    """Return whether a run says what it did: the command of an imported one only says how it was imported."""
    return result.outcome != "imported" or "workload" in {**result.labels, **result.facts}


def work_of(result: Result) -> str:
    """Return what runs that repeat the same work have in common: the cell of a study, or workload and settings.

    Those that do not tell it may all be repeats.
    """
    if not tells_work(result):
        return ""
    told = [f"{name} {result.facts[name]}" for name in ALIKE if name in result.facts]
    return str(result.labels.get("cell") or ", ".join([workload_of(result), *told]))


def _accounted(run: Run, told: Sequence[Mapping[str, Any]]) -> Accounted:
    """Return what the cluster told of a job: with its energy while it ran (`attached`), or when it was imported."""
    archives = [one for one in (run.meta.get("imported") or {}).get("archives") or [] if "node_count" in one]
    counts = [len(one.get("nodes") or ()) for one in told] + [one["node_count"] for one in archives]
    covers = [" + ".join(map(str, one["covers"])) for one in told] + [str(one.get("covers") or "") for one in archives]
    known = bool(counts) and all(isinstance(count, int) and count > 0 for count in counts)
    return Accounted(sum(counts) if known else None, ", ".join(dict.fromkeys(text for text in covers if text)))


def _draw(
    result: Result,
    host: str,
    stack: Sequence[tuple[ScopeChannels, list[ScopeChannels]]],
    guides: Mapping[str, Sequence[ScopeChannels]],
    span: tuple[int, int],
) -> Draw:
    outer = [whole for whole, _ in stack]
    shown = [s.find_power() or s.best for s in outer]
    raw_s = max(c.step_s for c in shown)
    duration_s = (span[1] - span[0]) * 1e-9
    step_s = max(raw_s, LEAST_STEP_S, duration_s / MOST_STEPS)
    count = max(int(duration_s / step_s), 1)
    step_s = duration_s / count
    edges = BucketBuilder(*span, np.linspace(0.0, duration_s, count + 1), guides)
    whole = edges.add_scopes([edges.compute_scope(s) for s in outer])
    inner: dict[str, list[ScopeChannels]] = {}
    for scope, inside in stack:
        for part in inside or [scope]:
            if find_family(part.scope) in PARTS:
                inner.setdefault(find_family(part.scope), []).append(part)
    parts = {name: edges.add_scopes([edges.compute_scope(s) for s in members]).mean for name, members in inner.items()}
    own = [s for s in result.scopes if s.host == host and s.scope in {o.scope for o in outer}]
    energy = add_quantities(s.energy for s in own)
    idle = [s.idle_w for s in own]
    rated = [d for d in result.rated.devices if d.host == host]
    families = {find_family(s.scope) for s in outer}
    gpus = {s.scope for s in result.scopes if s.host == host and find_family(s.scope) == "gpu"}
    read_s, read_w = _readings(edges, shown, max(raw_s, LEAST_STEP_S))
    return Draw(
        run=result.run, name=result.name or "", host=host,
        side="dc" if families == {"node.dc"} else "ac" if not families & {*PARTS, "node.dc"} else "parts",
        scopes=tuple(s.scope for s in outer), start_utc_s=utc_s(result.start_utc), duration_s=duration_s,
        step_s=step_s, raw_s=raw_s, window_s=max(c.spec.window_s or 0.0 for c in shown),
        mean_w=whole.mean, high_w=np.fmax(whole.high, whole.mean), gain=_gain(energy),
        idle_w=add_quantities(q for q in idle if q is not None) if idle and None not in idle else None,
        rated_w=sum(d.watts for d in rated) if rated and {d.scope for d in rated} == {s.scope for s in outer} else None,
        rated_by=rated[0].source if rated else "", twin=result.twin, gpus=len(gpus), work=work_of(result),
        parts=parts, read_s=read_s, read_w=read_w,
    )  # fmt: skip


def _readings(edges: BucketBuilder, channels: Sequence[EnergyChannel], step_s: float) -> tuple[Floats, Floats]:
    """Return when (s) a host was read and what it drew (W), no finer than a step; nothing between readings is made up.

    Of several channels each holds its last reading until the next; NaN where one of them has none.
    """
    every = [shown for channel in channels for shown in edges.shown(channel)]
    if not every or not all(shown.t.size for shown in every):
        return np.empty(0), np.empty(0)
    slowest = min(every, key=lambda shown: shown.t.size).t
    at = slowest[(slowest >= 0) & (slowest <= edges.duration_s)]
    if at.size > edges.t.size:  # finer than the steps
        at = edges.t
    total = np.zeros(at.size)
    for shown in every:
        place = np.searchsorted(shown.t, at + 1e-9, side="right") - 1
        held = shown.value[np.maximum(place, 0)]
        old = (place < 0) | (at - shown.t[np.maximum(place, 0)] > GAP_STEPS * step_s)
        total += np.where(old, np.nan, held)
    return at, total


def _gain(energy: Quantity) -> float | None:
    """Return by which share a meter may be wrong in all of its readings alike (k = 2)."""
    if not energy.known or energy.value <= 0:
        return None
    budget = energy.budget()
    return 2 * float(np.hypot.reduce([budget.get(kind, 0.0) for kind in SYSTEMATIC])) / energy.value
