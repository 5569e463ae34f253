"""Read the last stretch of what one host records, in the host's own time: what a run that goes on is watched by."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from joulelab.analysis.breakdown import break_down_energy
from joulelab.analysis.channels import load_channels
from joulelab.analysis.joining import join_meters
from joulelab.analysis.result import ChannelEnergy, ScopeResult
from joulelab.core.clock import NS
from joulelab.core.quantity import Quantity, total
from joulelab.core.scope import find_family
from joulelab.store.folder import read_meta
from joulelab.store.run import Run
from joulelab.store.safe_files import open_regular
from joulelab.store.table import load_table, table_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from joulelab.analysis.channels import ScopeChannels
    from joulelab.analysis.readings import Ints
    from joulelab.store.table import Segment, Table

Key = tuple[str, str]
FAST_S = 1.0  # slower streams are not waited for
MOST_ROWS = 60_000  # from so many rows on the older half is summed up and not read again
ROUNDS = 6  # but never less than so many readings of the slowest meter
BEFORE_S = 5.0  # and so much before, which edges and the powers near them are known by
LATELY_S = 5.0  # what power is the mean of
SILENT_S = 3.0  # a meter that has said nothing for so long is not waited for
_STAMPS = struct.Struct("<qq")


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Hold what a run has used from a start up to its last readings (monotonic ns), by family and as `measured`.

    `energy` (J) is since the start, `power_w` the mean of the last seconds; `estimate` says that not all was measured.
    """

    start_ns: int
    at_ns: int
    energy: dict[str, Quantity]
    power_w: dict[str, float]
    estimate: bool = False

    @property
    def seconds(self) -> float:
        """Return how long that is."""
        return (self.at_ns - self.start_ns) / NS


