"""Compute the energy of a live run, from its start to its last readings, with its uncertainty: the figures of `show`.

Only the last part of a host's journals is read again; older parts are summed up. The energy of a whole is the sum
of its parts, so earlier sums stay right.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.breakdown import break_down_energy
from joulelab.analysis.channels import load_channels
from joulelab.analysis.joining import join_meters
from joulelab.analysis.live_state import FAST_S, NOW_S, STALE_PERIODS, STALE_S, JournalFollower
from joulelab.analysis.result import ChannelEnergy, ScopeResult
from joulelab.core.clock import NS
from joulelab.core.quantity import Quantity, add_quantities
from joulelab.core.scope import find_family
from joulelab.store.run_folder import read_meta
from joulelab.store.run_reader import Run
from joulelab.store.safe_files import open_regular
from joulelab.store.sample_tables import list_table_names, load_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from joulelab.analysis.channels import EnergyChannel, ScopeChannels
    from joulelab.analysis.readings import Ints
    from joulelab.store.sample_tables import SampleTable, TableSegment

ScopeKey = tuple[str, str]  # host, scope
MOST_ROWS = 60_000  # with more rows than this the older half is summed up
LEAST_READINGS = 24  # of the slowest meter that are always read again: half of them refine the steps at an edge
BEFORE_S = 5.0  # readings before the start that its edge needs
_STAMPS = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class LiveScope:
    """Hold the energy (J) of one scope since the start, with the names that its meter states.

    `is_silent`: its meter gives no readings now; its energy since the last one is assumed, not measured.
    """

    host: str
    scope: str
    parent: str | None
    model: str
    energy: Quantity
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Hold the figures of a host from a start to its last readings (monotonic ns), by family and as `measured`.

    `energy` (J) is since the start, `power_w` is power now; `estimate`: a part was not measured. `scopes` and `scope_w`
    are the same for each scope.
    """

    start_ns: int
    at_ns: int
    energy: dict[str, Quantity]
    power_w: dict[str, float] = field(default_factory=dict)
    estimate: bool = False
    scopes: tuple[LiveScope, ...] = ()
    scope_w: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Return the time between start and last readings in s."""
        return (self.at_ns - self.start_ns) / NS


class LiveHost:
    """Follow one host of a run: power now by `LiveState`, energy since a start by `EnergyTail`."""

    def __init__(
        self, folder: Path, start_ns: int, steps: Callable[[], Ints | None] | None = None, *, over_s: float = NOW_S
    ) -> None:
        """Take the folder of a host; power is the mean over `over_s`. Raises StoreError if there is no run."""
        self._tail = EnergyTail(folder, start_ns, steps)
        self._follower = JournalFollower(folder, over_s)
        self._over_s = over_s

    def read(self, until_ns: int | None = None) -> LiveFigures | None:
        """Return the figures up to the last readings, or up to a time; None if nothing was measured before.

        Raises StoreError, OSError, ValueError if files are incomplete or damaged.
        """
        figures = self._tail.read(until_ns)
        if figures is None:
            return None
        self._follower.read()
        state = self._follower.state
        now_ns = state.reached_ns if until_ns is None else until_ns
        power_w = state.sum_powers(now_ns, self._over_s)
        found = state.find_powers(now_ns - round(self._over_s * NS), now_ns)
        state.forget(now_ns - round(self._over_s * NS))
        return replace(
            figures,
            power_w={name: power_w[name] for name in figures.energy if name in power_w},
            scope_w={scope: power.watts for scope, power in found.items()},
        )

    def close(self) -> None:
        """Release the files."""
        self._tail.close()


class EnergyTail:
    """Compute the energy of one host since a start, reading only rows that are not summed up yet.

    `steps` returns recent times of training steps (monotonic ns): they can exclude a load that repeats like a sensor.
    """

    def __init__(self, folder: Path, start_ns: int, steps: Callable[[], Ints | None] | None = None) -> None:
        """Take a host's folder in a run; raises StoreError where there is no run."""
        self.start_ns = start_ns
        self._run = _RecentRun(folder)
        self._steps = steps
        self._earlier = _EarlierEnergy(start_ns)
        self._groups: dict[str, list[ScopeKey]] = {}
        self._grouped: set[ScopeKey] = set()
        self._run.rewind(start_ns - round(BEFORE_S * NS))

    def read(self, until_ns: int | None = None) -> LiveFigures | None:
        """Return the energy up to the last readings, or up to a time; None if nothing was measured before.

        Raises StoreError, OSError, ValueError if files are incomplete or damaged.
        """
        self._run.refresh()
        channels = load_channels(self._run)
        b_ns = _find_reached_ns(channels) if until_ns is None else until_ns
        if b_ns <= self._earlier.to_ns or not channels:
            return None
        scopes = {(s.host, s.scope): s for s in join_meters(channels, self._earlier.to_ns, b_ns).scopes}
        if self._earlier.energy and not scopes.keys() <= self._earlier.energy.keys():
            # A meter that came late counts from the start, with a term for the time it missed.
            self._earlier = _EarlierEnergy(self.start_ns)
            self._run.rewind(self.start_ns - round(BEFORE_S * NS))
            return self.read(until_ns)
        if not scopes.keys() <= self._grouped:
            self._group_scopes(scopes, b_ns)
        figures = self._sum_groups(scopes, b_ns)
        self._sum_up_older_half(scopes, b_ns)
        return figures

    def close(self) -> None:
        """Release the files."""
        self._run.close()

    def _sum_groups(self, scopes: dict[ScopeKey, ScopeChannels], b_ns: int) -> LiveFigures:
        steps = self._steps() if self._steps is not None else None
        # A meter without rows for long is missing in `scopes`; a sum that lacks it is no number.
        groups = {name: keys for name, keys in self._groups.items() if scopes.keys() >= set(keys)}
        used: dict[ScopeKey, Quantity] = {}
        for key in dict.fromkeys(key for keys in groups.values() for key in keys):
            recent = scopes[key].best.energy(self._earlier.to_ns, b_ns, steps)
            used[key] = self._earlier.energy[key] + recent if key in self._earlier.energy else recent
        newest_ns = max((_find_last_ns(scope.best) for scope in scopes.values()), default=0)
        return LiveFigures(
            self.start_ns,
            b_ns,
            {name: add_quantities(used[key] for key in keys) for name, keys in groups.items()},
            estimate=any(scopes[key].best.spec.estimate for key in groups.get("measured", ())),
            scopes=tuple(_describe_scope(scopes[key], energy, newest_ns) for key, energy in used.items()),
        )

    def _group_scopes(self, scopes: dict[ScopeKey, ScopeChannels], b_ns: int) -> None:
        """Return the sums of a result in which nothing is counted twice."""
        bare = tuple(_make_bare_result(scope) for scope in scopes.values())
        names = {find_family(scope) for _, scope in scopes} | {"measured"}
        groups, _ = break_down_energy(bare, list(scopes.values()), 1.0, self._earlier.to_ns, b_ns)
        self._groups = {g.name: list(zip(g.hosts, g.scopes, strict=True)) for g in groups if g.name in names}
        self._grouped = set(scopes)

    def _sum_up_older_half(self, scopes: dict[ScopeKey, ScopeChannels], b_ns: int) -> None:
        slowest = max((s.best.step_s for s in scopes.values()), default=0.0)
        middle = self._earlier.to_ns + (b_ns - self._earlier.to_ns) // 2
        if self._run.rows < MOST_ROWS or (b_ns - middle) < LEAST_READINGS * slowest * NS:
            return
        steps = self._steps() if self._steps is not None else None
        before = self._earlier
        self._earlier = _EarlierEnergy(middle)
        for key, scope in scopes.items():
            part = scope.best.energy(before.to_ns, middle, steps)
            energy = before.energy[key] + part if key in before.energy else part
            self._earlier.energy[key] = _merge_terms(energy, (self.start_ns, middle))
        self._run.from_ns = middle - round((BEFORE_S + LEAST_READINGS / 2 * slowest) * NS)


