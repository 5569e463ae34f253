"""Gather what is shown of a run that goes on: power of scopes, energy so far, phases, GPUs, meters' health."""

from __future__ import annotations

import contextlib
import math
import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from joulelab.analysis.breakdown import stack_scopes
from joulelab.core.clock import NS, monotonic_ns, read_boot_id
from joulelab.core.errors import StoreError
from joulelab.core.quantity import total
from joulelab.core.scope import CORDS, find_family, find_roots, rank_scope
from joulelab.core.text import escape_unprintable, finite_or_none
from joulelab.report.run_rows import INNER_FAMILIES
from joulelab.report.watch.ends import Ends, Scope
from joulelab.report.watch.energy import SHARE, Energies
from joulelab.report.watch.watched_files import Events, Marks
from joulelab.store.folder import host_dirs, read_meta, run_state

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from joulelab.analysis.marked_phases import MarkedPhase
    from joulelab.core.quantity import Quantity

SILENT = 3.0  # periods of a meter without a reading after which it is called silent
LEAST_SILENT_S = 3.0
MOST_PHASES = 6


@dataclass(frozen=True, slots=True)
class PowerRow:
    """Hold one line of power: now, lately (oldest first) and the peak seen (W; NaN = not read); energy so far (J)."""

    label: str
    now_w: float
    powers: tuple[float, ...]
    peak_w: float
    energy: Quantity | None = None
    total: bool = False
    estimate: bool = False


@dataclass(frozen=True, slots=True)
class GpuRow:
    """Hold one GPU: W, cap (W), load (share), memory (B), temperature (degC), clock (Hz); NaN = not read."""

    label: str
    power: PowerRow
    cap_w: float
    load: float
    memory_b: float
    temperature_c: float
    clock_hz: float


@dataclass(frozen=True, slots=True)
class PhaseLine:
    """Hold one phase: how long (s), its energy (J; None = not worked out), whether it goes on."""

    title: str
    depth: int
    seconds: float
    energy: Quantity | None
    is_open: bool


@dataclass(frozen=True, slots=True)
class MeterLine:
    """Hold how a meter gets on: `state` ok, silent, failing or absent; age of the last reading (s; NaN = none)."""

    name: str
    state: str
    age_s: float
    late: int
    missed: int
    gaps: int
    why: str


