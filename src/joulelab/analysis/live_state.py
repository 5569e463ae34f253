"""Follow readings as they come: compute power now and energy so far of every scope, and count nothing twice.

`joulelab watch`, `track`, the trackers, the dashboard and the agent all use these definitions:

- A value that was not read is a gap, never a number.
- A reading is current ("now") for three of its periods, at least 3 s. After that, the power is unknown.
- The power of a channel is the mean of its readings in the given time span, or the last reading before. A counter
  gives power by its rise over at least five of its steps.
- A scope is read by its best channel: measured before estimated, a power before a counter, a short window first.
- A sum is NaN if a part is missing.

Energy here is between readings: counters are subtracted, powers integrated. `live_energy` cuts it at the start of a
run and adds the interval. This module imports neither numpy nor DuckDB: the agent runs it for months.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import isfinite, isnan, nan
from typing import TYPE_CHECKING, TypeVar

from joulelab.core.clock import NS
from joulelab.core.errors import StoreError
from joulelab.core.scope import find_family, find_parent, find_roots, rank_scope
from joulelab.store.journal import JournalHeader, make_row_struct, read_header
from joulelab.store.safe_files import open_regular

if TYPE_CHECKING:
    import struct
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from joulelab.analysis.breakdown import ScopePlace
    from joulelab.core.spec import Spec, Stream

P = TypeVar("P", bound="ScopePlace")
PowerRank = tuple[bool, bool, float, float]  # estimate, not a power, window, period: the smallest is the best
NOW_S = 1.0  # power now is the mean over this time
STALE_PERIODS, STALE_S = 3.0, 3.0  # a reading is now for three periods, at least 3 s
FAST_S = 1.0  # streams with a longer period are not waited for
COUNTER_STEPS = 5  # the time of a single step is known to one update only, so power is taken over five
NOT_POWER = ("job", "host", "workload")  # families that are not parts of a node
MOST_BYTES = 64 << 20  # of one journal that are read at once

# No device of a family draws more (W): a counter that rises faster is another counter than before.
MOST_W = {"gpu": 5e3, "cpu": 5e3, "core": 5e3, "uncore": 5e3, "dram": 5e3, "rack": 1e6}
MOST_NODE_W = 1e5
UNKNOWN_STEP_S = 60.0  # a counter whose Spec has no update period steps at least this often
CARRIED_PERIODS, CARRIED_S = 5.0, 10.0  # longest pause between two readings over which power is integrated
STUCK_W, STUCK_STEPS, STUCK_S = 1.0, 20, 10.0  # a counter that rests for 20 steps, at least 10 s, above 1 W is stuck


class CounterTotal:
    """Sum the rises of an energy counter (J), also over wraps and resets; `total_j` never falls.

    A fall that no wrap explains, or a rise that no power explains, is a reset: the energy
    meanwhile is unknown. The power that was read beside the counter is used instead; without one nothing is added.
    """

    __slots__ = ("_allowed_j", "_carried_ns", "_last_j", "_last_ns", "_limit_w", "_modulus_j", "resets", "total_j")

    def __init__(self, spec: Spec, period_s: float, scope: str) -> None:
        self.total_j, self.resets = 0.0, 0
        self._modulus_j = spec.modulus
        most_w = MOST_W.get(find_family(scope), MOST_NODE_W)
        self._limit_w = min(2 * spec.limits[1], most_w) if spec.limits and spec.limits[1] > 0 else most_w
        self._allowed_j = 2 * spec.accuracy.quantum + self._limit_w * 2 * (spec.update_s or UNKNOWN_STEP_S)
        self._carried_ns = _carried_ns(period_s)
        self._last_j, self._last_ns = nan, 0

    @property
    def is_read(self) -> bool:
        """Return whether the counter was ever read."""
        return not isnan(self._last_j)

    def resume(self, other: CounterTotal) -> None:
        """Continue the total of an earlier counter of the same device."""
        self.total_j, self.resets = other.total_j, other.resets
        self._last_j, self._last_ns = other._last_j, other._last_ns

    def add(self, t_ns: int, value_j: float, power_w: float = nan) -> float:
        """Take a reading (NaN: none) and return the energy (J) that it adds; `power_w` was read at the same time."""
        if not isfinite(value_j):
            return 0.0
        before, since_ns = self._last_j, t_ns - self._last_ns
        self._last_j, self._last_ns = value_j, t_ns
        if isnan(before):
            return 0.0
        risen = value_j - before
        if risen < 0 and self._modulus_j is not None:
            risen += self._modulus_j
        if not 0 <= risen <= self._limit_w * since_ns / NS + self._allowed_j:
            self.resets += 1
            risen = power_w * since_ns / NS if power_w > 0 and since_ns <= self._carried_ns else 0.0
        self.total_j += risen
        return risen


class PowerIntegral:
    """Integrate power (W) over time; a pause without readings adds nothing."""

    __slots__ = ("_carried_ns", "_last_ns", "_last_w", "total_j")

    def __init__(self, period_s: float) -> None:
        self.total_j = 0.0
        self._carried_ns = _carried_ns(period_s)
        self._last_w, self._last_ns = nan, 0

    def add(self, t_ns: int, power_w: float) -> float:
        """Take a reading (NaN: none) and return the energy (J) that it adds."""
        if not isfinite(power_w) or power_w < 0:
            return 0.0
        before_w, since_ns = self._last_w, t_ns - self._last_ns
        self._last_w, self._last_ns = power_w, t_ns
        if isnan(before_w) or not 0 < since_ns <= self._carried_ns:
            return 0.0
        added = (before_w + power_w) / 2 * since_ns / NS
        self.total_j += added
        return added


def _carried_ns(period_s: float) -> int:
    return round(max(CARRIED_PERIODS * period_s, CARRIED_S) * NS)


@dataclass(frozen=True, slots=True)
class ChannelPower:
    """Hold the power of one channel (W), its rank among the channels of its scope, and its last reading time (ns)."""

    rank: PowerRank
    watts: float
    estimate: bool
    at_ns: int


class _ChannelState:
    """Hold the recent readings of one channel: powers, or steps of a counter."""

    def __init__(self, index: int, spec: Spec, stream: Stream) -> None:
        self.index, self.spec = index, spec
        pace_s = max(stream.period_s, spec.update_s or 0.0)
        self.stale_ns = round(max(STALE_PERIODS * pace_s, STALE_S) * NS)
        self.rank: PowerRank = (spec.estimate, spec.kind != "power", spec.window_s or 0.0, stream.period_s)
        window_s = spec.window_s or 0.0
        # In one stream the channel that leaves less time unseen between two readings is better.
        self.order = (*self.rank[:2], max(1 - window_s / stream.period_s, 0.0) if stream.period_s else 0.0, window_s)
        self.counter = CounterTotal(spec, stream.period_s, stream.scope) if spec.kind == "counter" else None
        self._steps_ns = round(COUNTER_STEPS * (spec.update_s or pace_s) * NS) if self.counter else 0
        self.times: list[int] = []
        self.is_stuck = False
        self._values: list[float] = []  # W, or the total of the counter in J
        self._resets: list[int] = []
        self._rests_ns = 0  # since when the counter has not stepped

    def add(self, t_ns: int, value: float, power_w: float) -> None:
        if self.counter is None:
            self._keep(t_ns, value, 0)
            return
        known, resets = self.counter.is_read, self.counter.resets
        self._rests_ns = self._rests_ns or t_ns
        risen = self.counter.add(t_ns, value, power_w)
        if known and (risen > 0 or self.counter.resets != resets):
            self._keep(t_ns, self.counter.total_j, self.counter.resets)

    def _keep(self, t_ns: int, value: float, resets: int) -> None:
        if not self.times or t_ns > self.times[-1]:  # an older value that was read again counts once
            self.times.append(t_ns)
            self._values.append(value)
            self._resets.append(resets)

    def check_stuck(self, t_ns: int, used_j: float) -> None:
        """Set `is_stuck` if the counter has not changed although `used_j` is far above one step."""
        if self.times or self.is_stuck or self.counter is None or not self.counter.is_read:
            return
        rest_s = (t_ns - self._rests_ns) / NS
        least_j = max(2 * self.spec.accuracy.quantum, STUCK_W * rest_s)
        is_long = rest_s > max(STUCK_STEPS * (self.spec.update_s or UNKNOWN_STEP_S), STUCK_S)
        self.is_stuck = is_long and used_j > least_j

    def forget(self, before_ns: int) -> None:
        """Drop readings that are too old to be needed for the power after a time."""
        first = bisect_right(self.times, before_ns - self._steps_ns)
        if first > 1:
            del self.times[: first - 1], self._values[: first - 1], self._resets[: first - 1]

    def find_power(self, a_ns: int, b_ns: int) -> ChannelPower | None:
        """Return the power in ]a, b], None if the last reading before b is too old."""
        stop = bisect_right(self.times, b_ns)
        if not stop or b_ns - self.times[stop - 1] > self.stale_ns:
            return None
        watts = self._mean_power(a_ns, stop) if self.counter is None else self._mean_rise(a_ns, b_ns, stop)
        return None if watts is None else ChannelPower(self.rank, watts, self.spec.estimate, self.times[stop - 1])

    def _mean_power(self, a_ns: int, stop: int) -> float:
        inside = self._values[bisect_right(self.times, a_ns, 0, stop) : stop]
        return sum(inside) / len(inside) if inside else self._values[stop - 1]

    def _mean_rise(self, a_ns: int, b_ns: int, stop: int) -> float | None:
        """Return the mean power from a step before a to the last step, None after a gap or a reset."""
        last, since_ns = stop - 1, min(a_ns, b_ns - self._steps_ns)
        first = max(bisect_right(self.times, since_ns, 0, last) - 1, 0)
        if first == last or self.times[first] < since_ns - self.stale_ns or self._resets[first] != self._resets[last]:
            return None
        return (self._values[last] - self._values[first]) * NS / (self.times[last] - self.times[first])


def is_energy_channel(spec: Spec) -> bool:
    """Return whether a channel gives power in W or energy in J."""
    return (spec.kind == "power" and spec.unit == "W") or (spec.kind == "counter" and spec.unit == "J")


class StreamState:
    """Follow one stream of one meter: last row, power now, energy since the first reading."""

    def __init__(self, meter: str, stream: Stream) -> None:
        self.meter, self.stream = meter, stream
        self.row: Sequence[float] = ()  # the last one, NaN = not read
        self.last_ns = 0  # when it was read
        self.stale_ns = round(max(STALE_PERIODS * stream.period_s, STALE_S) * NS)
        found = [_ChannelState(i, c, stream) for i, c in enumerate(stream.channels) if is_energy_channel(c)]
        self.channels = sorted(found, key=lambda channel: channel.order)
        self._powers = [channel for channel in self.channels if channel.counter is None]
        self._counters = [channel for channel in self.channels if channel.counter is not None]
        self._age = next((i for i, c in enumerate(stream.channels) if c.quantity == "age"), None)
        self._integral = PowerIntegral(stream.period_s)

    @property
    def gives_energy(self) -> bool:
        """Return whether the stream has a channel of power or energy."""
        return bool(self.channels)

    def is_fresh(self, now_ns: int) -> bool:
        """Return whether the last reading is still current."""
        return bool(self.last_ns) and now_ns - self.last_ns <= self.stale_ns

    def add(self, t0_ns: int, t1_ns: int, values: Sequence[float]) -> None:
        """Take the next row; NaN means that a channel was not read."""
        self.row, self.last_ns = values, t1_ns
        t_ns, power_w = (t0_ns + t1_ns) // 2, nan
        if self._age is not None and isfinite(values[self._age]):  # the other values are older than the read
            t_ns -= round(values[self._age] * NS)
        for channel in self._powers:
            value = values[channel.index]
            if isfinite(value):
                channel.add(t_ns, value, nan)
                power_w = value if isnan(power_w) else power_w
        self._integral.add(t_ns, power_w)
        for channel in self._counters:
            channel.add(t_ns, values[channel.index], power_w)
            channel.check_stuck(t_ns, self._integral.total_j)

    def forget(self, before_ns: int) -> None:
        """Drop readings that are too old to be needed for the power after a time."""
        for channel in self.channels:
            channel.forget(before_ns)

    def resume(self, other: StreamState) -> None:
        """Continue the totals of an earlier stream of the same device, whose Spec may have changed a little."""
        self._integral.total_j = other._integral.total_j
        for channel in self._counters:
            for earlier in other._counters:
                if channel.counter and earlier.counter and channel.spec.name == earlier.spec.name:
                    channel.counter.resume(earlier.counter)
                    channel.is_stuck = earlier.is_stuck

    def find_power(self, a_ns: int, b_ns: int) -> ChannelPower | None:
        """Return the power in ]a, b] of the best channel with a reading in it, else of the best current channel."""
        found = [power for channel in self.channels if (power := channel.find_power(a_ns, b_ns)) is not None]
        return next((power for power in found if power.at_ns > a_ns), found[0] if found else None)

    @property
    def _energy_channel(self) -> _ChannelState | None:
        """Return the counter that gives the energy, else the best power channel; None without either."""
        read = [c for c in self._counters if c.counter is not None and c.counter.is_read and not c.is_stuck]
        return next(iter(read or self._powers or self._counters), None)

    @property
    def source(self) -> str:
        """Return the source of the energy: `counter` if a counter works, else `integrated`."""
        channel = self._energy_channel
        return "counter" if channel and channel.counter and channel.counter.is_read else "integrated"

    @property
    def energy_j(self) -> float:
        """Return the energy (J) since the first reading, NaN without any."""
        channel = self._energy_channel
        if channel is not None and channel.counter is not None and channel.counter.is_read:
            return channel.counter.total_j
        return self._integral.total_j if self._powers else nan

    @property
    def gain(self) -> float | None:
        """Return the relative half-width of the gain error, None if it is unknown."""
        channel = self._energy_channel
        if channel is None or channel.spec.accuracy.source == "unknown":
            return None
        return channel.spec.accuracy.gain


class CordSum:
    """Sum the streams that together are one scope: the outlets or the supplies of a node."""

    def __init__(self, scope: str) -> None:
        self.scope, self.parts = scope, 0
        self._members: dict[str, list[StreamState]] = {}

    def add(self, state: StreamState) -> None:
        """Add a stream; if several meters read one cord, the best one is used."""
        self.parts = max(self.parts, state.stream.parts)
        streams = self._members.setdefault(state.stream.scope, [])
        streams.append(state)
        streams.sort(key=lambda s: s.channels[0].rank)

    @property
    def members(self) -> list[StreamState]:
        """Return the stream of each cord."""
        return [streams[0] for streams in self._members.values()]

    @property
    def is_complete(self) -> bool:
        """Return whether every cord has a stream."""
        return len(self._members) >= self.parts

    @property
    def meter(self) -> str:
        """Return the names of all meters that read the cords."""
        return "+".join(sorted({member.meter for member in self.members}))

    def find_power(self, a_ns: int, b_ns: int) -> ChannelPower | None:
        """Return the power of all cords in ]a, b], None if a cord has no current reading."""
        found: list[ChannelPower] = []
        for streams in self._members.values():
            powers = [power for state in streams if (power := state.find_power(a_ns, b_ns)) is not None]
            if not powers:
                return None
            found.append(min(powers, key=lambda power: power.rank))
        if not found or not self.is_complete:
            return None
        rank, at_ns = max(power.rank for power in found), min(power.at_ns for power in found)
        return ChannelPower(rank, sum(power.watts for power in found), any(p.estimate for p in found), at_ns)

    @property
    def energy_j(self) -> float:
        """Return the energy of all cords in J, NaN if the energy of one cord is unknown."""
        return sum(member.energy_j for member in self.members) if self.is_complete else nan

    @property
    def source(self) -> str:
        """Return `counter` if every cord has a counter, else `integrated`."""
        return "counter" if all(member.source == "counter" for member in self.members) else "integrated"

    @property
    def gain(self) -> float | None:
        """Return the largest gain error of the cords, None if one is unknown."""
        gains = [member.gain for member in self.members]
        return None if None in gains or not gains else max(gain for gain in gains if gain is not None)


@dataclass(frozen=True, slots=True)
class ScopePower:
    """Hold the power of one scope over a time span (W; NaN = no current reading)."""

    host: str
    scope: str
    parent: str | None
    watts: float
    estimate: bool = False


class LiveState:
    """Follow the streams of one host; all times are monotonic ns of this host."""

    def __init__(self, host: str = "") -> None:
        self.host = host
        self.streams: dict[tuple[str, str], StreamState] = {}

    def add_stream(self, meter: str, stream: Stream) -> StreamState:
        """Return the state of a stream; a known stream continues, even if its Spec has changed a little."""
        known = self.streams.get((meter, stream.name))
        if known is None or known.stream != stream:
            state = StreamState(meter, stream)
            if known is not None and (known.stream.scope, known.stream.device) == (stream.scope, stream.device):
                state.resume(known)
            known = self.streams[meter, stream.name] = state
        return known

    def forget(self, before_ns: int) -> None:
        """Drop readings that are too old to be needed for the power after a time."""
        for state in self.streams.values():
            state.forget(before_ns)

    @property
    def reached_ns(self) -> int:
        """Return the time up to which all fast streams of power or energy were read, 0 before the first reading."""
        giving = [state for state in self.streams.values() if state.gives_energy and state.last_ns]
        newest = max((state.last_ns for state in giving), default=0)
        fast = [s.last_ns for s in giving if s.stream.period_s <= FAST_S and newest - s.last_ns < STALE_S * NS]
        return min(fast, default=newest)

    def list_cord_sums(self) -> list[CordSum]:
        """Return the scopes that are sums of streams: supplies of one meter, outlets of all PDUs."""
        found: dict[tuple[str, str, str], CordSum] = {}
        for state in self.streams.values():
            stream = state.stream
            if stream.sums and state.gives_energy:
                family = find_family(stream.scope)
                by = "" if family == "outlet" else state.meter
                found.setdefault((stream.sums, family, by), CordSum(stream.sums)).add(state)
        return list(found.values())

    def find_powers(self, a_ns: int, b_ns: int) -> dict[str, ScopePower]:
        """Return the power of every scope in ]a, b] by its best meter."""
        best: dict[str, ChannelPower] = {}
        parents: dict[str, str | None] = {}
        sources: list[tuple[str, str | None, StreamState | CordSum]] = [
            (s.stream.scope, s.stream.parent, s)
            for s in self.streams.values()
            if s.gives_energy and find_family(s.stream.scope) not in NOT_POWER
        ]
        sources += [(cords.scope, None, cords) for cords in self.list_cord_sums()]
        for scope, parent, source in sources:
            power = source.find_power(a_ns, b_ns)
            if power is not None and (scope not in best or power.rank < best[scope].rank):
                best[scope] = power
            if power is not None or isinstance(source, StreamState):
                parents.setdefault(scope, find_parent(scope, parent))
        return {
            scope: ScopePower(self.host, scope, parent, best[scope].watts, best[scope].estimate)
            if scope in best
            else ScopePower(self.host, scope, parent, nan)
            for scope, parent in parents.items()
        }

    def sum_powers(self, b_ns: int, over_s: float = NOW_S) -> dict[str, float]:
        """Return the mean power (W) up to a time, of every family of scopes and of all together (`measured`)."""
        powers = list(self.find_powers(b_ns - round(over_s * NS), b_ns).values())
        families = {name: sum(scope.watts for scope in some) for name, some in group_families(powers).items()}
        from joulelab.analysis.breakdown import stack_scopes

        return families | ({"measured": sum(scope.watts for scope, _ in stack_scopes(powers))} if powers else {})


def group_families(scopes: Iterable[P]) -> dict[str, list[P]]:
    """Return the scopes of each family that no other scope of the family contains, in the order of `rank_scope`.

    Estimates are left out where another scope of the family is measured.
    """
    found: dict[str, list[P]] = {}
    known = list(scopes)
    tree = {f"{s.host}/{s.scope}": f"{s.host}/{s.parent}" if s.parent else None for s in known}
    for family in sorted({find_family(s.scope) for s in known}, key=rank_scope):
        members = [s for s in known if find_family(s.scope) == family]
        measured = {s.host for s in members if not s.estimate}
        members = [s for s in members if not s.estimate or s.host not in measured]
        roots = set(find_roots([f"{s.host}/{s.scope}" for s in members], tree))
        found[family] = [s for s in members if f"{s.host}/{s.scope}" in roots]
    return found


@dataclass(slots=True)
class _Journal:
    """Hold one journal: the position up to which it was read, and the states of its streams."""

    header: JournalHeader
    offset: int
    row: struct.Struct
    states: list[StreamState] = field(default_factory=list)


class JournalFollower:
    """Read the new rows of a host's journals into a `LiveState`; nothing is written."""

    def __init__(self, folder: Path, back_s: float = NOW_S) -> None:
        """Take the folder of a host, and how much of the past (s) is read at first."""
        self.folder, self.state = folder, LiveState(folder.name)
        self.boot_id = ""
        self.offsets: dict[Path, int] = {}
        self._back_ns = round(back_s * NS)
        self._journals: dict[Path, _Journal] = {}

    def read(self) -> None:
        """Read the new rows. Raises OSError."""
        for path in sorted(self.folder.glob("*.journal"), key=lambda path: (len(path.name), path.name)):
            journal = self._journals.get(path)
            if journal is None:
                try:
                    journal = self._journals[path] = self._open(path)
                except StoreError:
                    continue  # its header is not whole yet
            self._read_rows(path, journal)

    def find_newest_ns(self) -> int:
        """Return the time of the newest row of all journals, 0 before the first row."""
        return max((state.last_ns for state in self.state.streams.values()), default=0)

    def _open(self, path: Path) -> _Journal:
        header = read_header(path)
        self.boot_id = header.boot_id or self.boot_id
        states = [self.state.add_stream(header.meter, stream) for stream in header.streams]
        slowest_ns = max((c.stale_ns for state in states for c in state.channels), default=0)
        low, width = 0, header.row_bytes
        with open_regular(path) as file:
            rows = max(file.seek(0, 2) - header.data_offset, 0) // width
            high = rows

            def read_time(row: int) -> int:
                file.seek(header.data_offset + row * width + 8)
                return int.from_bytes(file.read(8), "little", signed=True)

            from_ns = read_time(rows - 1) - self._back_ns - 2 * slowest_ns if rows else 0
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if read_time(middle) < from_ns else (low, middle)
        return _Journal(header, header.data_offset + low * width, make_row_struct(len(header.columns)), states)

    def _read_rows(self, path: Path, journal: _Journal) -> None:
        with open_regular(path) as file:
            size = file.seek(0, 2) - journal.offset
            file.seek(journal.offset)
            data = file.read(min(size - size % journal.row.size, MOST_BYTES))
        data = data[: len(data) - len(data) % journal.row.size]
        journal.offset += len(data)
        self.offsets[path] = journal.offset
        count = len(journal.states)
        for index, t0_ns, t1_ns, *values in journal.row.iter_unpack(data):
            if 0 <= index < count and 0 < t0_ns <= t1_ns:  # a power loss may leave rows of zeros
                journal.states[index].add(t0_ns, t1_ns, values)
