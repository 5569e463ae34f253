"""Follow a live run through its folder: power of every scope, energy so far, phases, GPUs, state of the meters.

Shown by `joulelab watch`, and in the dashboard's list of runs.
"""

from __future__ import annotations

import contextlib
import math
import shlex
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from joulelab.analysis.breakdown import stack_scopes
from joulelab.analysis.live_state import STALE_PERIODS, STALE_S, JournalFollower, group_families
from joulelab.core.clock import NS, monotonic_ns, read_boot_id
from joulelab.core.errors import StoreError
from joulelab.core.quantity import add_quantities
from joulelab.core.scope import CORDS, find_family, rank_scope
from joulelab.core.text import escape_unprintable, finite_or_none
from joulelab.report.run_rows import INNER_FAMILIES
from joulelab.report.watch.watched_files import EventFollower, MarkFollower
from joulelab.store.run_folder import list_host_dirs, read_meta, read_run_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from joulelab.analysis.live_energy import EnergyTail, LiveFigures
    from joulelab.analysis.marked_phases import MarkedPhase
    from joulelab.analysis.readings import Ints
    from joulelab.core.quantity import Quantity

    HostStart = tuple[Path, int, Callable[[], Ints | None]]  # folder, start (ns), times of steps

HISTORY = 120  # powers of each scope that are kept, one for each interval
MOST_PHASES = 6
SHARE = 0.01  # of one core, for energies
CREDIT_S = 40.0  # energies may use the share of this time in advance, so that the first figures come soon
OLD_S = 600.0  # a phase that ended earlier than this when it is first seen gets no energy
MOST_ENERGIES = 64  # of phases
TRIES = 3  # a file that is just being created may fail to be read once or twice


# The view --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PowerRow:
    """Hold one line of power: now, recent powers (oldest first), peak (W; NaN = not read), energy so far (J)."""

    label: str
    now_w: float
    powers: tuple[float, ...]
    peak_w: float
    energy: Quantity | None = None
    total: bool = False
    estimate: bool = False


@dataclass(frozen=True, slots=True)
class GpuRow:
    """Hold one GPU: power, cap (W), load (share), memory (B), temperature (degC), clock (Hz); NaN = not read."""

    label: str
    power: PowerRow
    cap_w: float
    load: float
    memory_b: float
    temperature_c: float
    clock_hz: float


@dataclass(frozen=True, slots=True)
class WatchedPhase:
    """Hold one phase: its time (s), its energy (J; None = not computed), whether it is still open."""

    title: str
    depth: int
    seconds: float
    energy: Quantity | None
    is_open: bool


@dataclass(frozen=True, slots=True)
class WatchedMeter:
    """Hold the state of a meter: ok, silent, failing or absent; the age of its last reading (s; NaN = none)."""

    name: str
    state: str
    age_s: float
    late: int
    missed: int
    gaps: int
    why: str