@dataclass(frozen=True, slots=True)
class View:
    """Hold everything that is shown at one moment; `energy` (J) is of the first `energy_s` seconds."""

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
    phases: tuple[PhaseLine, ...]
    meters: tuple[MeterLine, ...]
    work: dict[str, float]
    busy: float
    every_s: float
    notes: tuple[str, ...] = ()
    own: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return plain data: quantities as `show --json` has them, NaN as null."""
        plain: dict[str, Any] = _plain(asdict(self) | {"energy": self.energy})
        lists: dict[str, Sequence[PowerRow | PhaseLine]] = {"rows": self.rows, "phases": self.phases}
        for key, rows in lists.items():
            for data, row in zip(plain[key], rows, strict=True):
                data["energy"] = _plain(row.energy)
        return plain


def _plain(value: Any) -> Any:
    if hasattr(value, "to_json"):
        return _plain(value.to_json())
    if isinstance(value, float):
        return finite_or_none(value)
    if isinstance(value, dict):
        return {key: _plain(v) for key, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, (list, tuple)) else value


@dataclass
class _Host:
    ends: Ends
    events: Events
    marks: Marks
    now_ns: int = 0

    @property
    def name(self) -> str:
        return self.ends.folder.name

    def read(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # being sealed, or gone: the next look tells
            self.events.read()
            self.marks.read()
            self.ends.read()
        # On another machine it is the time of the last reading: its clock cannot be asked.
        self.now_ns = monotonic_ns() if self.ends.boot in ("", read_boot_id()) else self.ends.newest_ns


class Watched:
    """Follow one run by its folder; nothing is written there."""

    def __init__(self, run: Path, every_s: float, *, share: float = SHARE, own: bool = False) -> None:
        """Take a run folder and how often it is looked at. Raises NotARun, StoreError."""
        self.run, self.every_s, self.own = run, every_s, own
        self.meta = read_meta(run)
        self.energies = Energies(share=share)
        self._hosts: dict[str, _Host] = {}

    def look(self, notes: Iterable[str] = (), *, energy: bool = True) -> View:
        """Read what has come and return all of it; without `energy` at once. Raises OSError, StoreError."""
        state = str(run_state(self.run, self.meta))
        for folder in host_dirs(self.run):
            if folder.name not in self._hosts:
                parts = Ends(folder, self.every_s), Events(folder), Marks(folder)
                self._hosts[folder.name] = _Host(*parts)
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
        phases = shown_phases(first.marks.phases(now)) if start else []
        if start and energy:
            self.energies.look(_starts(hosts, start), phases)
        said = (*notes, *([self.energies.problem] if self.energies.problem else []))
        return self._view(state, hosts, None if start is None else (now - start) / NS, phases, said)

    def close(self) -> None:
        """Let go of the run."""
        self.energies.close()

    def _view(
        self,
        state: str,
        hosts: Sequence[_Host],
        elapsed_s: float | None,
        phases: Sequence[MarkedPhase],
        notes: tuple[str, ...],
    ) -> View:
        whole = self.energies.whole
        known = [whole[h.name] for h in hosts if h.name in whole]
        used = _summed_energy([now.energy for now in known]) if len(known) == len(hosts) else {}
        scopes = [scope for h in hosts for scope in h.ends.scopes.values()]
        rows, now_w = power_rows(scopes, used)
        busy = [h.ends.states.get("host", {}).get("busy", math.nan) for h in hosts]
        work: dict[str, float] = {}
        for kind, amount in (item for h in hosts for item in h.marks.work.items()):
            work[kind] = work.get(kind, 0.0) + amount
        name = self.meta.get("name")
        return View(
            run=str(self.meta.get("id", self.run.name)),
            name=name if isinstance(name, str) else None,
            hosts=tuple(h.name for h in hosts),
            command=shlex.join(map(str, self.meta.get("command") or ())),
            state=state,
            elapsed_s=elapsed_s,
            now_w=now_w,
            energy=used.get("measured"),
            energy_s=min((now.seconds for now in known), default=0.0),
            estimate=any(now.estimate for now in known),
            rows=tuple(rows),
            gpus=tuple(gpu for h in hosts for gpu in _gpus(h, several=len(hosts) > 1)),
            phases=tuple(self._phase(p, phases) for p in phases),
            meters=tuple(m for h in hosts for m in _meters(h, several=len(hosts) > 1, lacking=not scopes)),
            work=work,
            busy=sum(busy) / len(busy),
            every_s=self.every_s,
            notes=notes,
            own=self.own,
        )

    def _phase(self, phase: MarkedPhase, among: Sequence[MarkedPhase]) -> PhaseLine:
        around = {p.id: p for p in among}
        depth, parent = 0, phase.parent
        while parent in around and depth < MOST_PHASES:
            depth, parent = depth + 1, around[parent].parent
        energy = self.energies.phases.get((phase.id, phase.start_ns))
        return PhaseLine(escape_unprintable(phase.title), depth, phase.duration_s, energy, phase.open_end)


def shown_phases(phases: Sequence[MarkedPhase]) -> list[MarkedPhase]:
    """Return the phases that go on, the outermost first, and the last ones that have ended; no steps; in order."""
    named = [p for p in phases if p.steps is None]
    still = [p for p in named if p.open_end][-MOST_PHASES:]
    ended = sorted((p for p in named if not p.open_end), key=lambda p: p.end_ns)
    ended = ended[max(len(ended) + len(still) - MOST_PHASES, 0) :]
    return sorted((*still, *ended), key=lambda p: (p.start_ns, -p.end_ns))


def power_rows(scopes: Sequence[Scope], used: dict[str, Quantity]) -> tuple[list[PowerRow], float]:
    """Return a line for each family, those of a family of few, what everything is and the rest; and the power now."""
    live = [s for s in scopes if s.powers]
    held = {(s.host, s.scope) for s in live}
    tree = {f"{s.host}/{s.scope}": f"{s.host}/{s.parent}" if s.parent else None for s in live}
    rows: list[PowerRow] = []
    for name in sorted({find_family(s.scope) for s in live}, key=rank_scope):
        members = [s for s in live if find_family(s.scope) == name]
        if name in INNER_FAMILIES or (name in CORDS and all((s.host, s.parent) in held for s in members)):
            continue
        top = set(find_roots([f"{s.host}/{s.scope}" for s in members], tree))
        members = [s for s in members if f"{s.host}/{s.scope}" in top]
        label = members[0].scope if len(members) == 1 else f"{name} ({len(members)})"
        rows.append(_row(label, members, used.get(name)))
    stack = stack_scopes(live)
    outer = [s for s, _ in stack]
    if len({find_family(s.scope) for s in outer}) > 1:
        rows.append(_row("measured", outer, used.get("measured"), total=True))
    for name in sorted({find_family(s.scope) for s, inner in stack if inner}, key=rank_scope):
        pairs = [(s, inner) for s, inner in stack if inner and find_family(s.scope) == name]
        rows.append(_rest(name, pairs, used))
    return rows, sum(s.now_w for s in outer) if outer else math.nan


def _row(label: str, members: Sequence[Scope], energy: Quantity | None, *, total: bool = False) -> PowerRow:
    powers = tuple(members[0].powers) if len(members) == 1 else _sums([s.powers for s in members])
    peak = members[0].peak_w if len(members) == 1 else _largest(powers)
    estimate = any(s.estimate for s in members)
    return PowerRow(label, powers[-1], powers, peak, energy, total, estimate)


def _rest(name: str, pairs: Sequence[tuple[Scope, Sequence[Scope]]], used: dict[str, Quantity]) -> PowerRow:
    whole = _sums([s.powers for s, _ in pairs])
    parts = _sums([s.powers for _, inner in pairs for s in inner])
    count = min(len(whole), len(parts))
    powers = tuple(a - b for a, b in zip(whole[-count:], parts[-count:], strict=True))
    families = dict.fromkeys(find_family(s.scope) for _, inner in pairs for s in inner)
    energy = None
    if name in used and all(f in used for f in families):
        energy = used[name] - total(used[f] for f in families)
    return PowerRow(f"rest of {name}", powers[-1], powers, _largest(powers), energy, total=True)


def _sums(histories: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return sums of histories that end at the same time: a sum that lacks one is none."""
    count = min(len(h) for h in histories)
    return tuple(sum(values) for values in zip(*(list(h)[-count:] for h in histories), strict=True))


