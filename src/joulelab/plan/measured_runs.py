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
from joulelab.analysis.job_accounting import JOB_SCOPE, list_account_events
from joulelab.analysis.power import GAP_STEPS
from joulelab.analysis.power_profile import find_guides
from joulelab.analysis.profile_buckets import BucketBuilder
from joulelab.core.errors import ConfigError
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.instruments.slurm.energies import find_plugin
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
class HostTrace:
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
class JobAccount:
    """Hold what a cluster told beside the energy: on how many nodes it was (None where it did not), what it covers."""

    nodes: int | None = None
    covers: str = ""


@dataclass(frozen=True)
class MeasuredRun:
    """Hold a run for planning: its result, and what each of its hosts drew.

    Of a run that was only accounted for (by Slurm) the energy is known and not when it was used: there are no draws,
    its energy is taken as spread evenly, and `accounted` holds what else was told.
    """

    result: Result
    draws: tuple[HostTrace, ...]
    _edges: tuple[int, int]
    _scopes: tuple[ScopeChannels, ...]
    accounted: JobAccount | None = None

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


def read_measured_run(run: Run) -> MeasuredRun:
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
        return MeasuredRun(result, (), (span.start_ns, span.end_ns), (), _accounted(run, list(told.values())))
    if not scopes or result.duration_s <= 0:
        why = "there is an estimate only" if result.scopes else "no power was measured"
        raise ConfigError(f"run {result.run} cannot be planned with", why=why, next="joulelab doctor")
    stack = stack_scopes(scopes)
    a, b = span.start_ns, span.end_ns
    hosts = dict.fromkeys(outer.host for outer, _ in stack)
    guides = find_guides(scopes)
    draws = tuple(_draw(result, host, [p for p in stack if p[0].host == host], guides, (a, b)) for host in hosts)
    return MeasuredRun(result, draws, (a, b), tuple(outer for outer, _ in stack))


def name_workload(result: Result) -> str:
    """Return what a run's workload is called: by its label, what it told of itself, or its command."""
    return str(result.labels.get("workload") or result.facts.get("workload") or shlex.join(result.command))


def states_workload(result: Result) -> bool:
    """Return whether a run says what it did: the command of an imported one only says how it was imported."""
    return result.outcome != "imported" or "workload" in {**result.labels, **result.facts}


def identify_work(result: Result) -> str:
    """Return what runs that repeat the same work have in common: the cell of a study, or workload and settings.

    Those that do not tell it may all be repeats.
    """
    if not states_workload(result):
        return ""
    told = [f"{name} {result.facts[name]}" for name in ALIKE if name in result.facts]
    return str(result.labels.get("cell") or ", ".join([name_workload(result), *told]))


def _accounted(run: Run, told: Sequence[Mapping[str, Any]]) -> JobAccount:
    """Return what the cluster told of a job: with its energy while it ran (`attached`), or when it was imported."""
    archives = [one for one in (run.meta.get("imported") or {}).get("archives") or [] if "node_count" in one]
    counts = [len(one.get("nodes") or ()) for one in told] + [one["node_count"] for one in archives]
    covers = [" + ".join(map(str, one["covers"])) for one in told] + [str(one.get("covers") or "") for one in archives]
    known = bool(counts) and all(isinstance(count, int) and count > 0 for count in counts)
    return JobAccount(sum(counts) if known else None, ", ".join(dict.fromkeys(text for text in covers if text)))


