"""Read a run for planning: the power of each host over time, the energy between any two times, the nameplate.

The power of a host is that of the outermost scopes measured on it, so nothing is counted twice. Runs that may give a
wrong number are refused: damaged ones, ones with impossible power, ones that are still running.
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
from joulelab.analysis.study_cells import Note
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

LEAST_STEP_S = 0.1  # finer readings are averaged
MOST_STEPS = 2_000_000
SYSTEMATIC = ("gain", "offset")
PARTS = ("gpu", "cpu", "dram")
WALL_FAMILIES = {"node.ac", "psu", "outlet", "rack"}  # of whole nodes; all other scopes are parts of one
SUPPLY_FAMILIES = {"node.dc", "psu.dc"}
ALIKE = ("batch", "precision", "ranks", "data")  # facts that tell apart two settings of one workload
WRONG_CHECKS = ("damaged", "impossible power")
PLUGIN = "slurm "  # before the name of Slurm's plugin, in the model of a job's stream
COVERED_SIDES = {"node.ac": "ac", "node.dc": "dc", "cpu + dram": "parts", "gpu": "parts"}
MEASURE = "leave it out, and name a run that was measured: joulelab run -- COMMAND"


@dataclass(frozen=True)
class HostTrace:
    """Hold the power of one host in one run: means over steps of `step_s` and the highest reading in each (W).

    NaN marks steps without a reading. `side` is where it was measured: at the wall (ac), behind the power supplies
    (dc), or only `parts` of the node. Readings are `raw_s` apart and averages over `window_s` (0: a moment). `gain` is
    the share by which all of them may be wrong alike (k = 2), None if the accuracy is unknown. Hosts of one `run` did
    one job together; runs of the same `work` repeat it. `parts` holds the means of the parts measured inside, by
    family: `gpu`, `cpu`, `dram`. `read_w` are the readings themselves, at `read_s` (s from the start).
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
    def is_whole_node(self) -> bool:
        """Return whether it is the power of the whole host, neither of parts nor of a rack."""
        return self.side != "parts" and "rack" not in self.scopes

    @property
    def average_w(self) -> float:
        """Return the mean over what was read, in W."""
        return float(np.nanmean(self.mean_w))


@dataclass(frozen=True)
class JobAccount:
    """Hold the account of a cluster beside the energy: number of nodes (None if unknown), and what it covers."""

    nodes: int | None = None
    covers: str = ""


@dataclass(frozen=True)
class MeasuredRun:
    """Hold a run for planning: its result and the power of each of its hosts.

    If only a cluster accounted for the run (Slurm), its energy is known, but not when it was used: it has no draws, its
    energy is taken as evenly spread, and `accounted` holds the rest of the account.
    """

    result: Result
    draws: tuple[HostTrace, ...]
    _edges: tuple[int, int]
    _scopes: tuple[ScopeChannels, ...]
    accounted: JobAccount | None = None

    @property
    def nodes(self) -> int | None:
        """Return the number of nodes, None if it is unknown."""
        return len(self.draws) or (self.accounted.nodes if self.accounted is not None else None)

    @property
    def resolved(self) -> bool:
        """Return whether the power over time is known."""
        return bool(self._scopes)

    @property
    def start_utc_s(self) -> float:
        """Return when the workload started, in s since 1970."""
        return utc_s(self.result.start_utc)

    def energies(self, at_s: Sequence[float] | Floats) -> list[Quantity]:
        """Return the energy (J) of all hosts between neighbouring times (s from the workload's start).

        The parts add up to the whole. Times outside of the workload count as its ends.
        """
        a, b = self._edges
        times = np.clip(np.asarray(at_s, dtype=float), 0.0, (b - a) * 1e-9)
        stamps = [min(a + round(t * 1e9), b) for t in times]
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
    """Read a run for planning. Raises ConfigError if its figures may be wrong, or no power was measured."""
    result = analyse_run(run)
    refused = f"run {result.run} cannot be planned with"
    for check in result.checks:
        if check.name in WRONG_CHECKS and check.status == "failed":
            worded = word_check(check)
            code = f"config.{check.name.replace(' ', '-')}"
            raise ConfigError(refused, why=worded.text, next=worded.next or f"joulelab show {result.run}", code=code)
        if check.code == "ending.live":
            raise ConfigError(refused, why="it is still running", next="wait for its end", code="config.live-run")
    events = list(run.events())
    span = find_span(run, events)
    accounts = list_account_events(events)
    measured = [scope for scope in load_joined(run, span).scopes if not scope.estimate]
    scopes = [one for one in measured if one.host not in accounts and find_family(one.scope) != JOB_SCOPE]
    edges = (span.start_ns, span.end_ns)
    if measured and not scopes and result.energy is not None and result.duration_s > 0:
        return MeasuredRun(result, (), edges, (), _read_account(run, list(accounts.values())))
    if not scopes or result.duration_s <= 0:
        why = "its power is only estimated" if result.scopes else "no power was measured"
        raise ConfigError(refused, why=why, next="joulelab doctor", code="config.no-power")
    stack = stack_scopes(scopes)
    hosts = dict.fromkeys(outer.host for outer, _ in stack)
    guides = find_guides(scopes)
    draws = tuple(_trace_host(result, host, [p for p in stack if p[0].host == host], guides, edges) for host in hosts)
    return MeasuredRun(result, draws, edges, tuple(outer for outer, _ in stack))