@dataclass
class _EarlierEnergy:
    """Hold the energy (J) from the start to `to_ns`, whose rows are not read again."""

    to_ns: int
    energy: dict[ScopeKey, Quantity] = field(default_factory=dict)


class _RecentRun(Run):
    """Read the rows of one host after a time, and no marks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.parent, read_meta(folder.parent))
        self.from_ns = 0
        self.rows = 0
        self._folder = folder
        self._skipped: dict[Path, int] = {}

    def marks(self) -> list[dict[str, Any]]:
        """Return no marks: they may be many, and are not needed."""
        return []

    def clock_error_ns(self, host: str) -> int | None:  # noqa: ARG002 - there is one host
        """Return 0: all times are of the host's own clock."""
        return 0

    def refresh(self) -> None:
        """Read the folder again, because there are new rows, or the start has moved."""
        self._look.clear()
        self.rows = sum(table.rows for table in self.tables())

    def rewind(self, from_ns: int) -> None:
        """Read from an earlier time again."""
        self.from_ns = from_ns
        self._skipped.clear()

    def _joint(self, host: str) -> None:  # noqa: ARG002
        return None

    def _tables(self) -> Iterator[SampleTable]:
        for meter, table in list_table_names(self._folder):
            yield self._table(self._folder.name, meter, table)

    def _table(self, host: str, meter: str, table: str) -> SampleTable:
        key = (host, meter, table)
        if key not in self._loaded:
            found = load_table(self._folder, meter, table, self._con)
            self._loaded[key] = replace(found, segments=tuple(self._cut_segment(s) for s in found.segments))
        return self._loaded[key]

    def _cut_segment(self, segment: TableSegment) -> TableSegment:
        """Return a journal without the rows before `from_ns`."""
        if segment.path is None:
            return segment
        header, low, high = segment.header, self._skipped.get(segment.path, 0), segment.rows
        with open_regular(segment.path) as file:
            while low < high:
                middle = (low + high) // 2
                file.seek(header.data_offset + middle * header.row_bytes + 8)
                if _STAMPS.unpack(file.read(_STAMPS.size))[0] < self.from_ns:
                    low = middle + 1
                else:
                    high = middle
        self._skipped[segment.path] = low
        moved = replace(header, data_offset=header.data_offset + low * header.row_bytes)
        return replace(segment, header=moved, rows=segment.rows - low)