@dataclass(frozen=True, slots=True)
class WatchView:
    """Hold everything that is shown at one moment; `energy` (J) is of the first `energy_s` seconds.

    `counted` are the scopes whose powers add up to `now_w`.
    """

    run: str
    name: str | None
    hosts: tuple[str, ...]
    command: str
    state: str
    elapsed_s: float | None
    now_w: float
    energy: Quantity | None
    energy_s: float
    estimate: bool
    rows: tuple[PowerRow, ...]
    gpus: tuple[GpuRow, ...]
    phases: tuple[WatchedPhase, ...]
    meters: tuple[WatchedMeter, ...]
    work: dict[str, float]
    busy: float
    every_s: float
    notes: tuple[str, ...] = ()
    own: bool = False
    counted: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain data: quantities as in `show --json`, NaN as null."""
        plain: dict[str, Any] = _make_plain(asdict(self) | {"energy": self.energy})
        lists: dict[str, Sequence[PowerRow | WatchedPhase]] = {"rows": self.rows, "phases": self.phases}
        for key, rows in lists.items():
            for data, row in zip(plain[key], rows, strict=True):
                data["energy"] = _make_plain(row.energy)
        return plain


def _make_plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return _make_plain(value.to_json())
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, dict):
        return {key: _make_plain(v) for key, v in value.items()}
    return [_make_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


# Power -----------------------------------------------------------------------------------------------------------


@dataclass
class ScopeHistory:
    """Hold the recent powers of one scope (W; NaN = no reading), the last one is now."""

    host: str
    scope: str
    parent: str | None
    estimate: bool
    powers: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    peak_w: float = math.nan

    @property
    def now_w(self) -> float:
        """Return the power of the last interval."""
        return self.powers[-1] if self.powers else math.nan


class PowerHistory:
    """Follow the power of every scope of one host in intervals of equal length."""

    def __init__(self, folder: Path, every_s: float) -> None:
        """Take a host's folder, and the length of an interval."""
        self.every_ns = max(round(every_s * NS), 1)
        self.follower = JournalFollower(folder, HISTORY // 2 * every_s)
        self.scopes: dict[str, ScopeHistory] = {}
        self._to_ns = 0

    def read(self) -> None:
        """Read new rows and add the power of each interval that has passed. Raises OSError."""
        self.follower.read()
        state = self.follower.state
        newest = state.reached_ns
        if not newest:
            return
        first = self._to_ns or newest - HISTORY // 2 * self.every_ns
        if newest - first >= self.every_ns // 2:
            # As many equal parts as fit best: nothing between two reads is left out that the history would hold.
            count = max(round((newest - first) / self.every_ns), 1)
            edges = [first + (newest - first) * k // count for k in range(count + 1)]
            for a, b in list(pairwise(edges))[-HISTORY:]:
                self._add_interval(a, b)
            self._to_ns = newest
        state.forget(newest - 3 * self.every_ns)

    def _add_interval(self, a_ns: int, b_ns: int) -> None:
        powers = self.follower.state.find_powers(a_ns, b_ns)
        if all(math.isnan(power.watts) for power in powers.values()) and not self.scopes:
            return  # nothing was read yet
        for name, power in powers.items():
            if name not in self.scopes:
                self.scopes[name] = ScopeHistory(power.host, name, power.parent, power.estimate)
        for name, scope in self.scopes.items():
            watts = powers[name].watts if name in powers else math.nan
            if not math.isnan(watts):
                scope.estimate = powers[name].estimate
                scope.peak_w = watts if math.isnan(scope.peak_w) else max(scope.peak_w, watts)
            scope.powers.append(watts)

    def find_states(self, scope: str) -> dict[str, float]:
        """Return the last readings of a scope's state: load, clocks, caps, temperature."""
        found: dict[str, float] = {}
        for state in self.follower.state.streams.values():
            if state.stream.scope == scope and state.row:
                channels = zip(state.stream.channels, state.row, strict=True)
                found |= {spec.name: value for spec, value in channels if spec.kind == "state"}
        return found

    def find_last_reading(self, meter: str) -> tuple[int | None, float]:
        """Return when a meter was last read (None: never), and its longest period in s."""
        streams = [state for state in self.follower.state.streams.values() if state.meter == meter]
        last = max((state.last_ns for state in streams), default=0)
        return last or None, max((state.stream.period_s for state in streams), default=0.0)


# Energy ----------------------------------------------------------------------------------------------------------


class RunEnergies:
    """Compute the energy of a run's hosts and phases as often as a small share of one core allows."""

    def __init__(self, *, share: float = SHARE, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the share of one core that may be used, and a clock (s)."""
        self.whole: dict[str, LiveFigures] = {}
        self.phases: dict[tuple[str, int], Quantity] = {}
        self.spent_s = 0.0
        self.problem = ""
        self._share, self._clock = share, clock
        self._begun = clock()
        self._cost_s = 0.0
        self._hosts: dict[str, EnergyTail] = {}
        self._open: dict[tuple[str, int], EnergyTail] = {}
        self._read_at: dict[str | tuple[str, int], float] = {}
        self._phase_is_next = False
        self._failed = 0

    def read(self, hosts: Sequence[HostStart], phases: Sequence[MarkedPhase]) -> None:
        """Compute the energy of the host or phase that has waited longest, if the share of a core allows it.

        The first figure is computed as soon as there are readings for it.
        """
        earned = self._share * (self._clock() - self._begun + CREDIT_S)
        if not hosts or (self.whole and self.spent_s + self._cost_s > earned):
            return
        began, first = time.thread_time(), not self.whole
        due = self._list_due_phases(phases, hosts[0][0].name) if len(hosts) == 1 and self.whole else []
        self._phase_is_next = not self._phase_is_next
        try:
            if due and self._phase_is_next:
                self._read_phase(hosts[0], due[0])
            else:
                self._read_host(min(hosts, key=lambda host: self._read_at.get(host[0].name, 0.0)))
            self._failed, self.problem = 0, ""
        except Exception as error:  # noqa: BLE001 - power is shown in any case; files are not whole yet, or gone
            self._failed += 1
            if self._failed >= TRIES:
                self.problem = f"energy is missing: {type(error).__name__}: {error}"
        self._cost_s = time.thread_time() - began
        # The first read takes everything from the start; the next ones need not wait for its cost.
        self.spent_s += min(self._cost_s, self._share * CREDIT_S / 2) if first else self._cost_s

    def close(self) -> None:
        """Release the run."""
        for tail in (*self._hosts.values(), *self._open.values()):
            tail.close()

    def _list_due_phases(self, phases: Sequence[MarkedPhase], host: str) -> list[MarkedPhase]:
        """Return the phases whose energy can be computed now; the phase that has waited longest is first."""
        reached = self.whole[host].at_ns
        found = []
        for phase in phases:
            key = phase.id, phase.start_ns
            is_done = not phase.open_end and key in self.phases and key not in self._open
            if is_done or phase.host != host or phase.start_ns >= reached:
                continue
            if phase.open_end or reached - OLD_S * NS < phase.end_ns:
                found.append(phase)
        return sorted(found, key=lambda phase: self._read_at.get((phase.id, phase.start_ns), 0.0))

    def _read_host(self, host: HostStart) -> None:
        from joulelab.analysis.live_energy import EnergyTail

        folder, start_ns, steps = host
        self._read_at[folder.name] = self._clock()
        if folder.name not in self._hosts:
            self._hosts[folder.name] = EnergyTail(folder, start_ns, steps)
        if (figures := self._hosts[folder.name].read()) is not None:
            self.whole[folder.name] = figures

    def _read_phase(self, host: HostStart, phase: MarkedPhase) -> None:
        from joulelab.analysis.live_energy import EnergyTail

        key, (folder, start_ns, steps) = (phase.id, phase.start_ns), host
        self._read_at[key] = self._clock()
        tail = self._open.get(key) or EnergyTail(folder, max(phase.start_ns, start_ns), steps)
        self._open[key] = tail
        figures = tail.read(None if phase.open_end else phase.end_ns)
        if figures is not None and "measured" in figures.energy:
            self.phases[key] = figures.energy["measured"]
        if not phase.open_end:
            self._open.pop(key).close()
            for old in list(self.phases)[:-MOST_ENERGIES]:
                self.phases.pop(old)


# The run ---------------------------------------------------------------------------------------------------------


@dataclass
class _WatchedHost:
    power: PowerHistory
    events: EventFollower
    marks: MarkFollower
    now_ns: int = 0

    @property
    def name(self) -> str:
        return self.power.follower.folder.name

    def read(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # being sealed, or gone: the next read finds out
            self.events.read()
            self.marks.read()
            self.power.read()
        # The clock of another machine cannot be read: there, now is the time of the last reading.
        follower = self.power.follower
        is_here = follower.boot_id in ("", read_boot_id())
        self.now_ns = monotonic_ns() if is_here else follower.find_newest_ns()

    def is_read_now(self, scopes: Iterable[str]) -> bool:
        """Return whether each of these scopes has a stream that is read, or is a sum whose parts all are."""
        state = self.power.follower.state
        giving = [s for s in state.streams.values() if s.gives_energy]
        read = {
            s.stream.scope
            for s in giving
            if s.is_fresh(self.now_ns) and s.stream.name not in getattr(self.events.meters.get(s.meter), "silent", ())
        }
        powers = state.find_powers(self.now_ns - self.power.every_ns, self.now_ns)
        sums = {name for name, power in powers.items() if not math.isnan(power.watts)} - {
            s.stream.scope for s in giving
        }
        return read | sums >= set(scopes)


class RunWatch:
    """Follow one run through its folder; nothing is written there."""

    def __init__(
        self, run: Path, every_s: float, *, share: float = SHARE, own: bool = False, with_phases: bool = True
    ) -> None:
        """Take a run folder and the time between two reads. Raises NotARun, StoreError."""
        self.run, self.every_s, self.own, self.with_phases = run, every_s, own, with_phases
        self.meta = read_meta(run)
        self.energies = RunEnergies(share=share)
        self._hosts: dict[str, _WatchedHost] = {}

    def read(self, notes: Iterable[str] = (), *, energy: bool = True) -> WatchView:
        """Read new rows and lines and return everything; without `energy` it is quick. Raises OSError, StoreError."""
        state = str(read_run_state(self.run, self.meta))
        for folder in list_host_dirs(self.run):
            if folder.name not in self._hosts:
                parts = PowerHistory(folder, self.every_s), EventFollower(folder), MarkFollower(folder)
                self._hosts[folder.name] = _WatchedHost(*parts)
        hosts = sorted(self._hosts.values(), key=lambda h: (h.name != self.meta.get("host"), h.name))
        for host in hosts:
            host.read()
        if not hosts:
            raise StoreError(
                "the run has no host folder", where=str(self.run), why="damaged or being removed", code="store.no-host"
            )
        first = hosts[0]
        start = first.events.start_ns
        now = first.events.end_ns or first.now_ns
        phases = choose_phases(first.marks.list_phases(now)) if start and self.with_phases else []
        if start and energy:
            self.energies.read(_find_starts(hosts, start), phases)
        notes = (*notes, *([self.energies.problem] if self.energies.problem else []))
        return self._make_view(state, hosts, None if start is None else (now - start) / NS, phases, notes)

    def is_current(self, counted: Iterable[str]) -> bool:
        """Return whether each of these scopes has a meter that is read now: neither silent nor failing."""
        names = set(counted)
        return bool(names) and all(host.is_read_now(names & host.power.scopes.keys()) for host in self._hosts.values())

    def close(self) -> None:
        """Release the run."""
        self.energies.close()

    def _make_view(
        self,
        state: str,
        hosts: Sequence[_WatchedHost],
        elapsed_s: float | None,
        phases: Sequence[MarkedPhase],
        notes: tuple[str, ...],
    ) -> WatchView:
        whole = self.energies.whole
        known = [whole[h.name] for h in hosts if h.name in whole]
        used = _sum_energies([figures.energy for figures in known]) if len(known) == len(hosts) else {}
        scopes = [scope for h in hosts for scope in h.power.scopes.values()]
        rows, counted = list_power_rows(scopes, used)
        busy = [h.power.find_states("host").get("busy", math.nan) for h in hosts]
        work: dict[str, float] = {}
        for kind, amount in (item for h in hosts for item in h.marks.work.items()):
            work[kind] = work.get(kind, 0.0) + amount
        name = self.meta.get("name")
        several = len(hosts) > 1
        return WatchView(
            run=str(self.meta.get("id", self.run.name)),
            name=name if isinstance(name, str) else None,
            hosts=tuple(h.name for h in hosts),
            command=shlex.join(map(str, self.meta.get("command") or ())),
            state=state,
            elapsed_s=elapsed_s,
            now_w=sum(s.now_w for s in counted) if counted else math.nan,
            energy=used.get("measured"),
            energy_s=min((figures.seconds for figures in known), default=0.0),
            estimate=any(figures.estimate for figures in known),
            rows=tuple(rows),
            gpus=tuple(gpu for h in hosts for gpu in _list_gpus(h, several=several)),
            phases=tuple(self._make_phase(p, phases) for p in phases),
            meters=tuple(m for h in hosts for m in _list_meters(h, several=several, show_absent=not scopes)),
            work=work,
            busy=sum(busy) / len(busy),
            every_s=self.every_s,
            notes=notes,
            own=self.own,
            counted=tuple(s.scope for s in counted),
        )

    def _make_phase(self, phase: MarkedPhase, among: Sequence[MarkedPhase]) -> WatchedPhase:
        around = {p.id: p for p in among}
        depth, parent = 0, phase.parent
        while parent in around and depth < MOST_PHASES:
            depth, parent = depth + 1, around[parent].parent
        energy = self.energies.phases.get((phase.id, phase.start_ns))
        return WatchedPhase(escape_unprintable(phase.title), depth, phase.duration_s, energy, phase.open_end)


def choose_phases(phases: Sequence[MarkedPhase]) -> list[MarkedPhase]:
    """Return the open phases, the outermost first, and the last ones that have ended; no steps; in order."""
    named = [p for p in phases if p.steps is None]
    still = [p for p in named if p.open_end][-MOST_PHASES:]
    ended = sorted((p for p in named if not p.open_end), key=lambda p: p.end_ns)
    ended = ended[max(len(ended) + len(still) - MOST_PHASES, 0) :]
    return sorted((*still, *ended), key=lambda p: (p.start_ns, -p.end_ns))


def list_power_rows(
    scopes: Sequence[ScopeHistory], used: dict[str, Quantity]
) -> tuple[list[PowerRow], list[ScopeHistory]]:
    """Return a row for each family, for everything measured and the rest of a node; and the scopes that add up."""
    live = [s for s in scopes if s.powers]
    held = {(s.host, s.scope) for s in live}
    rows: list[PowerRow] = []
    for name, members in group_families(live).items():
        if name in INNER_FAMILIES or (name in CORDS and all((s.host, s.parent) in held for s in members)):
            continue
        label = members[0].scope if len(members) == 1 else f"{name} ({len(members)})"
        rows.append(_make_row(label, members, used.get(name)))
    stack = stack_scopes(live)
    outer = [s for s, _ in stack]
    if len({find_family(s.scope) for s in outer}) > 1:
        rows.append(_make_row("measured", outer, used.get("measured"), total=True))
    for name in sorted({find_family(s.scope) for s, inner in stack if inner}, key=rank_scope):
        pairs = [(s, inner) for s, inner in stack if inner and find_family(s.scope) == name]
        rows.append(_make_rest(name, pairs, used))
    return rows, outer


def _make_row(label: str, members: Sequence[ScopeHistory], energy: Quantity | None, *, total: bool = False) -> PowerRow:
    powers = tuple(members[0].powers) if len(members) == 1 else _sum_histories([s.powers for s in members])
    peak = members[0].peak_w if len(members) == 1 else _find_largest(powers)
    estimate = any(s.estimate for s in members)
    return PowerRow(label, powers[-1], powers, peak, energy, total, estimate)


def _make_rest(
    name: str, pairs: Sequence[tuple[ScopeHistory, Sequence[ScopeHistory]]], used: dict[str, Quantity]
) -> PowerRow:
    whole = _sum_histories([s.powers for s, _ in pairs])
    parts = _sum_histories([s.powers for _, inner in pairs for s in inner])
    count = min(len(whole), len(parts))
    powers = tuple(a - b for a, b in zip(whole[-count:], parts[-count:], strict=True))
    families = dict.fromkeys(find_family(s.scope) for _, inner in pairs for s in inner)
    energy = None
    if name in used and all(f in used for f in families):
        energy = used[name] - add_quantities(used[f] for f in families)
    # Meters do not see an instant alike, so that the highest difference is no power of the node.
    return PowerRow(f"rest of {name}", powers[-1], powers, math.nan, energy, total=True)


def _sum_histories(histories: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return sums of histories that end at the same time; a sum is NaN if one power is missing."""
    count = min(len(h) for h in histories)
    return tuple(sum(values) for values in zip(*(list(h)[-count:] for h in histories), strict=True))


def _find_largest(powers: Sequence[float]) -> float:
    return max((w for w in powers if not math.isnan(w)), default=math.nan)


def _sum_energies(energies: Sequence[dict[str, Quantity]]) -> dict[str, Quantity]:
    names = dict.fromkeys(name for of in energies for name in of)
    return {name: add_quantities(of[name] for of in energies if name in of) for name in names}


def _find_starts(hosts: Sequence[_WatchedHost], start_ns: int) -> list[HostStart]:
    """Return the start in each host's own time, by UTC if its clock differs; hosts with unknown clocks are left out."""
    first, found = hosts[0], []
    for host in hosts:
        start = start_ns
        if host is not first and host.power.follower.boot_id != first.power.follower.boot_id:
            if first.events.pair is None or host.events.pair is None:
                continue
            mono, utc = first.events.pair
            start = start_ns - mono + utc - host.events.pair[1] + host.events.pair[0]
        found.append((host.power.follower.folder, start, host.marks.list_steps))
    return found


def _list_gpus(host: _WatchedHost, *, several: bool) -> list[GpuRow]:
    found = []
    scopes = host.power.scopes
    for name in sorted((s for s in scopes if find_family(s) == "gpu" and "/" not in s), key=rank_scope):
        if not scopes[name].powers:
            continue
        states = host.power.find_states(name)
        label = f"{host.name}/{name}" if several else name

        def first(*names: str, states: dict[str, float] = states) -> float:
            return next((states[n] for n in names if not math.isnan(states.get(n, math.nan))), math.nan)

        found.append(
            GpuRow(
                label=label,
                power=_make_row(label, [scopes[name]], None),
                cap_w=first("cap_enforced_w", "cap_requested_w"),
                load=first("load"),
                memory_b=first("memory_used_b"),
                temperature_c=first("temperature_c"),
                clock_hz=first("sm_clock_hz", "gfx_clock_hz"),
            )
        )
    return found


def _list_meters(host: _WatchedHost, *, several: bool, show_absent: bool) -> list[WatchedMeter]:
    found = []
    for name, events in sorted(host.events.meters.items()):
        last, period_s = host.power.find_last_reading(name)
        age = math.nan if last is None else max(host.now_ns - last, 0) / NS
        is_now = age <= max(STALE_PERIODS * period_s, STALE_S)
        why = next(iter(events.silent.values()), events.why)
        state = "failing" if events.silent else "ok" if is_now else "silent"
        if events.status == "unavailable" and last is None:
            state = "absent"
        if state == "absent" and not show_absent:
            continue
        label = escape_unprintable(f"{host.name}/{name}" if several else name)
        why = escape_unprintable(why)
        found.append(WatchedMeter(label, state, age, events.late, events.missed, events.gaps, why))
    return found