def name_workload(result: Result) -> str:
    """Return the name of a run's workload: its label, its fact, or its command."""
    return str(result.labels.get("workload") or result.facts.get("workload") or shlex.join(result.command))


def states_workload(result: Result) -> bool:
    """Return whether a run states its workload; the command of an imported one is that of the import."""
    return result.outcome != "imported" or "workload" in {**result.labels, **result.facts}


def identify_work(result: Result) -> str:
    """Return a key that runs of the same work share: the cell of a study, or workload and settings.

    It is empty for runs that do not state their workload: they may all be repeats.
    """
    if not states_workload(result):
        return ""
    settings = [f"{name} {result.facts[name]}" for name in ALIKE if name in result.facts]
    return str(result.labels.get("cell") or ", ".join([name_workload(result), *settings]))


def _read_account(run: Run, accounts: Sequence[Mapping[str, Any]]) -> JobAccount:
    """Read the account of a job, from its events (`import --attach`) or from its archive."""
    archives = [one for one in (run.meta.get("imported") or {}).get("archives") or [] if "node_count" in one]
    counts = [len(one.get("nodes") or ()) for one in accounts] + [one["node_count"] for one in archives]
    covers = [" + ".join(map(str, one["covers"])) for one in accounts]
    covers += [str(one.get("covers") or "") for one in archives]
    is_counted = bool(counts) and all(isinstance(count, int) and count > 0 for count in counts)
    return JobAccount(sum(counts) if is_counted else None, ", ".join(dict.fromkeys(filter(None, covers))))


def _trace_host(
    result: Result,
    host: str,
    stack: Sequence[tuple[ScopeChannels, list[ScopeChannels]]],
    guides: Mapping[str, Sequence[ScopeChannels]],
    span: tuple[int, int],
) -> HostTrace:
    outer = [whole for whole, _ in stack]
    channels = [s.find_power() or s.best for s in outer]
    raw_s = max(c.step_s for c in channels)
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
    read_s, read_w = _sample_readings(edges, channels, max(raw_s, LEAST_STEP_S))
    return HostTrace(
        run=result.run, name=result.name or "", host=host,
        side="ac" if families <= WALL_FAMILIES else "dc" if families <= SUPPLY_FAMILIES else "parts",
        scopes=tuple(s.scope for s in outer), start_utc_s=utc_s(result.start_utc), duration_s=duration_s,
        step_s=step_s, raw_s=raw_s, window_s=max(c.spec.window_s or 0.0 for c in channels),
        mean_w=whole.mean, high_w=np.fmax(whole.high, whole.mean), gain=find_gain(energy),
        idle_w=add_quantities(q for q in idle if q is not None) if idle and None not in idle else None,
        rated_w=sum(d.watts for d in rated) if rated and {d.scope for d in rated} == {s.scope for s in outer} else None,
        rated_by=rated[0].source if rated else "", twin=result.twin, gpus=len(gpus), work=identify_work(result),
        parts=parts, read_s=read_s, read_w=read_w,
    )  # fmt: skip


def _sample_readings(edges: BucketBuilder, channels: Sequence[EnergyChannel], step_s: float) -> tuple[Floats, Floats]:
    """Return times (s) and power (W) of a host's readings, at most one per step; nothing is interpolated.

    Of several channels each holds its last reading until the next; NaN if one of them has none.
    """
    series = [one for channel in channels for one in edges.shown(channel)]
    if not series or not all(one.t.size for one in series):
        return np.empty(0), np.empty(0)
    slowest = min(series, key=lambda one: one.t.size).t
    at = slowest[(slowest >= 0) & (slowest <= edges.duration_s)]
    if at.size > edges.t.size:  # finer than the steps
        at = edges.t
    total = np.zeros(at.size)
    for one in series:
        last = np.searchsorted(one.t, at + 1e-9, side="right") - 1
        held = one.value[np.maximum(last, 0)]
        is_old = (last < 0) | (at - one.t[np.maximum(last, 0)] > GAP_STEPS * step_s)
        total += np.where(is_old, np.nan, held)
    return at, total


def find_gain(energy: Quantity) -> float | None:
    """Return the share by which all readings of an energy may be wrong alike (k = 2), None if it is unknown."""
    if not energy.known or energy.value <= 0:
        return None
    budget = energy.budget()
    return 2 * float(np.hypot.reduce([budget.get(kind, 0.0) for kind in SYSTEMATIC])) / energy.value