def _describe_scope(scope: ScopeChannels, energy: Quantity, newest_ns: int) -> LiveScope:
    best = scope.best
    is_silent = newest_ns - _find_last_ns(best) >= max(STALE_PERIODS * best.step_s, STALE_S) * NS
    return LiveScope(scope.host, scope.scope, scope.parent, best.stream.model, energy, is_silent)


def _find_last_ns(channel: EnergyChannel) -> int:
    """Return the time of the last reading (monotonic ns); of a sum, that of the member without readings for longest."""
    if channel.members:
        return min(map(_find_last_ns, channel.members))
    return int(channel.readings.t0_ns[-1])


def _make_bare_result(scope: ScopeChannels) -> ScopeResult:
    best, nothing = scope.best, Quantity(0.0)
    spec = best.spec
    reading = ChannelEnergy(best.meter, spec.name, spec.kind, nothing, spec.accuracy.source, "", spec.estimate, 0, 0.0)
    return ScopeResult(scope.scope, scope.host, scope.parent, "", "", reading, nothing, None, None, None)


def _merge_terms(energy: Quantity, edges_ns: tuple[int, ...]) -> Quantity:
    """Merge the terms of earlier edges by kind: every edge has its own source, so their number would grow for ever."""
    merged: dict[str, float] = {}
    for source, u in energy.terms.items():
        time = source.rpartition(":")[2]
        if time.isdecimal() and int(time) not in edges_ns:
            name = f"{source.split(':', 1)[0]}:earlier"
            merged[name] = (merged.get(name, 0.0) ** 2 + u * u) ** 0.5
        else:
            merged[source] = merged.get(source, 0.0) + u
    return replace(energy, terms=merged)


def _find_reached_ns(channels: list[ScopeChannels]) -> int:
    """Return the time (monotonic ns) up to which all fast channels were read, except silent ones."""
    last = [(int(c.readings.t0_ns[-1]), c.step_s) for s in channels for c in s.channels]
    newest = max((t for t, _ in last), default=0)
    return min((t for t, step_s in last if step_s <= FAST_S and newest - t < STALE_S * NS), default=newest)