def _largest(powers: Sequence[float]) -> float:
    return max((w for w in powers if not math.isnan(w)), default=math.nan)


def _summed_energy(energies: Sequence[dict[str, Quantity]]) -> dict[str, Quantity]:
    names = dict.fromkeys(name for of in energies for name in of)
    return {name: total(of[name] for of in energies if name in of) for name in names}


def _starts(hosts: Sequence[_Host], start_ns: int) -> list[Any]:
    """Return what energies are read from: the start in each host's own time, by UTC where it has another clock."""
    first, found = hosts[0], []
    for host in hosts:
        start = start_ns
        if host is not first and host.ends.boot != first.ends.boot:
            if first.events.pair is None or host.events.pair is None:
                continue
            mono, utc = first.events.pair
            start = start_ns - mono + utc - host.events.pair[1] + host.events.pair[0]
        found.append((host.ends.folder, start, host.marks.steps))
    return found


def _gpus(host: _Host, *, several: bool) -> list[GpuRow]:
    found = []
    for name in sorted((s for s in host.ends.scopes if find_family(s) == "gpu" and "/" not in s), key=rank_scope):
        states, scope = host.ends.states.get(name, {}), host.ends.scopes[name]
        if not scope.powers:
            continue
        label = f"{host.name}/{name}" if several else name

        def of(*names: str, states: dict[str, float] = states) -> float:
            return next((states[n] for n in names if not math.isnan(states.get(n, math.nan))), math.nan)

        found.append(
            GpuRow(
                label=label,
                power=_row(label, [scope], None),
                cap_w=of("cap_enforced_w", "cap_requested_w"),
                load=of("load"),
                memory_b=of("memory_used_b"),
                temperature_c=of("temperature_c"),
                clock_hz=of("sm_clock_hz", "gfx_clock_hz"),
            )
        )
    return found


def _meters(host: _Host, *, several: bool, lacking: bool) -> list[MeterLine]:
    """Return how the meters of a host get on; those that are not there only where nothing is measured at all."""
    now, found = host.now_ns, []
    for name, health in sorted(host.events.meters.items()):
        last = host.ends.last_ns.get(name)
        age = math.nan if last is None else max(now - last, 0) / NS
        limit = max(SILENT * host.ends.periods.get(name, 0.0), LEAST_SILENT_S)
        why = next(iter(health.silent.values()), health.why)
        state = "failing" if health.silent else "silent" if not age <= limit else "ok"
        if health.status == "unavailable" and last is None:
            state = "absent"
        if state == "absent" and not lacking:
            continue
        label = f"{host.name}/{name}" if several else name
        found.append(
            MeterLine(
                escape_unprintable(label), state, age, health.late, health.missed, health.gaps, escape_unprintable(why)
            )
        )
    return found