def find_accounted_side(measured: MeasuredRun) -> str:
    """Return the side of the supplies that a job's energy was measured on: ac, dc, parts, or `job` if unknown."""
    covers = measured.accounted.covers if measured.accounted is not None else ""
    models = [str(s.model or "") for s in measured.result.scopes if s.scope == JOB_SCOPE]
    plugins = [find_plugin(model.removeprefix(PLUGIN)) for model in models if model.startswith(PLUGIN)]
    # An attached account names families of scopes; an imported one has the plugin in its model.
    found = {covers} if covers in COVERED_SIDES else {" + ".join(plugin.parts) for plugin in plugins}
    sides = {COVERED_SIDES.get(one, "parts") for one in found}
    return sides.pop() if len(sides) == 1 else "parts" if sides else JOB_SCOPE


def find_node_count(measured: MeasuredRun) -> int | None:
    """Return the number of nodes of a run, else its label `nodes`, else None."""
    label = str(measured.result.labels.get("nodes", ""))
    return measured.nodes or (int(label) if label.isascii() and label.isdecimal() else 0) or None


def count_nodes(measured: MeasuredRun) -> int:
    """Return the number of nodes of a run. Raises ConfigError if it is unknown."""
    nodes = find_node_count(measured)
    if nodes is None:
        raise ConfigError(
            f"the number of nodes of run {measured.result.run} is not known",
            why="a cluster accounted for its energy only",
            next="import it again with their number: joulelab import slurm JOB --label nodes=N",
            code="config.node-count",
        )
    return nodes


def require_power_over_time(measured: Sequence[MeasuredRun], what: str, next: str = MEASURE) -> None:
    """Refuse runs whose power over time is not known; `what` needs it. Raises ConfigError."""
    for one in measured:
        if not one.resolved:
            raise ConfigError(
                f"run {one.result.run} does not give {what}",
                why="a cluster accounted for its energy as one total; its power over time is not known",
                next=next,
                code="config.total-only",
            )


def require_whole_nodes(measured: Sequence[MeasuredRun], what: str, next: str = MEASURE) -> None:
    """Refuse runs that do not give the power of whole nodes over time, all on one side of the supplies.

    Raises ConfigError; `what` is the figure that they should give, `next` the advice.
    """
    require_power_over_time(measured, what, next)
    require_one_origin(measured)
    require_one_side(measured, what, next)


def require_one_side(measured: Sequence[MeasuredRun], what: str, next: str = MEASURE) -> None:
    """Refuse runs of parts of nodes or of racks, and runs on both sides of the supplies. Raises ConfigError."""
    sides = set()
    for one in measured:
        scopes = [f"{draw.host} {scope}" for draw in one.draws if not draw.is_whole_node for scope in draw.scopes]
        accounted = "" if one.resolved else find_accounted_side(one)
        if scopes or accounted == "parts":
            covers = ", ".join(scopes[:4]) or (one.accounted.covers if one.accounted is not None else "")
            why = f"run {one.result.run} measured only {covers or 'parts of its nodes'}"
            raise ConfigError(f"{what} is not known", why=why, next=next, code="config.no-whole-node")
        sides |= {draw.side for draw in one.draws} | ({accounted} & {"ac", "dc"})
    if len(sides) > 1:
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
            "simulated runs are mixed with measured ones",
            where=f"run {simulated[0]}",
            why="its power is that of a twin",
            next="name only runs of real nodes, or only runs of twins",
            code="config.simulated",
        )


def list_outer_scopes(measured: MeasuredRun) -> set[tuple[str, str]]:
    """Return host and scope of the parts that a run's energy is the sum of."""
    if measured.resolved:
        return {(draw.host, scope) for draw in measured.draws for scope in draw.scopes}
    return {(s.host, s.scope) for s in measured.result.scopes if s.scope == JOB_SCOPE}


def list_even_spread_notes(measured: Sequence[MeasuredRun]) -> list[Note]:
    """Return a note on runs whose energy is taken as spread evenly, nothing if there are none."""
    names = tuple(dict.fromkeys(one.result.name or one.result.run for one in measured if not one.resolved))
    return [Note("runs.even-spread", {}, {"runs": names})] if names else []


def list_idle_doubts(measured: Sequence[MeasuredRun]) -> list[Note]:
    """Return notes on idle powers that drifted, of the scopes that the power of nodes comes from."""
    found = []
    for one in measured:
        outer = {scope for draw in one.draws if draw.idle_w is not None for scope in draw.scopes}
        for check in one.result.checks:
            is_outer = check.scope in outer or check.scope.endswith(tuple(f"/{scope}" for scope in outer))
            if check.name == "idle drifted" and is_outer:
                found.append(Note("runs.idle-drifted", {}, {"run": one.result.name or one.result.run, "check": check}))
    return found