def _draw(
    result: Result,
    host: str,
    stack: Sequence[tuple[ScopeChannels, list[ScopeChannels]]],
    guides: Mapping[str, Sequence[ScopeChannels]],
    span: tuple[int, int],
) -> HostTrace:
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
    return HostTrace(
        run=result.run, name=result.name or "", host=host,
        side="dc" if families == {"node.dc"} else "ac" if not families & {*PARTS, "node.dc"} else "parts",
        scopes=tuple(s.scope for s in outer), start_utc_s=utc_s(result.start_utc), duration_s=duration_s,
        step_s=step_s, raw_s=raw_s, window_s=max(c.spec.window_s or 0.0 for c in shown),
        mean_w=whole.mean, high_w=np.fmax(whole.high, whole.mean), gain=_gain(energy),
        idle_w=add_quantities(q for q in idle if q is not None) if idle and None not in idle else None,
        rated_w=sum(d.watts for d in rated) if rated and {d.scope for d in rated} == {s.scope for s in outer} else None,
        rated_by=rated[0].source if rated else "", twin=result.twin, gpus=len(gpus), work=identify_work(result),
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


PLUGIN = "slurm "  # before the name of Slurm's plugin, in the model of a job's stream
COVERS = {"node.ac": "ac", "node.dc": "dc", "cpu + dram": "parts", "gpu": "parts"}
MOST = 3  # runs that are named in a note
MEASURE = "leave it out, and name a run that was measured: joulelab run -- COMMAND"


def find_accounted_side(measured: MeasuredRun) -> str:
    """Return which side of the supplies a job's energy is of: ac, dc, parts of nodes, or `job` where nobody tells."""
    told = measured.accounted.covers if measured.accounted is not None else ""
    models = [str(s.model or "") for s in measured.result.scopes if s.scope == JOB_SCOPE]
    plugins = [find_plugin(model.removeprefix(PLUGIN)) for model in models if model.startswith(PLUGIN)]
    # What was added to a run tells families of scopes, what was imported the plugin that is in its model.
    found = {told} if told in COVERS else {" + ".join(plugin.parts) for plugin in plugins}
    sides = {COVERS.get(one, "parts") for one in found}
    return sides.pop() if len(sides) == 1 else "parts" if sides else JOB_SCOPE


def find_node_count(measured: MeasuredRun) -> int | None:
    """Return on how many nodes a run was, by its label `nodes` where nothing else tells; None where that neither."""
    label = str(measured.result.labels.get("nodes", ""))
    return measured.nodes or (int(label) if label.isascii() and label.isdecimal() else 0) or None


def count_nodes(measured: MeasuredRun) -> int:
    """Return on how many nodes a run was. Raises ConfigError where only its energy is known."""
    nodes = find_node_count(measured)
    if nodes is None:
        raise ConfigError(
            f"run {measured.result.run} does not tell on how many nodes it ran",
            why="a cluster accounted for its energy, and nothing else of it is known",
            next="import it again with their number: joulelab import slurm JOB --label nodes=N",
        )
    return nodes


def require_power_over_time(measured: Sequence[MeasuredRun], what: str, next: str = MEASURE) -> None:
    """Refuse runs of which nobody knows when they drew how much. Raises ConfigError that names the first of them."""
    for one in measured:
        if not one.resolved:
            why = "a cluster accounted for its energy as one total: its power over time and its highest are not known"
            raise ConfigError(f"{what} cannot be told from run {one.result.run}", why=why, next=next)


def require_whole_nodes(measured: Sequence[MeasuredRun], what: str, next: str = MEASURE) -> None:
    """Refuse runs that do not give the power of whole nodes over time, all on one side of the supplies.

    Raises ConfigError; `what` is the figure that they should give, `next` the advice.
    """
    require_power_over_time(measured, what, next)
    require_one_origin(measured)
    draws = [draw for one in measured for draw in one.draws]
    for draw in (draw for draw in draws if draw.side == "parts"):
        why = f"run {draw.run} measured only {', '.join(draw.scopes[:4])}"
        raise ConfigError(f"{what} is not known", where=draw.host, why=why, next=next, code="config.parts-only")
    if len({draw.side for draw in draws}) > 1:
        raise ConfigError(
            f"{what} is not known",
            why="some nodes were measured at the wall (AC), others behind their power supplies (DC)",
            next="name runs that were measured on the same side",
            code="config.mixed-sides",
        )


def require_one_origin(measured: Sequence[MeasuredRun]) -> None:
    """Refuse simulated runs among measured ones. Raises ConfigError."""
    simulated = [one.result.run for one in measured if one.result.twin]
    if simulated and len(simulated) < len(measured):
        raise ConfigError(
            "simulated runs cannot be planned with together with measured ones",
            where=f"run {simulated[0]}",
            why="its power is that of a twin",
            next="name only runs of real nodes, or only runs of twins",
            code="config.simulated",
        )


def list_even_spread_notes(measured: Sequence[MeasuredRun]) -> tuple[str, ...]:
    """Return what has to be said where the energy of some runs is taken as spread evenly; nothing where it is not."""
    flat = list(dict.fromkeys(one.result.name or one.result.run for one in measured if not one.resolved))
    if not flat:
        return ()
    more = f" and {len(flat) - MOST} more" if len(flat) > MOST else ""
    whose = "their" if len(flat) > 1 else "its"
    said = "a cluster accounted for the energy as one total, which is taken as spread evenly over"
    return (f"{', '.join(flat[:MOST])}{more}: {said} {whose} time; how it was is not known, and in no interval",)


def list_outer_scopes(measured: MeasuredRun) -> set[tuple[str, str]]:
    """Return host and scope of what a run's energy is the sum of."""
    if measured.resolved:
        return {(draw.host, scope) for draw in measured.draws for scope in draw.scopes}
    return {(s.host, s.scope) for s in measured.result.scopes if s.scope == JOB_SCOPE}


DRIFTED = "idle drifted"  # the check of a run
MOST = 3  # runs that are named


def list_idle_doubts(measured: Sequence[MeasuredRun]) -> tuple[str, ...]:
    """Return what is wrong with the idle powers of some runs: of what their nodes' power is from, not of parts."""
    told = []
    for one in measured:
        outer = {scope for draw in one.draws if draw.idle_w is not None for scope in draw.scopes}
        drifts = (check for check in one.result.checks if check.name == DRIFTED and _is_of(check.scope, outer))
        doubts = [word_check(check).text for check in drifts]
        if doubts:
            told.append(f"{one.result.name or one.result.run}, {'; '.join(doubts)}")
    more = [f"and {len(told) - MOST} runs more"] if len(told) > MOST else []
    return (f"the idle power is doubted: {'; '.join([*told[:MOST], *more])}",) if told else ()


def _is_of(place: str, scopes: set[str]) -> bool:
    return any(place == scope or place.endswith(f"/{scope}") for scope in scopes)