class _RecentRun(Run):
    """Read the rows of one host from a time on, and no marks."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder.parent, read_meta(folder.parent))
        self.from_ns = 0
        self.rows = 0
        self._folder = folder
        self._skipped: dict[Path, int] = {}

    def marks(self) -> list[dict[str, Any]]:
        """Return none: they may be many, and are not needed."""
        return []

    def clock_error_ns(self, host: str) -> int | None:  # noqa: ARG002 - the one host there is
        """Return that its own time is right."""
        return 0

    def look(self) -> None:
        """Forget what was read: rows have come, or the start has moved."""
        self._look.clear()
        self.rows = sum(table.rows for table in self.tables())

    def _joint(self, host: str) -> None:  # noqa: ARG002
        return None

    def _tables(self) -> Iterator[Table]:
        for meter, table in table_names(self._folder):
            yield self._table(self._folder.name, meter, table)

    def _table(self, host: str, meter: str, table: str) -> Table:
        key = (host, meter, table)
        if key not in self._loaded:
            found = load_table(self._folder, meter, table, self._con)
            self._loaded[key] = replace(found, segments=tuple(self._cut(s) for s in found.segments))
        return self._loaded[key]

    def _cut(self, segment: Segment) -> Segment:
        """Return a journal as if it began at the first row that is wanted."""
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

    def rewind(self, from_ns: int) -> None:
        """Read from an earlier time again."""
        self.from_ns = from_ns
        self._skipped.clear()


@dataclass
class _EarlierEnergy:
    """Hold what was used from the start to `to_ns`, which is not read again, by host and scope (J)."""

    to_ns: int
    energy: dict[Key, Quantity] = field(default_factory=dict)


class EnergyTail:
    """Tell what a host's recording has used since a start, reading only what has come since it was last summed up.

    The whole is the sum of its parts, so that sums of earlier stretches stay right. `steps` returns times of work
    done lately (monotonic ns), which exclude that the load is in step with a sensor.
    """

    def __init__(self, folder: Path, start_ns: int, steps: Callable[[], Ints | None] | None = None) -> None:
        """Take a host's folder in a run; raises StoreError where there is no run."""
        self.start_ns = start_ns
        self._run = _RecentRun(folder)
        self._steps = steps
        self._sum = _EarlierEnergy(start_ns)
        self._groups: dict[str, list[Key]] = {}
        self._grouped: set[Key] = set()
        self._run.rewind(start_ns - round(BEFORE_S * NS))

    def read(self, until_ns: int | None = None) -> LiveFigures | None:
        """Return what was used up to the last readings, or up to a time; None where nothing is measured by then.

        Raises StoreError, OSError, ValueError where files are being begun or damaged.
        """
        self._run.look()
        channels = load_channels(self._run)
        b = _reached(channels) if until_ns is None else until_ns
        if b <= self._sum.to_ns or not channels:
            return None
        scopes = {(s.host, s.scope): s for s in join_meters(channels, self._sum.to_ns, b).scopes}
        if self._sum.energy and not scopes.keys() <= self._sum.energy.keys():
            # A meter that came late: it stands for what it may have missed, too.
            self._sum = _EarlierEnergy(self.start_ns)
            self._run.rewind(self.start_ns - round(BEFORE_S * NS))
            return self.read(until_ns)
        if not scopes.keys() <= self._grouped:
            self._group(scopes, b)
        now = self._now(scopes, b)
        self._sum_up(scopes, b)
        return now

    def close(self) -> None:
        """Let go of what readers hold."""
        self._run.close()

    def _now(self, scopes: dict[Key, ScopeChannels], b: int) -> LiveFigures:
        steps = self._steps() if self._steps is not None else None
        # Where a meter has fallen silent for long, a sum that lacks it is no sum.
        groups = {name: some for name, some in self._groups.items() if scopes.keys() >= set(some)}
        members = dict.fromkeys(key for some in groups.values() for key in some)
        since = max(self.start_ns, b - round(LATELY_S * NS))
        used, power = {}, {}
        for key in members:
            best = scopes[key].best
            recent = best.energy(self._sum.to_ns, b, steps)
            used[key] = self._sum.energy[key] + recent if key in self._sum.energy else recent
            lately = recent if since == self._sum.to_ns else best.energy(since, b, steps)
            power[key] = lately.value * NS / (b - since)
        return LiveFigures(
            self.start_ns,
            b,
            {name: total(used[key] for key in some) for name, some in groups.items()},
            {name: sum(power[key] for key in some) for name, some in groups.items()},
            any(scopes[key].best.spec.estimate for key in groups.get("measured", ())),
        )

    def _group(self, scopes: dict[Key, ScopeChannels], b: int) -> None:
        """Find the sums that count nothing twice, as a result has them: who is in them, whatever they used."""
        bare = tuple(_without_figures(scope) for scope in scopes.values())
        names = {find_family(scope) for _, scope in scopes} | {"measured"}
        groups, _ = break_down_energy(bare, list(scopes.values()), 1.0, self._sum.to_ns, b)
        self._groups = {g.name: list(zip(g.hosts, g.scopes, strict=True)) for g in groups if g.name in names}
        self._grouped = set(scopes)

    def _sum_up(self, scopes: dict[Key, ScopeChannels], b: int) -> None:
        """Sum up the older half of what is read, where it has become much."""
        slowest = max((s.best.step_s for s in scopes.values()), default=0.0)
        middle = self._sum.to_ns + (b - self._sum.to_ns) // 2
        if self._run.rows < MOST_ROWS or (b - middle) < ROUNDS * slowest * NS:
            return
        steps = self._steps() if self._steps is not None else None
        old = self._sum
        self._sum = _EarlierEnergy(middle)
        for key, scope in scopes.items():
            part = scope.best.energy(old.to_ns, middle, steps)
            energy = old.energy[key] + part if key in old.energy else part
            self._sum.energy[key] = _merged(energy, (self.start_ns, middle))
        self._run.from_ns = middle - round((BEFORE_S + ROUNDS / 2 * slowest) * NS)


def _without_figures(scope: ScopeChannels) -> ScopeResult:
    best, nothing = scope.best, Quantity(0.0)
    spec = best.spec
    reading = ChannelEnergy(best.meter, spec.name, spec.kind, nothing, spec.accuracy.source, "", spec.estimate, 0, 0.0)
    return ScopeResult(scope.scope, scope.host, scope.parent, "", "", reading, nothing, None, None, None)


def _merged(energy: Quantity, edges_ns: tuple[int, ...]) -> Quantity:
    """Merge the terms of stretches that lie behind, each with a time of its own in its source, by their kind."""
    kept: dict[str, float] = {}
    for source, u in energy.terms.items():
        time = source.rpartition(":")[2]
        if time.isdecimal() and int(time) not in edges_ns:
            kind = source.split(":", 1)[0]
            name = f"{kind}:earlier"
            kept[name] = (kept.get(name, 0.0) ** 2 + u * u) ** 0.5
        else:
            kept[source] = kept.get(source, 0.0) + u
    return replace(energy, terms=kept)


def _reached(channels: list[ScopeChannels]) -> int:
    """Return up to when everything that is read fast, and still speaks, has been read (monotonic ns)."""
    last = [(int(c.readings.t0_ns[-1]), c.step_s) for s in channels for c in s.channels]
    newest = max((t for t, _ in last), default=0)
    return min((t for t, step_s in last if step_s <= FAST_S and newest - t < SILENT_S * NS), default=newest)
